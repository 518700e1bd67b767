"""Runs to be set side by side, read from their folders alone; seeds of one setting are pooled."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.compose import load
from benchmark.configuration.identity import settings
from benchmark.configuration.words import config_of_run
from benchmark.disk import read_lines
from benchmark.errors import ConfigError
from benchmark.tracking.curve import curve
from leaderboards import store
from leaderboards.encoders import count, shown
from leaderboards.markdown import seeds_phrase
from leaderboards.rank import Cell, finished
from leaderboards.sources import labelled

MONITORS = {"monitor": "kNN on held-out training images (%)", "effective_rank": "effective rank (dimensions)"}
"""The monitor's number -> what it is."""


@dataclass(frozen=True)
class RunContent:
    """What a run's folder holds.

    config: of the run. history: a line for each round, as in `rounds.jsonl`. record: the result, or that of the rounds
    so far; empty before the first. points: of the monitor's curve, see `benchmark.tracking.record.curve`.
    """

    folder: Path
    config: DictConfig
    history: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any]
    points: Sequence[Mapping[str, float]]

    @cached_property
    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Protocol -> metric -> value, as they are shown."""
        return shown(dict(self.record))

    @property
    def encoders(self) -> int:
        """How many encoders were scored."""
        return count(dict(self.record))

    def score(self, protocol: str, metric: str) -> float | None:
        """A score as it is shown; None: not measured."""
        return self.scores.get(protocol, {}).get(metric)

    def curve(self, key: str) -> dict[int, float]:
        """Round -> "loss", or one of the monitor's numbers."""
        lines = self.history if key == "loss" else self.points
        return {int(line["round"]): line[key] for line in lines if line.get(key) is not None}


@dataclass(frozen=True)
class Pool:
    """Runs that differ by seed alone, in order of seed: a column of the tables. One run may be a pool."""

    runs: tuple[RunContent, ...]

    @property
    def config(self) -> DictConfig:
        """Of the first run; of the others all but the seed is the same."""
        return self.runs[0].config

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(run.config.seed for run in self.runs)

    @property
    def encoders(self) -> int:
        """How many encoders were scored, the most of any run."""
        return max(run.encoders for run in self.runs)

    def cell(self, protocol: str, metric: str) -> Cell | None:
        """A score as it is shown, over the runs that have it; None: no run has."""
        return cell_of([run.score(protocol, metric) for run in self.runs])

    def curve(self, key: str) -> dict[int, list[float]]:
        """Round -> the value of each run, at the rounds that all runs have; see `RunContent.curve`."""
        each = [run.curve(key) for run in self.runs]
        return {round: [values[round] for values in each] for round in sorted(set.intersection(*map(set, each)))}


def cell_of(values: Sequence[float | None]) -> Cell | None:
    """The cell of the values that are there; None where there is none."""
    present = [value for value in values if value is not None]
    return Cell.of(present) if present else None


def read_run(folder: Path) -> RunContent:
    """The content of a run folder, finished or not.

    Raises:
        ConfigError: it is no run folder, or a line of its rounds cannot be read.
        RecordError: its record cannot be read.
    """
    config = load(config_of_run(folder))
    try:
        history = read_lines(folder / "rounds.jsonl")
        points = curve(history)
        for line in history:
            float(line["round"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{folder / 'rounds.jsonl'} has a line that is no round ({type(error).__name__}: {error}): "
            f"resume the run, which writes the file again from its checkpoint"
        ) from error
    records = [path for name in ("result.json", store.PARTIAL) if (path := folder / name).is_file()]
    return RunContent(folder, config, history, store.read(records[0]) if records else {}, points)


def pooled(runs: Sequence[RunContent]) -> list[Pool]:
    """The runs by setting: those of one scenario and row that differ by seed alone are one pool.

    A run that goes on is with those that did as many rounds; a second run of one seed is in another pool.
    """
    pools = list[tuple[dict[str, Any], dict[int, RunContent]]]()
    for run in runs:
        own = _setting(run)
        for setting, by_seed in pools:
            if setting == own and run.config.seed not in by_seed:
                by_seed[run.config.seed] = run
                break
        else:
            pools.append((own, {run.config.seed: run}))
    return [Pool(tuple(by_seed[seed] for seed in sorted(by_seed))) for _, by_seed in pools]


def _setting(run: RunContent) -> dict[str, Any]:
    """What the runs of a pool share."""
    over = bool(run.record) and finished(dict(run.record))
    data = run.record["provenance"]["dataset"] if run.record else None
    names = {"scenario": run.config.scenario, "row": run.config.row, "seed": None}
    return {**settings(run.config), **names, "rounds done": "all" if over else len(run.history), "dataset": data}


def names(pools: Sequence[Pool], counted: bool = True) -> list[str]:
    """The shortest names that tell the pools apart: of rows, with seeds, with scenarios, or else the folders.

    counted: with the number of seeds, as "ssd (3 seeds)", where a pool has several and its name does not list them.
    """
    seeds = [f"seed{'s' * (len(pool.runs) > 1)} {', '.join(map(str, pool.seeds))}" for pool in pools]
    counts = [f" ({seeds_phrase([len(pool.runs)])})" if counted and len(pool.runs) > 1 else "" for pool in pools]
    rows = [labelled(pool.config.row, pool.config.method.name) for pool in pools]
    for style in ("{row}", "{row} {seeds}", "{scenario} {row}", "{scenario} {row} {seeds}"):
        each = [
            style.format(row=row, scenario=pool.config.scenario, seeds=of_pool)
            for row, pool, of_pool in zip(rows, pools, seeds, strict=True)
        ]
        if len(set(each)) == len(pools):
            return each if "{seeds}" in style else list(map(str.__add__, each, counts))
    folders = [pool.runs[0].folder if len(pool.runs) == 1 else common_folder(pool.runs) for pool in pools]
    return [f"{folder}{end}" for folder, end in zip(folders, counts, strict=True)]


def monitored(runs: Sequence[RunContent]) -> str:
    """Which of the monitor's numbers is shown: kNN accuracy, or effective rank where no run has labels."""
    measured = {key for run in runs for point in run.points for key in point}
    return "effective_rank" if "effective_rank" in measured and "monitor" not in measured else "monitor"


def common_folder(runs: Sequence[RunContent]) -> Path:
    """The innermost folder that holds all runs; the current one where that is the root of the file system."""
    parent = Path(os.path.commonpath([run.folder.resolve().parent for run in runs]))
    return Path() if parent == Path(parent.anchor) else Path(os.path.relpath(parent))
