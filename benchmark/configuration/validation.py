"""Validation of a config's values: those that are not possible, and those that contradict each other."""

import re

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.schema import KEYS
from benchmark.configuration.typecheck import fits
from benchmark.errors import ConfigError

BOUNDED = [key for key in KEYS.values() if key.choices or key.within or key.least is not None]


def validate(config: DictConfig) -> None:
    """Refuse values that are not possible, and values that contradict each other."""
    for key in ("scenario", "row"):  # they are folders under `output`
        if config[key] and not re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)*", str(config[key])):
            raise ConfigError(f"{key}={config[key]!r}: a name begins with a letter or digit, and has . _ + = - besides")
    for known in BOUNDED:
        known.check(OmegaConf.select(config, known.name))
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
