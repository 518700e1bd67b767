"""Runs side by side: their scores, curves, costs and settings, read from their folders alone."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from eval.protocol import PROTOCOLS, EvalError, find
from leaderboards import store
from leaderboards.encoders import WORST, count, shown
from leaderboards.rank import finished

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
    def finished(self) -> bool:
        """Whether the run has its scores."""
        return bool(self.record) and finished(self.record)  # type: ignore[arg-type] # it is only read

    @property
    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Protocol -> metric -> value, as they are shown."""
        return shown(dict(self.record))

    @property
    def encoders(self) -> int:
        """How many encoders were scored."""
        return count(dict(self.record))


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
    styles: tuple[Callable[[DictConfig], str], ...] = (
        lambda config: config.row,
        lambda config: f"{config.row} seed {config.seed}",
        lambda config: f"{config.scenario} {config.row}",
        lambda config: f"{config.scenario} {config.row} seed {config.seed}",
    )
    for style in styles:
        if len(set(each := [style(run.config) for run in runs])) == len(runs):
            return each
    return [str(run.folder) for run in runs]


def tables(runs: Sequence[RunContent], labels: Sequence[str]) -> list[Table]:
    """Scores, the monitor over rounds, costs, and settings that differ; a table without a row is left out."""
    made = [
        _table("scores, the best marked " + BEST, ["protocol", "metric", "better"], labels, _score_rows(runs)),
        _table(f"monitor: {MONITORS[monitored(runs)]}", ["round"], labels, _monitor_rows(runs)),
        _table("costs", ["", "unit"], labels, _cost_rows(runs)),
        _table("settings that differ", ["key"], labels, _setting_rows(runs)),
    ]
    return [table for table in made if table.row_count]


def _table(title: str, columns: Sequence[str], labels: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    runs = [Column(label, justify="right", overflow="fold") for label in labels]
    table = Table(
        *(Column(name, overflow="fold") for name in columns), *runs, title=title, title_justify="left", box=SIMPLE_HEAD
    )
    for row in rows:
        table.add_row(*row)
    return table


def _score_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """Every metric that a run has, the headline of each protocol first."""
    measured, several = {protocol for run in runs for protocol in run.scores}, any(run.encoders > 1 for run in runs)
    for protocol in [*(known for known in PROTOCOLS if known in measured), *sorted(measured - PROTOCOLS.keys())]:
        headline, better = _directions(protocol)
        metrics = dict.fromkeys(metric for run in runs for metric in run.scores.get(protocol, {}))
        for metric in sorted(metrics, key=lambda metric: (metric != headline, metric)):
            values = [run.scores.get(protocol, {}).get(metric) for run in runs]
            names = [_metric_name(metric, several), better(metric)]
            yield [protocol if metric == headline else "", *names, *_marked(values, better(metric))]


def _metric_name(metric: str, several: bool) -> str:
    """A metric in words. several: whether a run has several encoders: an accuracy is their mean, or of the worst."""
    if not several or not metric.startswith("accuracy"):
        return metric
    return f"{metric.removesuffix(WORST)}, {'worst' if metric.endswith(WORST) else 'mean'} of encoders"


def _directions(protocol: str) -> tuple[str, Callable[[str], str]]:
    """The headline of a protocol and the better direction of its metrics; of a protocol that no longer exists, none."""
    try:
        return find(protocol).headline, find(protocol).better
    except EvalError:
        return "", lambda metric: "higher" if metric.startswith("accuracy") else ""


def _marked(values: Sequence[float | None], better: str) -> list[str]:
    """The values as text, with a mark at the best of several; a run without a value has none."""
    present = [value for value in values if value is not None]
    best = {"higher": max, "lower": min}[better](present) if better and len(present) > 1 else None
    return ["" if value is None else f"{value:,.4g}{BEST if value == best else ''}" for value in values]


def monitored(runs: Sequence[RunContent]) -> str:
    """Which of the monitor's numbers is shown: kNN accuracy, or effective rank where no run has labels."""
    points = [point for run in runs for point in run.points]
    unlabelled = any("effective_rank" in point for point in points) and not any("monitor" in point for point in points)
    return "effective_rank" if unlabelled else "monitor"


def _monitor_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """The monitor's number at some of the rounds at which a run was monitored, the last one among them."""
    key = monitored(runs)
    curves = [{int(point["round"]): point[key] for point in run.points if key in point} for run in runs]
    rounds = sorted({round for values in curves for round in values})
    step = -(-len(rounds) // MOST_ROUNDS) if rounds else 1
    for round in reversed(rounds[::-1][::step]):
        yield [str(round), *_marked([values.get(round) for values in curves], "")]


def _cost_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """Rounds, images, bytes and seconds."""

    def total(run: RunContent, key: str) -> float:
        return sum(sum(line[key].values()) if isinstance(line[key], Mapping) else line[key] for line in run.history)

    yield ["rounds", "", *(f"{len(run.history)} of {run.config.federation.rounds}" for run in runs)]
    yield ["images of training", "", *(f"{total(run, 'images'):,.0f}" for run in runs)]
    yield ["sent by clients", "MB", *(f"{total(run, 'bytes_up') / 1e6:,.1f}" for run in runs)]
    yield ["sent to clients", "MB", *(f"{total(run, 'bytes_down') / 1e6:,.1f}" for run in runs)]
    yield ["training", "s", *(f"{total(run, 'seconds'):,.1f}" for run in runs)]
    if any(run.encoders > 1 for run in runs):
        yield ["encoders scored", "", *(f"{run.encoders}" if run.encoders else "" for run in runs)]
    evaluation = [run.record["seconds"]["evaluation"] if run.scores else None for run in runs]
    yield ["evaluation", "s", *("" if seconds is None else f"{seconds:,.1f}" for seconds in evaluation)]


def _setting_rows(runs: Sequence[RunContent]) -> Iterable[list[str]]:
    """The settings that define a run and are not the same in all."""
    each = [settings(run.config) for run in runs]
    for key in sorted({key for values in each for key in values}):
        cells = [_setting(values[key]) if key in values else "" for values in each]
        if any(values.get(key) != each[0].get(key) or (key in values) != (key in each[0]) for values in each):
            yield [key, *cells]


def _setting(value: Any) -> str:
    """A setting as a short text; of a class by import path its name."""
    if isinstance(value, str):
        return value.rpartition(".")[2] if "." in value and "/" not in value and " " not in value else value
    return shortened(value)


def common_folder(runs: Sequence[RunContent]) -> Path:
    """The innermost folder that holds all runs; the current one where that is the root of the file system."""
    parent = Path(os.path.commonpath([run.folder.resolve().parent for run in runs]))
    return Path() if parent == Path(parent.anchor) else Path(os.path.relpath(parent))
