"""Progress of runs: bars on a terminal, plain lines elsewhere."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from benchmark.execution.base import VisitResult
from benchmark.federation.callbacks import Callback
from benchmark.federation.divergence import collapse
from benchmark.federation.loop import FederatedLoop
from eval.official import find
from methods.base import Phase

LINE_INTERVAL = 5.0
"""Seconds between two lines of progress where the output is not a terminal."""


class Display(Callback):
    """Rounds with the time left, clients and evaluation, as bars on a terminal and as lines elsewhere.

    Args:
        console: to print on, a quiet one on all ranks but the first. total: runs of the suite.
    """

    def __init__(self, console: Console, total: int = 1) -> None:
        self.console, self.live = console, console.is_terminal and not console.quiet
        self.bars = _Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.runs = self.bars.add_task("runs", total=total, note="", visible=total > 1)
        self.rounds, self.clients = (
            self.bars.add_task(name, total=None, note="", visible=False) for name in ("rounds", "clients")
        )
        self.jobs: dict[str, TaskID] = {}
        self.name, self.monitor, self.last_line, self.last_visit = "", "", 0.0, 0.0

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, name: str) -> None:
        """Starts the progress of a run."""
        self.name, self.monitor = name, ""

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Counts the remaining rounds; a resumed run has a line with its last round."""
        total, done = loop.rounds, loop.round
        self.bars.reset(self.rounds, total=total, completed=done, visible=total > 0, note="", description=self.name)
        if done:
            self.print(f"{self.name}: resumes after round {done}/{total}")

    def end(self, line: str) -> None:
        """Ends the progress of a run; `line` is its outcome."""
        for task in (self.rounds, self.clients):
            self.bars.update(task, visible=False)
        self.bars.advance(self.runs)
        self.print(line)

    def overview(self, done: int, line: str, running: Mapping[str, tuple[int, int]]) -> None:
        """Progress of a campaign: jobs done, a status line, and by running job its rounds done and planned."""
        if not self.live:
            rounds = ", ".join(f"{name} {completed}/{total}" for name, (completed, total) in running.items())
            self.print(f"{line}; now {rounds}")
            return
        for name in [name for name in self.jobs if name not in running]:
            self.bars.remove_task(self.jobs.pop(name))
        for name, (completed, total) in running.items():
            if name not in self.jobs:
                self.jobs[name] = self.bars.add_task(name, total=total, completed=completed, note="")
            self.bars.update(self.jobs[name], completed=completed)
        self.bars.update(self.runs, completed=done)
        self.bars.line = line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ends the thread that draws the bars, so that this process may be forked, and starts another."""
        self.bars.stop()
        try:
            yield
        finally:
            self.bars.start()

    def print(self, line: str) -> None:
        """Prints one line above the bars."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def print_progress(self, line: str, *, always: bool) -> None:
        """Where there are no bars, prints a line of the run; unless `always`, not within `LINE_INTERVAL` of another."""
        if not self.live and (always or time.monotonic() - self.last_line > LINE_INTERVAL):
            self.last_line = time.monotonic()
            self.print(f"{self.name}: {line}")

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Names an activity that has no count."""
        self.bars.update(self.rounds, description=f"{self.name}: {activity}", visible=True)
        try:
            yield
        finally:
            self.bars.update(self.rounds, description=self.name)

    @contextmanager
    def counting(self, activity: str, total: int) -> Iterator["Steps"]:
        """Counts the steps of a long activity."""
        try:
            yield Steps(self, activity, total)
        finally:
            self.bars.update(self.clients, visible=False)

    def scores(self, name: str, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Prints every metric of some protocols, the headline of each first; a run itself ends with one line."""
        columns = ("protocol", "metric", Column("value", justify="right"), "unit", "better")
        table = Table(*columns, box=SIMPLE_HEAD)
        for id, metrics in scores.items():
            protocol = find(id)
            label = id
            first = protocol.leading(metrics)
            for metric in sorted(metrics, key=lambda metric: (metric != first, _natural(metric))):
                value = f"{metrics[metric]:,.4g}" if abs(metrics[metric]) < 1e5 else f"{metrics[metric]:,.0f}"
                table.add_row(label, metric, value, protocol.unit(metric), protocol.better(metric))
                label = ""
        self.print(f"{name}:")  # a table's title would be broken to the width of the table
        self.console.print(table)

    def decoding(self, done: int, total: int) -> None:
        """Counts the images read of a data set that is not cached yet."""
        self.bars.update(self.clients, description="decoding images", completed=done, total=total, visible=done < total)

    def on_phase_start(self, loop: FederatedLoop, phase: Phase, visits: int) -> None:
        """Counts the clients that this rank visits in the phase."""
        self.last_visit = time.monotonic()
        self.bars.reset(self.clients, total=visits, description=f"clients: {phase.name}", visible=True, note="")

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Advances the clients."""
        before, self.last_visit = self.last_visit, time.monotonic()
        speed = result.images / max(self.last_visit - before, 1e-9)
        self.bars.update(self.clients, advance=1, note=f"{speed:,.0f} images/s")

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Advances the rounds; elsewhere a line, at most every `LINE_INTERVAL` seconds and for the last round."""
        loss = f"loss {line['loss']:.4f}" if line["loss"] is not None else ""
        if (sign := collapse(line)) is not None:
            loss = f"{loss} (collapsed? {sign})"
        if "monitor" in line:
            self.monitor = f"  monitor {line['monitor']:.1f} %"
        speed = f"{line['images'] / max(line['seconds'], 1e-9):,.0f} images/s"
        self.bars.update(self.rounds, completed=line["round"], note=f"{loss}{self.monitor}  {speed}")
        outcome = f"round {line['round']}/{loop.rounds}  {loss}{self.monitor}  {speed}"
        self.print_progress(outcome, always=line["round"] == loop.rounds)


class Steps:
    """Steps of a long activity on a display; called with the name of each as it begins."""

    def __init__(self, display: Display, activity: str, total: int) -> None:
        self.display, self.activity, self.total = display, activity, total
        self.started, self.name = 0, ""

    def __call__(self, name: str) -> None:
        """Starts a step."""
        self.started, self.name = self.started + 1, name
        self._update(0, "", always=True)

    def progress(self, fraction: float) -> None:
        """Moves the bar to the fraction of the step that is done; elsewhere a line every `LINE_INTERVAL` seconds."""
        self._update(fraction, f"{100 * fraction:.0f} %")

    def _update(self, fraction: float, note: str, *, always: bool = False) -> None:
        step, bars = f"{self.activity}: {self.name}", self.display.bars
        done = self.started - 1 + fraction
        bars.update(self.display.clients, description=step, completed=done, total=self.total, visible=True, note=note)
        if fraction < 1:
            self.display.print_progress(f"{step} {note}".rstrip(), always=always)


class _Bars(Progress):
    """Progress bars above a status line, below the boards so far."""

    line = ""
    boards: Sequence[RenderableType] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from self.boards
        yield from super().get_renderables()
        if self.line:
            yield Text(self.line)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts k2 before k10."""
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)]
