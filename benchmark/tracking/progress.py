"""Progress of runs on a terminal, or as plain lines."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from eval.protocol import find
from methods.base import Phase


class Display:
    """Progress for a person: rounds with the time left, clients, evaluation; plain lines when not on a terminal.

    Args:
        console: where to print, a quiet one on all ranks but the first. total: runs of the suite.
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
        self.runs: TaskID | None = self.bars.add_task("runs", total=total, note="") if total > 1 else None
        self.rounds = self.bars.add_task("rounds", total=None, note="", visible=False)
        self.clients = self.bars.add_task("clients", total=None, note="", visible=False)
        self.others: dict[str, TaskID] = {}
        self.name, self.note, self.last, self.since = "", "", 0.0, 0.0

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, name: str) -> None:
        """A run starts."""
        self.name, self.note = name, ""

    def on_run_start(self, loop: Any) -> None:
        """Counts the rounds that are left; a run that goes on says where."""
        total, done = loop.rounds, loop.round
        self.bars.reset(self.rounds, total=total, completed=done, visible=total > 0, note="", description=self.name)
        if done:
            self.say(f"{self.name}: goes on after round {done}/{total}")

    def end(self, line: str) -> None:
        """A run is over; `line` says what came of it."""
        for task in (self.rounds, self.clients):
            self.bars.update(task, visible=False)
        if self.runs is not None:
            self.bars.advance(self.runs)
        self.say(line)

    def overview(self, done: int, line: str, now: Mapping[str, tuple[int, int]]) -> None:
        """How far the whole is; now: by run at work, the rounds it has played, and how many it has. Bars, or a line."""
        if not self.live:
            self.say(f"{line}; now {', '.join(f'{name} {played}/{total}' for name, (played, total) in now.items())}")
            return
        for name in [name for name in self.others if name not in now]:
            self.bars.remove_task(self.others.pop(name))
        for name, (played, total) in now.items():
            if name not in self.others:
                self.others[name] = self.bars.add_task(name, total=total, completed=played, note="")
            self.bars.update(self.others[name], completed=played)
        if self.runs is not None:
            self.bars.update(self.runs, completed=done)
        self.bars.line = line

    def say(self, line: str) -> None:
        """One line above the bars."""
        self.bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Names what is being done where there is nothing to count."""
        self.bars.update(self.rounds, description=f"{self.name}: {what}", visible=True)
        try:
            yield
        finally:
            self.bars.update(self.rounds, description=self.name)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[str], None]]:
        """Counts steps of something long; what it yields is told the name of each as it begins."""
        begun = 0

        def tell(name: str) -> None:
            nonlocal begun
            self.bars.update(
                self.clients, description=f"{what}: {name}", completed=begun, total=total, visible=True, note=""
            )
            begun += 1
            if not self.live:
                self.say(f"{self.name}: {what}: {name}")

        try:
            yield tell
        finally:
            self.bars.update(self.clients, visible=False)

    def scores(self, name: str, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Every metric of some protocols, the headline of each first."""
        columns = ("protocol", "metric", Column("value", justify="right"), "unit", "better")
        table = Table(*columns, title=Text(name), box=SIMPLE_HEAD)
        for protocol, metrics in scores.items():
            official = find(protocol)
            for metric in sorted(metrics, key=lambda metric: (metric != official.headline, _natural(metric))):
                value = f"{metrics[metric]:,.4g}" if abs(metrics[metric]) < 1e5 else f"{metrics[metric]:,.0f}"
                named = protocol if metric == official.headline else ""
                table.add_row(named, metric, value, official.unit(metric), official.better(metric))
        self.bars.console.print(table)

    def decoding(self, done: int, total: int) -> None:
        """Images read of a dataset that was not cached yet."""
        self.bars.update(self.clients, description="decoding images", completed=done, total=total, visible=done < total)

    def on_phase_start(self, loop: Any, phase: Phase, visits: int) -> None:
        """Counts the clients that this process visits in the phase."""
        self.since = time.monotonic()
        self.bars.reset(self.clients, total=visits, description=f"clients: {phase.name}", visible=True, note="")

    def on_visit_end(self, loop: Any, done: Any) -> None:
        """One client more."""
        before, self.since = self.since, time.monotonic()
        speed = done.images / max(self.since - before, 1e-9)
        self.bars.update(self.clients, advance=1, note=f"{speed:,.0f} images/s")

    def on_round_end(self, loop: Any, row: dict[str, Any]) -> None:
        """One round more; off a terminal a line, at most every five seconds and for the last round."""
        note = f"loss {row['loss']:.4f}" if row["loss"] is not None else ""
        if "monitor" in row:
            self.note = f"  monitor {row['monitor']:.1f} %"
        speed = row["images"] / max(row["seconds"], 1e-9)
        self.bars.update(self.rounds, completed=row["round"], note=f"{note}{self.note}  {speed:,.0f} images/s")
        if not self.live and (time.monotonic() - self.last > 5 or row["round"] == loop.rounds):
            self.last = time.monotonic()
            self.say(f"{self.name}: round {row['round']}/{loop.rounds}  {note}{self.note}  {speed:,.0f} images/s")


class _Bars(Progress):
    """With a line below, which takes no room from the bars."""

    line = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bars, then the line."""
        yield from super().get_renderables()
        if self.line:
            yield Text(self.line)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts k2 before k10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
