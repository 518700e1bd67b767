"""Phase-specific hooks: their names, and the check of a class that defines them."""

import logging
from typing import Any

from methods.core.validation import MethodError

log = logging.getLogger(__name__)

PHASE_HOOKS = (
    "send", "update", "receive", "reply", "init_client", "training_step", "loss", "observe", "draw",
    "adjust_gradients", "configure_optimizers", "on_train_batch_end",
)  # fmt: skip
"""Hooks that may have a phase-specific version: `update_correlate` replaces `update` in the phase `correlate`."""


EARLIER_NAMES = {"seats": "server_workers", "guards": "protections", "smallest_batch": "min_batch_size"}


def read_earlier_names(cls: Any) -> None:
    """Gives a class what it, or a base that is not the suite's, defines by an earlier name; says what replaces it.

    The earlier names stay for `super()`, in every class.
    """

    def depth(name: str) -> int:
        return next((index for index, owner in enumerate(cls.__mro__) if name in vars(owner)), len(cls.__mro__))

    for old, new in EARLIER_NAMES.items():
        if depth(old) < depth(new) and getattr(cls, old) != getattr(cls, new):
            log.warning("%s.%s is %s now", cls.__name__, old, new)
            setattr(cls, new, getattr(cls, old))
        elif depth(new) < depth(old):
            setattr(cls, old, getattr(cls, new))


def check_hooks(cls: Any) -> None:
    """Raises MethodError for a suffix that is no phase's name, and for a plain hook that would never be called.

    The latter is a plain hook whose phase-specific version is inherited and would take precedence.
    """
    phases = {phase.name for phase in (*cls.warmup, *cls.phases)}
    if cls.recalibration.name in phases:
        raise MethodError(f"{cls.__name__}: recalibrate is the phase of BatchNorm's statistics: use another name")

    def depth(name: str) -> int:
        """Index in the method resolution order of the class that defines a hook; its length if no class does."""
        return next((index for index, owner in enumerate(cls.__mro__) if name in vars(owner)), len(cls.__mro__))

    for hook in PHASE_HOOKS:
        for name in vars(cls):
            suffix = name.removeprefix(f"{hook}_")
            if suffix != name and name not in PHASE_HOOKS and suffix not in phases:
                raise MethodError(
                    f"{cls.__name__}.{name} names no phase of the method; its phases are {', '.join(sorted(phases))}"
                )
        for suffixed in (f"{hook}_{phase}" for phase in sorted(phases)):
            if depth(hook) < depth(suffixed) < len(cls.__mro__):
                raise MethodError(
                    f"{cls.__name__}.{hook} would never be called in the phase it is meant for: the inherited "
                    f"{suffixed} is preferred; override {suffixed} as well"
                )
