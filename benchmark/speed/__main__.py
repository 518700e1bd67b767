"""`python -m benchmark.speed [NAME ...] [repetitions=5]`: measures, and writes docs/performance/ and its page.

Fewer than five repetitions are shown only: the page has medians of five.
"""

import importlib
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmark.runtime import keep_freed_memory, spin_briefly
from benchmark.speed import report
from benchmark.speed.timing import Line

ENOUGH = 5
"""Repetitions of a number that is written down."""

NAMES = {
    "floor": "overhead",
    "peers": "peers",
    "views": "views",
    "precision": "precision",
    "ranks": "scaling",
    "scale": "population",
    "terms": "microbenchmarks",
    "startup": "startup",
    "evaluation": "evaluation",
    "monitor": "monitor",
}
"""Measurement -> its module."""


def main(words: list[str]) -> int:
    """Measures what is named, or everything; 2 for an unknown name, 1 where a measurement failed."""
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    names = [word for word in words if "=" not in word] or list(NAMES)
    given = dict(word.partition("=")[::2] for word in words if "=" in word)
    repetitions = given.pop("repetitions", str(ENOUGH))
    if {"-h", "--help"} & set(words):
        console.print(__doc__, f"Names: {', '.join(NAMES)}; none: all of them.", markup=False)
        return 0
    if unknown := [*(name for name in names if name not in NAMES), *given]:
        console.print(f"error: unknown {unknown[0]!r}: choose of {', '.join(NAMES)}, and repetitions=N")
        return 2
    if not repetitions.isdigit() or int(repetitions) < 1:
        console.print(f"error: repetitions={repetitions}: give a whole number of at least 1")
        return 2
    spin_briefly()
    keep_freed_memory()  # for everything that runs in this process, ours or not: else ratios would tell of it alone
    if (load := os.getloadavg()[0]) > 1:
        console.print(f"the machine is busy (load {load:.1f}): ratios will wander, and goals may be missed for that")
    failed = 0
    for name in names:
        measurement = importlib.import_module(f"benchmark.speed.{NAMES[name]}")
        console.print(f"[bold]{measurement.TITLE}[/bold]")
        try:
            lines = measurement.measure(int(repetitions), lambda line: console.print(f"  {line}", markup=False))
        except RuntimeError as error:
            console.print(f"error: {error}", markup=False)
            failed = 1
            continue
        console.print(table(lines))
        if int(repetitions) < ENOUGH:
            console.print(f"shown only: docs/performance.md has medians of {ENOUGH} repetitions")
            continue
        report.keep(Path("docs"), name, measurement.TITLE, lines)
        report.write(Path("docs"))
    return failed


def table(lines: list[Line]) -> Table:
    """The lines for a terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("", "median", "from - to", "unit", "goal"):
        shown.add_column(column, justify="left" if column in ("", "unit") else "right")
    for line in lines:
        colour = {True: "green", False: "red", None: "default"}[line.met]
        low, high = report.format_number(line.value.low), report.format_number(line.value.high)
        shown.add_row(
            line.what, f"[{colour}]{report.format_number(line.value.median)}", f"{low} - {high}", line.unit, line.goal
        )
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
