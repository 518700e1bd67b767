"""Verifies a bundle: that its records follow from its encoders, and its encoders from its configs.

Nothing in a bundle runs: configs may name the suite's classes only, and states are read without unpickling code, unless
the user trusts it (SECURITY.md).
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from omegaconf import DictConfig

from benchmark.api import opened
from benchmark.configuration.compose import merge
from benchmark.configuration.identity import identity
from benchmark.configuration.instantiate import said
from benchmark.errors import ConfigError, exit_code
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.folder import load_folder, refuse_own_protocols
from benchmark.federation.callbacks import Callback
from benchmark.federation.checkpoint import Checkpoint
from benchmark.submission.bundle import code_of
from benchmark.tracking.checkout import commit
from benchmark.tracking.progress import Display
from benchmark.tracking.provenance import hardware, origin
from benchmark.tracking.record import known_at_start
from leaderboards import bundles, generate, store
from leaderboards.bundles import RUNS, Manifest, Receipt, RunScores
from leaderboards.schema import Record, Scores
from methods import trees

TOLERANCE = 0.01
"""Share by which a number may differ where the processor, its threads or its libraries are of another kind."""
ABSOLUTE = TOLERANCE * bundles.NEAR_ZERO
"""As TOLERANCE, of numbers near 0."""
NUMERICAL = ("numpy", "torch", "torchvision")
"""Libraries of whose version the last bits of a number may be."""
TIMES = ("seconds", "client_seconds", "server_seconds")
ORIGIN = ("config", "dataset", "in_order", "partition", "public", "weights", "git", "hardware")
"""What of a record's provenance follows from its config, the images here and the environments of its rounds."""


class _Again(NamedTuple):
    """A run's scores as they were measured here: on this hardware, with these libraries."""

    scores: Scores
    hardware: str
    libraries: Mapping[str, str]

    def tolerance(self, record: Record, *others: str) -> float:
        """How far a number of a record may be from ours. others: hardware that it comes from beside its rounds'."""
        made = record["provenance"]
        same = all(made["libraries"].get(name) == self.libraries.get(name) for name in NUMERICAL)
        return 0.0 if same and {made["hardware"], *others} == {self.hardware} else TOLERANCE


class _Enough(Exception):  # noqa: N818
    """The rounds that were asked for are replayed."""


def verify(
    file: Path,
    display: Display,
    overrides: Sequence[str] = (),
    *,
    replay: int | None = None,
    rounds: int | None = None,
    trust: bool = False,
) -> Receipt:
    """The receipt of a bundle, which is not written.

    Args:
        overrides: where images are, and how runs are executed.
        replay: a seed to train again. rounds: how many of its rounds; None: all.
        trust: whether classes from outside the suite may run.

    Raises RecordError or another error of the user's, in one line: what is not as the bundle says.
    """
    folder = tempfile.TemporaryDirectory()
    try:
        with folder as unpacked:
            return _verified(file, Path(unpacked), display, overrides, replay, rounds, trust)
    except Exception as error:
        if exit_code(error) is not None:
            error.args = (str(error).replace(f"{folder.name}/{RUNS}/", f"{file}: "),)
            raise
        raise ConfigError(f"{file}: its files are not those of a run: {said(error)}") from error


def _verified(
    file: Path,
    unpacked: Path,
    display: Display,
    overrides: Sequence[str],
    replay: int | None,
    rounds: int | None,
    trust: bool,
) -> Receipt:
    """See `verify`; a bundle may be such that any error is raised. unpacked: an empty folder for its files."""
    with bundles.opened(file) as (manifest, bundle):
        records = {run: bundles.record(file, bundle, run) for run in manifest.runs}
        seeds = {record["seed"]: run for run, record in records.items()}
        if replay is not None and replay not in seeds:
            raise ConfigError(f"replay={replay}: {file} has the seeds {', '.join(map(str, seeds))}")
        for run, record in records.items() if not trust else ():
            names = {name for scores in (record["scores"], *record["encoders"].values()) for name in scores}
            refuse_own_protocols(sorted(names), f"{run}/result.json", "scores")
        for path, code in manifest.code.items() if trust else ():
            if code.wheel and find_spec(path.partition(".")[0]) is None:
                raise ConfigError(f"{file}: {path} is of {code.wheel}, which is not here: install it")
        bundle.extractall(unpacked)
        folders = {run: unpacked / RUNS / run for run in records}
        for run, record in records.items():
            config = load_folder(folders[run], overrides, trust=trust)
            _check_config(run, record, config, manifest)
            _check_rounds(run, record, folders[run], manifest.commit)
        again = {
            run: _check_scores(run, record, folders[run], display, overrides, trust) for run, record in records.items()
        }
        done, whole = "", False
        if replay is not None:
            run = seeds[replay]
            config = load_folder(folders[run], overrides, trust=trust)
            done, whole = _replay(run, records[run], config, folders[run], rounds, display, again[run])
    made = origin([at] if (at := commit()) else [], next(iter(again.values())).hardware)
    mark: Literal["verified", "replayed"] = "replayed" if whole else "verified"
    scores = {run: RunScores(record["scores"], again[run].scores) for run, record in records.items()}
    largest = max(bundles.difference(each.claimed, each.recomputed) for each in scores.values())
    return Receipt(bundles.digest(file), mark, made["git"], made["hardware"], made["date"], done, largest, scores)


def _check_config(run: str, record: Record, config: DictConfig, manifest: Manifest) -> None:
    """Refuse a record that is not of its config, or code that is not what made it."""
    _refuse(run, "is not that of its config", record, known_at_start(config))
    made = record["provenance"]
    if made["config"] != identity(config):
        raise ConfigError(f"{run}: provenance.config of its record is not that of its config.yaml")
    if made["git"] != manifest.commit or made["dirty"]:
        raise ConfigError(f"{run}: its record is of {made['git']}, the bundle of {manifest.commit} unchanged")
    for path, code in code_of(config).items():
        given = manifest.code.get(path)
        if given is None or given.sha256 != code.sha256:
            remedy = f"install {given.wheel}" if given and given.wheel else f"take the suite of {manifest.commit}"
            raise ConfigError(f"{run}: {path} was other code than is here: {remedy}")


def _check_rounds(run: str, record: Record, folder: Path, commit: str) -> None:
    """Refuse rounds that are missing, or that are not those of the state."""
    done = record["rounds"]["done"]
    state = Checkpoint(folder / "checkpoint", None).load() or {"round": 0, "history": [], "environments": []}
    file = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    if not len(lines) == len(state["history"]) == state["round"] == done:
        counts = f"rounds.jsonl has {len(lines)}, its checkpoint {len(state['history'])}"
        raise ConfigError(f"{run}: its record is of {done} rounds, {counts}")
    for line, before in zip(lines, state["history"], strict=True):
        _refuse(f"{run}: round {before['round']}", "of rounds.jsonl is not that of its checkpoint", line, before)
    environments = state["environments"]
    if done and (not environments or environments[-1]["ranks"] != record["world_size"]):
        raise ConfigError(f"{run}: its checkpoint does not say that its last round was made by {record['world_size']}")
    commits = {str(each["commit"]).removesuffix("+") for each in environments}
    if commits - {commit}:
        raise ConfigError(f"{run}: its rounds are of {', '.join(sorted(commits))}, and the bundle says {commit}")


def _check_scores(
    run: str, record: Record, folder: Path, display: Display, overrides: Sequence[str], trust: bool
) -> _Again:
    """Refuse a record that does not follow from its encoder and its rounds."""
    with opened(folder, display, overrides, trust=trust) as finished:
        (folder / "result.json").unlink()  # nothing of it is to be taken for ours
        evaluated = finished.evaluate(list(record["scores"]))
        machine = hardware(finished.fabric.device)
    if evaluated.failed:
        name, reason = next(iter(evaluated.failed.items()))
        raise ConfigError(f"{run}: {name} cannot be measured here: {reason}")
    if untold := [line for line in evaluated.record["deviations"] if line not in record["deviations"]]:
        raise ConfigError(f"{run}: its record does not tell that {untold[0]}")
    made, given = evaluated.record["provenance"], record["provenance"]
    _refuse(run, "is not that of its config and rounds", given, {key: made[key] for key in ORIGIN if key in made})
    ours, theirs = ({**store.lasting(each), "deviations": []} for each in (evaluated.record, record))
    again = _Again(evaluated.record["scores"], machine, made["libraries"])
    tolerance = again.tolerance(record, *(each["hardware"] for each in record["evaluated"].values()))
    _refuse(run, "does not follow from its encoder and its rounds", theirs, ours, tolerance)
    display.print(f"{run}: its record follows from its encoder{f', to {tolerance:.0%}' if tolerance else ''}")
    return again


class _Compare(Callback):
    """Refuses the first round whose numbers are not those of another run."""

    def __init__(self, run: str, history: Sequence[Mapping[str, Any]], rounds: int, tolerance: float) -> None:
        self.run, self.history, self.rounds, self.tolerance = run, history, rounds, tolerance

    def on_round_trained(self, loop: Any, line: dict[str, Any]) -> None:
        """Compares what does not depend on the clock."""
        there = {key: value for key, value in self.history[line["round"] - 1].items() if key not in TIMES}
        here = {key: value for key, value in line.items() if key in there}
        where = f"{self.run}: round {line['round']}"
        _refuse(where, "is another when it is trained again", there, here, self.tolerance)

    def on_round_end(self, loop: Any, line: dict[str, Any]) -> None:
        """Ends the run where enough rounds are the same."""
        if line["round"] == self.rounds < loop.rounds:
            raise _Enough


def _replay(
    run: str, record: Record, config: DictConfig, folder: Path, rounds: int | None, display: Display, here: _Again
) -> tuple[str, bool]:
    """Trains a run again and refuses it where it departs; returns what was done, and whether that is all of it."""
    state = Checkpoint(folder / "checkpoint", None).load()
    if state is None:
        raise ConfigError(f"{run} has no rounds to replay")
    count = min(rounds or state["round"], state["round"])
    whole = count == state["round"]
    target = folder.with_name(f"{folder.name}-replay")
    experiment = Experiment(merge(config, ["logger=csv"]), display, path=target)
    with experiment.open() as again:
        tolerance = here.tolerance(record)
        again.loop.callbacks = [_Compare(run, state["history"], count, tolerance), display]
        display.begin(f"{run}, again")
        with suppress(_Enough):
            again.loop.fit(None)
        if whole and tolerance:  # other bits, but scores that are near
            scores = again.evaluate(list(record["scores"])).record["scores"]
            _refuse(run, "is another when it is trained again", record["scores"], scores, tolerance)
        ended = trees.move(again.loop.server, "cpu")
    if whole and not tolerance:
        theirs, ours = (dict(trees.leaves(server)) for server in (state["server"], ended))
        if theirs.keys() != ours.keys() or not all(torch.equal(theirs[key], ours[key]) for key in theirs):
            raise ConfigError(f"{run}: its encoder is not the one that its rounds end in when they are trained again")
    how = f"to {tolerance:.0%}, on another kind of machine or library" if tolerance else "to the same bits"
    display.print(f"{run}: {count} of {state['round']} rounds trained again, {how}")
    return f"{run}: {count} of {state['round']} rounds, {how}", whole


def _refuse(where: str, what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: float = 0.0) -> None:
    """ConfigError for the first value of `ours` that `theirs` has otherwise."""
    for key, value in json.loads(json.dumps(ours)).items():
        for moved in generate.moved(key, theirs.get(key), value, tolerance, min(tolerance, ABSOLUTE)):
            raise ConfigError(f"{where}: {moved.what} {what}: {moved.old}, and here {moved.new}")
