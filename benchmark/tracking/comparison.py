"""Runs side by side: their scores, curves, costs and settings, read from their folders alone."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from omegaconf import DictConfig
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from benchmark.configuration.compose import load
from benchmark.configuration.identity import settings
from benchmark.errors import ConfigError
from benchmark.tracking.jsonl import read_lines
from benchmark.tracking.record import curve
from eval.protocol import PROTOCOLS, EvalError, Protocol, find
from leaderboards import store
from leaderboards.encoders import WORST, count, shown

MOST_ROUNDS = 8
"""Largest number of rounds in the table of the monitor's scores."""
MONITORS = {"monitor": "kNN on held-out training images (%)", "effective_rank": "effective rank (dimensions)"}
"""The monitor's number -> what it is."""
BEST = "*"
"""Mark of the best score of a row, readable without colours."""


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

    @property
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

    def monitor(self, key: str) -> dict[int, float]:
        """Round -> one of the monitor's numbers."""
        return {int(point["round"]): point[key] for point in self.points if key in point}


def read_run(folder: Path) -> RunContent:
    """The content of a run folder, finished or not.

    Raises:
        ConfigError: it is no run folder, or a line of its rounds cannot be read.
        RecordError: its record cannot be read.
    """
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{folder} is not a run folder: it has no config.yaml; runs live in runs/<scenario>/<row>/seed<k>"
        )
    config = load(file)
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


def names(runs: Sequence[RunContent]) -> list[str]:
    """The shortest names that tell the runs apart: of rows, with seeds, with scenarios, or else the folders."""
    for style in ("{row}", "{row} seed {seed}", "{scenario} {row}", "{scenario} {row} seed {seed}"):
        each = [style.format(row=run.config.row, seed=run.config.seed, scenario=run.config.scenario) for run in runs]
        if len(set(each)) == len(runs):
            return each
    return [str(run.folder) for run in runs]


def tables(runs: Sequence[RunContent], labels: Sequence[str]) -> list[Table]:
    """Scores, the monitor over rounds, costs, and settings that differ; a table without a row is left out."""
    made = {
        f"scores, the best marked {BEST}": (["protocol", "metric", "better"], _score_rows(runs)),
        f"monitor: {MONITORS[monitored(runs)]}": (["round"], _monitor_rows(runs)),
        "costs": (["", "unit"], _cost_rows(runs)),
        "settings that differ": (["key"], _setting_rows(runs)),
    }
    filled = []
    for title, (columns, rows) in made.items():
        table = Table(*(Column(name, overflow="fold") for name in columns), title=title, box=SIMPLE_HEAD)
        table.title_justify = "left"
        for label in labels:
            table.add_column(label, justify="right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        if table.row_count:
            filled.append(table)
    return filled


def _score_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """Every metric that a run has, the headline of each protocol first; of a protocol that no longer exists, none."""
    measured, several = {protocol for run in runs for protocol in run.scores}, any(run.encoders > 1 for run in runs)
    for protocol in [*(known for known in PROTOCOLS if known in measured), *sorted(measured - PROTOCOLS.keys())]:
        try:
            headline, directions = find(protocol).headline, find(protocol).better
        except EvalError:
            headline, directions = "", Protocol("", dict, "").better
        metrics = dict.fromkeys(metric for run in runs for metric in run.scores.get(protocol, {}))
        for metric in sorted(metrics, key=lambda metric: (metric != headline, metric)):
            name, better = metric, directions(metric)
            if several and metric.startswith("accuracy"):
                name = f"{metric.removesuffix(WORST)}, {'worst' if metric.endswith(WORST) else 'mean'} of encoders"
            first = protocol if metric == headline else ""
            yield [first, name, better, *_marked([run.score(protocol, metric) for run in runs], better)]


def _marked(values: Sequence[float | None], better: str = "") -> list[str]:
    """The values as text, with a mark at the best of several; a run without a value has none."""
    present = [value for value in values if value is not None]
    best = {"higher": max, "lower": min}[better](present) if better and len(present) > 1 else None
    return ["" if value is None else f"{value:,.4g}{BEST if value == best else ''}" for value in values]


def monitored(runs: Sequence[RunContent]) -> str:
    """Which of the monitor's numbers is shown: kNN accuracy, or effective rank where no run has labels."""
    measured = {key for run in runs for point in run.points for key in point}
    return "effective_rank" if "effective_rank" in measured and "monitor" not in measured else "monitor"


def _monitor_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """The monitor's number at some of the rounds at which a run was monitored, the last one among them."""
    curves = [run.monitor(monitored(runs)) for run in runs]
    rounds = sorted({round for values in curves for round in values})
    step = -(-len(rounds) // MOST_ROUNDS) if rounds else 1
    for round in reversed(rounds[::-1][::step]):
        yield [str(round), *_marked([values.get(round) for values in curves])]


def _cost_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """Rounds, images, bytes and seconds."""
    yield ["rounds", "", *(f"{len(run.history)} of {run.config.federation.rounds}" for run in runs)]
    for name, unit, key, scale, form in (
        ("images of training", "", "images", 1, ",.0f"),
        ("sent by clients", "MB", "bytes_up", 1e6, ",.1f"),
        ("sent to clients", "MB", "bytes_down", 1e6, ",.1f"),
        ("training", "s", "seconds", 1, ",.1f"),
    ):
        each = [[line[key] for line in run.history] for run in runs]
        totals = [sum(sum(spent.values()) if isinstance(spent, Mapping) else spent for spent in run) for run in each]
        yield [name, unit, *(f"{total / scale:{form}}" for total in totals)]
    if any(run.encoders > 1 for run in runs):
        yield ["encoders scored", "", *(f"{run.encoders}" if run.encoders else "" for run in runs)]
    evaluation = (f"{run.record['seconds']['evaluation']:,.1f}" if run.scores else "" for run in runs)
    yield ["evaluation", "s", *evaluation]


def _setting_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """The settings that define a run and are not the same in all."""
    each, unset = [settings(run.config) for run in runs], object()

    def text(value: Any) -> str:
        if isinstance(value, str):  # of a class by import path its name
            return value.rpartition(".")[2] if "." in value and "/" not in value and " " not in value else value
        return "" if value is unset else shortened(value)

    for key in sorted({key for values in each for key in values}):
        found = [values.get(key, unset) for values in each]
        if any(value != found[0] for value in found):
            yield [key, *map(text, found)]


def common_folder(runs: Sequence[RunContent]) -> Path:
    """The innermost folder that holds all runs; the current one where that is the root of the file system."""
    parent = Path(os.path.commonpath([run.folder.resolve().parent for run in runs]))
    return Path() if parent == Path(parent.anchor) else Path(os.path.relpath(parent))
