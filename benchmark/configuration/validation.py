"""Validation of a config's values: those that are not possible, and those that contradict each other."""

import math
import re
from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.typecheck import fits, nearest
from benchmark.errors import ConfigError

CHOICES = {
    "federation.batch_norm": ("average", "local", "recalibrate"),
    "training.precision": ("32-true", "tf32", "bf16-mixed", "64-true"),
    "training.views": ("joint", "separate"),
    "compression.name": ("none", "float16", "int8", "int4", "top-k"),
    "privacy.mechanism": ("none", "central", "local"),
    "privacy.clipping": ("flat", "layers", "adaptive"),
    "privacy.sampling": ("fixed", "poisson"),
    "privacy.accountant": ("rdp", "pld"),
    "schedule.name": ("constant", "cosine", "cosine_twice", "step"),
    "schedule.per": ("round", "step"),
    "logger": ("wandb", "csv"),
    "accelerator": ("auto", "cpu", "cuda"),
    "executor": ("auto", "one-by-one", "side-by-side"),
}
"""Key -> its possible values."""
LEAST = {
    "federation.rounds": 0, "training.epochs": 1, "training.steps": 1, "training.most_epochs": 1,
    "training.batch_size": 2, "training.smallest_batch": 1, "nodes": 1, "threads": 1, "evaluation.every": 0,
    "evaluation.batch_size": 1, "seed": 0, "lanes": 1, "minutes": 0, "schedule.gamma": 0, "data.image_size": 1,
}  # fmt: skip
"""Key -> its least value, unless it is null."""
WITHIN: dict[str, tuple[Callable[[float], bool], str]] = {
    "training.clip_norm": (lambda norm: 0 < norm < math.inf, "a number above 0, or null for none"),
    "schedule.warmup": (lambda share: 0 <= share < 1, "a share of the run in [0, 1), such as 0.1"),
    "federation.participation": (lambda share: 0 < share <= 1, "a share in (0, 1]"),
    "federation.availability": (lambda chance: 0 < chance <= 1, "a probability in (0, 1]"),
    "federation.dropout": (lambda chance: 0 <= chance < 1, "a probability in [0, 1)"),
    "federation.deadline": (lambda time: time > 0, "a number above 0; 1 is the median client's visit"),
    "compression.share": (lambda share: 0 < share <= 1, "a share in (0, 1]"),
    "privacy.delta": (lambda delta: 0 < delta < 1, "a number in (0, 1)"),
    "privacy.quantile": (lambda quantile: 0 < quantile < 1, "a number in (0, 1)"),
    "privacy.epsilon": (lambda epsilon: 0 < epsilon < math.inf, "a number above 0, or leave it out for no budget"),
    "privacy.range": (lambda size: 1 <= size < math.inf, "the largest number that a client sends, at least 1"),
}
"""Key -> whether a value is possible, and what to give; unless it is null."""


def validate(config: DictConfig) -> None:
    """Refuse values that are not possible, and values that contradict each other."""
    for key in ("scenario", "row"):  # they are folders under `output`
        if config[key] and not re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)*", str(config[key])):
            raise ConfigError(f"{key}={config[key]!r}: a name begins with a letter or digit, and has . _ + = - besides")
    for key, choices in CHOICES.items():
        if (value := OmegaConf.select(config, key)) not in choices:
            raise ConfigError(f"{key}={value!r}: choose {' or '.join(choices)}{nearest(str(value), choices)}")
    for key, least in LEAST.items():
        value = OmegaConf.select(config, key)
        if value is not None and not (isinstance(value, int | float) and least <= value < math.inf):
            raise ConfigError(f"{key}={value!r}: give a number of at least {least:g}")
    for key, (possible, advice) in WITHIN.items():
        if (value := OmegaConf.select(config, key)) is not None and not possible(value):
            raise ConfigError(f"{key}={value}: give {advice}")
    if config.devices != "auto" and not (fits(config.devices, int) and config.devices >= 1):
        raise ConfigError(f"devices={config.devices!r}: give auto, or a whole number of at least 1")
    if config.compile and config.executor == "side-by-side":
        raise ConfigError("compile=true and executor=side-by-side: each lane would compile its own; choose one of them")
    training, most = config.training, config.training.most_epochs
    if most is not None and training.steps is None and (training.drop_last or most < training.epochs):
        raise ConfigError(
            f"training.most_epochs={most}: give at least training.epochs={training.epochs}, and no training.drop_last"
        )
    _validate_schedule(config)


def _validate_schedule(config: DictConfig) -> None:
    """Refuse schedules that contradict themselves."""
    schedule, rounds = config.schedule, config.federation.rounds
    if schedule.name == "cosine_twice" and schedule.per == "step":
        raise ConfigError("schedule.name=cosine_twice: its rate is that of a round: leave schedule.per=round")
    if schedule.per == "round" and 0 < schedule.warmup * rounds < 1:
        raise ConfigError(
            f"schedule.warmup={schedule.warmup} ends within the first round, which has one rate: give at least "
            f"{1 / rounds:.3g}, or set schedule.per=step"
        )
    if schedule.warmup and schedule.name == "cosine_twice":
        raise ConfigError("schedule.name=cosine_twice: it has no warm-up: leave schedule.warmup out, or choose cosine")
    if late := [progress for progress in schedule.milestones if not 0 <= progress <= 1]:
        raise ConfigError(f"schedule.milestones: {late[0]} is no progress in [0, 1]; half-way through the run is 0.5")
