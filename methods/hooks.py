"""Hooks that carry a phase's name: which there are, and what a class may not do with them."""

from typing import Any

from methods.types import MethodError

PHASE_HOOKS = (
    "send", "update", "receive", "reply", "init_client", "training_step", "loss", "observe", "draw",
    "adjust_gradients", "configure_optimizers", "on_train_batch_end",
)  # fmt: skip
"""Hooks that may carry a phase's name: `update_correlate` is preferred to `update` in the phase `correlate`."""


def check_hooks(cls: Any) -> None:
    """Refuses a suffix that names no phase, and a plain hook that an older suffixed one would hide."""
    phases = {phase.name for phase in (*cls.warmup, *cls.phases)}

    def age(name: str) -> int:
        """How far down the line of ancestors a hook is defined; a large number where it is nowhere."""
        return next((place for place, owner in enumerate(cls.__mro__) if name in vars(owner)), len(cls.__mro__))

    for hook in PHASE_HOOKS:
        for name in vars(cls):
            suffix = name.removeprefix(f"{hook}_")
            if suffix != name and name not in PHASE_HOOKS and suffix not in phases:
                raise MethodError(
                    f"{cls.__name__}.{name} names no phase of the method; its phases are {', '.join(sorted(phases))}"
                )
        for suffixed in (f"{hook}_{phase}" for phase in sorted(phases)):
            if age(hook) < age(suffixed) < len(cls.__mro__):
                raise MethodError(
                    f"{cls.__name__}.{hook} would never be called in the phase it is meant for: the inherited "
                    f"{suffixed} is preferred; override {suffixed} as well"
                )
