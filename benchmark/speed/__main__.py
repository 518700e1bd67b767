"""`python -m benchmark.speed [NAME ...] [repetitions=5]`: measures, and writes docs/performance/ and its page."""

import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmark.speed import page
from benchmark.speed.timing import Line
from benchmark.starting import keep_freed_memory

NAMES = ("floor", "peers", "views", "precision", "ranks", "scale", "terms", "startup", "evaluation")


def main(words: list[str]) -> int:
    """Measures what is named, or everything; 2 for an unknown name, 1 where a measurement failed."""
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    names = [word for word in words if "=" not in word] or list(NAMES)
    given = dict(word.partition("=")[::2] for word in words if "=" in word)
    repetitions = given.pop("repetitions", "5")
    if unknown := [*(name for name in names if name not in NAMES), *given]:
        console.print(f"error: unknown {unknown[0]!r}: choose of {', '.join(NAMES)}, and repetitions=N")
        return 2
    if not repetitions.isdigit() or int(repetitions) < 1:
        console.print(f"error: repetitions={repetitions}: give a whole number of at least 1")
        return 2
    keep_freed_memory()  # for everything that runs in this process, ours or not: else ratios would tell of it alone
    failed = 0
    for name in names:
        measurement = importlib.import_module(f"benchmark.speed.{name}")
        console.print(f"[bold]{measurement.TITLE}[/bold]")
        try:
            lines = measurement.measure(int(repetitions), lambda line: console.print(f"  {line}", markup=False))
        except RuntimeError as error:
            console.print(f"error: {error}", markup=False)
            failed = 1
            continue
        page.keep(Path("docs"), name, measurement.TITLE, lines)
        page.write(Path("docs"))
        console.print(table(lines))
    return failed


def table(lines: list[Line]) -> Table:
    """The lines for a terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("", "median", "from - to", "unit", "goal"):
        shown.add_column(column, justify="left" if column in ("", "unit") else "right")
    for line in lines:
        colour = {True: "green", False: "red", None: "default"}[line.met]
        low, high = page.number(line.value.low), page.number(line.value.high)
        shown.add_row(line.what, f"[{colour}]{page.number(line.value.median)}", f"{low} - {high}", line.unit, line.goal)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
