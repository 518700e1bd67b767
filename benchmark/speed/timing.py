"""Timing: contenders run in turn, because a shared machine's speed varies; the median of their ratios is reported."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Log = Callable[[str], None]
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

    what: name of the quantity. unit: of the value; "x" for a ratio. goal: such as "<= 1.10", if one is set.
    """

    what: str
    value: Spread
    unit: str = "x"
    goal: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None if there is none."""
        if not self.goal:
            return None
        sign, _, bound = self.goal.partition(" ")
        return self.value.median <= float(bound) if sign == "<=" else self.value.median >= float(bound)


def spread(values: Iterable[float]) -> Spread:
    """Of some repetitions."""
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values), len(values))


def interleaved(
    contenders: Mapping[str, Callable[[], Any]], repetitions: int, log: Log, shown: Callable[[Any], float] = float
) -> dict[str, list[Any]]:
    """Name -> the value of each contender in each repetition; all run in turn, in reverse order every other time.

    A contender returns its value (seconds, or units a second), which need not include its set-up.
    shown: the number that stands for a value in the progress lines.
    """
    values: dict[str, list[Any]] = {name: [] for name in contenders}
    names = list(contenders)
    for repetition in range(repetitions):
        for name in names if repetition % 2 == 0 else reversed(names):
            values[name].append(contenders[name]())
        latest = ", ".join(f"{name} {shown(values[name][-1]):.4g}" for name in names)
        log(f"repetition {repetition + 1}/{repetitions}: {latest}")
    return values


def ratio(values: Mapping[str, Sequence[float]], numerator: str, denominator: str) -> Spread:
    """Ratios of two contenders, repetition by repetition."""
    return spread(a / b for a, b in zip(values[numerator], values[denominator], strict=True))


def values_of(values: Mapping[str, Sequence[float]], unit: str, what: str = "{}") -> list[Line]:
    """A line of the values of each contender; what: its name, of that of the contender."""
    return [Line(what.format(name), spread(measured), unit) for name, measured in values.items()]


def seconds(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


ON_CPU = ("accelerator=cpu", "logger=csv")


@contextmanager
def run_command(scenario: object, *overrides: str) -> Iterator[tuple[list[str], Path]]:
    """Command of a FedAvg run without evaluation in a temporary folder, and the folder of its results."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "benchmark", "run", str(scenario), "fedavg", f"output={output}", *overrides]
        command += ["scenario=speed", "row=fedavg", "evaluation.protocols=[]", "evaluation.every=0"]
        yield command, Path(output) / "speed" / "fedavg" / "seed0"


def median_round(folder: Path) -> float:
    """Median seconds of a run's rounds after the first, which warms up."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:])


SAMPLING = 1.0
"""Seconds between two samples of the memory of a process tree: a sample takes milliseconds of a core."""


class Process(NamedTuple):
    """A finished process: its output, and the largest sum of the proportional set sizes of its tree."""

    output: str
    peak_mib: float


def run_process(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Run a command to its end, sampling the memory of it and all its children.

    The proportional set size divides a page among the processes that map it, so the sum counts no page twice. A process
    that moves to another session (a daemon) is still counted, because it inherits an environment variable.

    Raises RuntimeError: the command failed; with the end of its output.
    """
    key, mark = "FULCRUM_MEASURED", f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, **(env or {}), key: mark}
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    child = subprocess.Popen(command, env=environment, cwd=cwd, stdout=pipe, stderr=merged, text=True)
    samples = [0.0]
    with _repeat(lambda: samples.append(_proportional_set_size(key, mark)), SAMPLING):
        output, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}: {output[-2000:]}")
    return Process(output, max(samples))


@contextmanager
def line_times(file: Path) -> Iterator[list[float]]:
    """Times at which each line was added to a file, in seconds from now, to 10 ms; complete after the block."""
    start, times = time.time(), list[float]()

    def count_lines() -> None:
        lines = file.read_bytes().count(b"\n") if file.exists() else 0
        times.extend([time.time() - start] * (lines - len(times)))

    with _repeat(count_lines, 0.01):
        yield times
    count_lines()


@contextmanager
def _repeat(function: Callable[[], object], interval: float) -> Iterator[None]:
    """Call a function in a thread every so many seconds until the block is left."""
    stopped = threading.Event()

    def loop() -> None:
        while not stopped.wait(interval):
            function()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _proportional_set_size(key: str, mark: str) -> float:
    """MiB of all processes that have an environment variable of this value."""
    import psutil  # of the dev extra

    total = 0
    for process in psutil.process_iter():
        try:
            if process.environ().get(key) == mark:
                total += process.memory_full_info().pss
        except psutil.Error:  # it has just ended, or belongs to another user
            continue
    return total / 2**20
