"""How speed is measured: contenders run in turn, each repetition gives a ratio, and medians come with their spread.

A machine shared with others is slower in one minute than in the next, so an absolute time says little. Contenders that
run one after another within a repetition meet the same minute; what is reported is the median of their ratios.
"""

import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]
"""Prints one line of progress."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some repetitions."""

    median: float
    low: float
    high: float
    repetitions: int


@dataclass(frozen=True)
class Line:
    """One line of a table.

    what: is measured. unit: of the value; "x" for a ratio. goal: such as "<= 1.10", where one is set.
    """

    what: str
    value: Spread
    unit: str = "x"
    goal: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median keeps the goal; None where there is none."""
        if not self.goal:
            return None
        sign, _, bound = self.goal.partition(" ")
        return self.value.median <= float(bound) if sign == "<=" else self.value.median >= float(bound)


def spread(values: Iterable[float]) -> Spread:
    """Median and extremes."""
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values), len(values))


def interleaved(contenders: Mapping[str, Callable[[], float]], repetitions: int, say: Say) -> dict[str, list[float]]:
    """Name -> what each contender returned in each repetition, all of them in turn, every other time backwards.

    A contender returns its own figure (seconds, or units a second), so that it may leave its set-up out.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for repetition in range(repetitions):
        for name in names if repetition % 2 == 0 else reversed(names):
            figures[name].append(contenders[name]())
        say(f"repetition {repetition + 1}/{repetitions}: " + ", ".join(f"{n} {figures[n][-1]:.4g}" for n in names))
    return figures


def ratio(figures: Mapping[str, Sequence[float]], one: str, other: str) -> Spread:
    """`one` over `other`, repetition by repetition."""
    return spread(a / b for a, b in zip(figures[one], figures[other], strict=True))


def seconds(function: Callable[[], object]) -> float:
    """Seconds one call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def a_round(folder: Path) -> float:
    """The median seconds of a run's rounds after the first, which warms up."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:])


SAMPLING = 1.0
"""Seconds between two looks at the memory of a process tree: looking costs milliseconds of a core."""


@dataclass(frozen=True)
class Process:
    """A finished process: its output, its seconds, and the largest sum of the proportional set sizes of its tree."""

    output: str
    seconds: float
    peak_mib: float


def process(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Runs a command to its end, sampling the memory of it and all its children.

    The proportional set size shares a page among the processes that map it, so the sum counts no page twice. Whatever
    moves to another session (a daemon) is still found, through the environment it inherits.

    Raises:
        RuntimeError: the command failed; with the end of its output.
    """
    mark = f"FULCRUM_MEASURED={os.getpid()}-{time.monotonic_ns()}"
    key, _, value = mark.partition("=")
    began = time.perf_counter()
    child = subprocess.Popen(
        list(command),
        env={**os.environ, **(env or {}), key: value},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLING):
            peak[0] = max(peak[0], _proportional(mark.encode()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    output, _ = child.communicate()
    took = time.perf_counter() - began
    over.set()
    watcher.join()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}: {output[-2000:]}")
    return Process(output, took, peak[0])


@contextmanager
def arrivals(file: Path) -> Iterator[list[float]]:
    """When each line of a file came, seconds from now, complete once the block is left; looks every 10 ms."""
    began, ends, over = time.time(), list[float](), threading.Event()

    def look() -> None:
        lines = file.read_bytes().count(b"\n") if file.exists() else 0
        ends.extend([time.time() - began] * (lines - len(ends)))

    def watch() -> None:
        while not over.wait(0.01):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield ends
    finally:
        over.set()
        watcher.join()
        look()


def _proportional(mark: bytes) -> float:
    """MiB of all processes whose environment holds the mark."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            rollup = (folder / "smaps_rollup").read_text()
        except OSError:  # it has just ended, or is somebody else's
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024
