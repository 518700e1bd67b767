"""A finished run that goes on to more rounds, as a run of its own beside it.

Only where no earlier round would have been another in the longer run: then it ends in the bits of a run that had as
many rounds from the start.
"""

import ast
import inspect
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.compose import compose, load, merge
from benchmark.configuration.files import available
from benchmark.configuration.identity import LONGEST, folder, identity, joined_name
from benchmark.configuration.instantiate import CLASSES, locate, named_classes
from benchmark.configuration.words import take_keys
from benchmark.errors import ConfigError
from benchmark.experiment.folder import load_folder
from benchmark.federation.checkpoint import Checkpoint
from benchmark.tracking.callbacks import CLIENTS
from benchmark.tracking.curve import MONITORED
from leaderboards import store
from methods.base import Objective

KEY = "federation.rounds"


def extension(path: Path, overrides: list[str], *, trust: bool) -> tuple[DictConfig, Path] | None:
    """The config and the folder of a run that goes on from a finished one; None: its number of rounds stays.

    overrides: `federation.rounds`, the new run's `scenario` and `row`, and how it runs; see `load_folder`.

    Raises ConfigError: the run is not finished, has done more rounds, or its rounds depend on their number.
    """
    own = [word for word in overrides if word.partition("=")[0] in (KEY, "scenario", "row")]
    before = load_folder(path, [word for word in overrides if word not in own], trust=trust)
    after = merge(before, own)
    old, new = before.federation.rounds, after.federation.rounds
    if old == new:
        return None
    done = _done(path, before)
    if new < done:
        raise ConfigError(f"{KEY}={new}: {path} has done {done} rounds: give more, or start a run of its own by `run`")
    if (reason := bound_to_rounds(before)) is not None:
        raise ConfigError(f"{path} cannot go on to {KEY}={new}: {reason}; start a run of its own by `run`")
    names, _ = take_keys(own, "scenario", "row")
    if "scenario" not in names and "row" not in names:
        own.append(f"scenario={_scenario(before, new)}")
    ending = Path(before.scenario) / before.row / f"seed{before.seed}"
    place = path.resolve()
    if not any(word.startswith("output=") for word in overrides) and place.parts[-len(ending.parts) :] == ending.parts:
        own.append(f"output={place.parents[len(ending.parts) - 1]}")  # beside it, where it lies today
    after = merge(before, own)
    target = folder(after)
    if target.resolve() == place:
        raise ConfigError(f"{path} would be the new run's folder too: give scenario= another name")
    return after, target


def _done(path: Path, config: DictConfig) -> int:
    """The rounds of a finished run; ConfigError where it is not finished, or cannot go on."""
    if not (path / "result.json").exists():
        raise ConfigError(f"{path} is not finished: resume it without {KEY}= first")
    if not (path / "checkpoint" / "state.pt").exists():
        raise ConfigError(f"{path} has no checkpoint to go on from: start a run of its own by `run`")
    rounds = store.read(path / "result.json")["rounds"]
    if "ended" in rounds:
        raise ConfigError(
            f"{path} has ended after round {rounds['done']}: {rounds['ended']}: more rounds change nothing"
        )
    done: int = rounds["done"]
    return done


def bound_to_rounds(config: DictConfig) -> str | None:
    """Why rounds of a run would be others if it had more of them, else None."""
    schedule, privacy = config.schedule, config.privacy
    if schedule.name != "constant":
        return f"schedule.name={schedule.name} sets the rate of a round by the number of rounds"
    if schedule.warmup:
        return f"schedule.warmup={schedule.warmup} is a share of the rounds"
    if privacy.mechanism != "none" and privacy.noise_multiplier is None:
        return "privacy.noise_multiplier was solved for the number of rounds: a run whose multiplier is given can go on"
    objective = locate(config.objective, "objective")
    if objective.start_step is not Objective.start_step:
        on = [key for key in objective.schedules if config.objective.get(key) is not None]
        if on or not objective.schedules:
            return f"objective.{on[0] if on else 'class'}: a value follows the share of all rounds that is done"
    for where, section in named_classes(config):
        if where in ("method", "method.addons", "objective"):
            for module in _modules(locate(section, where), CLASSES[where][0]):
                try:
                    source = inspect.getsource(module)
                except (OSError, TypeError):
                    return f"{where}.class={section['class']}: its source, which may read the number of rounds, is gone"
                if reads_rounds(source):
                    return f"{where}.class={section['class']} works by the number of rounds"
    return None


def reads_rounds(source: str) -> bool:
    """Whether code reads `rounds`, the number of rounds that the loop tells a method's hooks."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "rounds")
        or (isinstance(node, ast.Constant) and node.value == "rounds")
        for node in ast.walk(ast.parse(source))
    )


def _modules(target: Any, base: type) -> Iterator[Any]:
    """The modules of a class and of those it builds on; of a user's own also those in its folder that they use."""
    names = [str(cls.__module__) for cls in inspect.getmro(target) if issubclass(cls, base)]
    seen: set[str] = set()
    while names:
        if (name := names.pop()) in seen or (module := sys.modules.get(name)) is None:
            continue
        seen.add(name)
        yield module
        if name.partition(".")[0] != "methods" and (file := getattr(module, "__file__", None)):
            used = (value if inspect.ismodule(value) else inspect.getmodule(value) for value in vars(module).values())
            paths = {other.__name__: getattr(other, "__file__", None) for other in used if other is not None}
            names += [
                other for other, there in paths.items() if there and Path(there).is_relative_to(Path(file).parent)
            ]


def _scenario(config: DictConfig, rounds: int) -> str:
    """The name that the config's scenario has with another number of rounds, as `run` would name it."""
    name = str(config.scenario)
    if len(name) > LONGEST:
        raise ConfigError(f"the name {name} is cut off, so that its changes cannot be read: give scenario=NAME")
    base, *words = name.split("+")
    while words and not all("=" in word for word in words):  # a name that somebody gave
        base, *words = f"{base}+{words[0]}", *words[1:]
    others = [word for word in words if not word.startswith(f"{KEY}=")]
    if len(others) == len(words) or _shipped_rounds(config, base) != rounds:
        others = sorted([*others, f"{KEY}={rounds}"])
    return joined_name(base, others)


def _shipped_rounds(config: DictConfig, scenario: str) -> int | None:
    """The rounds of a shipped scenario for the config's method and objective; None: they are not shipped."""
    method, objective = str(config.method["name"]), str(config.objective["name"])
    if scenario not in available("scenario") or method not in available("method"):
        return None
    rounds: int = compose(scenario, method).federation.rounds
    if objective in available("objective") and compose(scenario, method).objective["name"] != objective:
        rounds = compose(scenario, method, [f"objective={objective}"]).federation.rounds
    return rounds


def copy_checkpoint(source: Path, target: Path, longer: DictConfig) -> None:
    """Begins a longer run where another has ended; whole, or not at all.

    source: folder of the run that has ended. target, longer: folder and config of the one that goes on.
    """
    config, beside = load(source / "config.yaml"), target / "checkpoint.new"
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(source / "checkpoint", beside)
    state = Checkpoint(beside, None).load()
    assert state is not None  # there is one, see `extension`
    of, *data = state["config"].split("/")
    if of != identity(config):
        raise ConfigError(f"{source / 'checkpoint'} belongs to another config than {source / 'config.yaml'}")
    every, last = config.evaluation.every, state["history"][-1:]
    if every and last and last[0]["round"] % every:  # only as the last round was it monitored
        state["history"][-1] = {key: value for key, value in last[0].items() if key not in MONITORED}
    Checkpoint(beside, "/".join([identity(longer), *data])).save(state)
    if (visits := source / CLIENTS).exists():
        shutil.copy(visits, target / CLIENTS)
    os.rename(beside, target / "checkpoint")
