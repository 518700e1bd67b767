"""`python -m benchmark.speed [NAME ...] [repetitions=5]`: measures, and writes the page of performance and its data.

With fewer than five repetitions results are only printed: the page has medians of five. `python -m benchmark.speed gpu`
is the half hour on a GPU.
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

MIN_REPETITIONS = 5
"""Repetitions of a result that is written down."""
DOCS = Path("docs", "reference")
"""Folder of the page and of `performance/`."""

MEASUREMENTS = {
    "floor": ("overhead", "A round against a bare loop, and without training"),
    "peers": ("peers", "Whole runs beside Flower and pfl-research, as shipped, on two CPU cores"),
    "views": ("views", "Views: whole batches, eager and compiled, beside torchvision's image by image"),
    "ranks": ("scaling", "One rank more"),
    "scale": ("scaling", "From 10 to 100,000 clients at a cohort of 10"),
    "million": ("scaling", "A million clients of natural sizes at a cohort of 100, killed once and resumed"),
    "terms": ("terms", "Terms of a million clients, and of large images"),
    "memory": ("memory", "Memory of a run, by part"),
    "startup": ("overhead", "Start-up to the first step"),
    "evaluation": ("evaluation", "Evaluation: probes on cached features, beside loaders and scikit-learn"),
    "threads": ("evaluation", "Evaluation: a probe's steps on one thread and on all, on cores that others use"),
    "protocols": ("protocols", "Evaluation: seconds of each protocol beside training's"),
    "libraries": ("libraries", "What libraries have too: seconds and lines of code"),
}
"""Measurement -> the module with a function of this name, and its title."""

TOGETHER = {"evaluation": ("threads",)}
"""Measurement -> others of the same subject, which its name asks for too."""


def main(words: list[str]) -> int:
    """Run the named measurements, or all of them; 2 for an unknown name, 1 if a measurement failed."""
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    if words[:1] == ["gpu"]:
        spin_briefly()
        keep_freed_memory()
        from benchmark.speed.gpu import session

        return session.main(words[1:], console)
    names = [word for word in words if "=" not in word] or list(MEASUREMENTS)
    names = list(dict.fromkeys(each for name in names for each in (name, *TOGETHER.get(name, ()))))
    options = dict(word.partition("=")[::2] for word in words if "=" in word)
    repetitions = options.pop("repetitions", str(MIN_REPETITIONS))
    known = ", ".join(MEASUREMENTS)
    if {"-h", "--help"} & set(words):
        console.print(__doc__, f"Names: {known}; without a name: all of them.", markup=False)
        return 0
    if unknown := [*(name for name in names if name not in MEASUREMENTS), *options]:
        console.print(f"error: unknown {unknown[0]!r}: choose of {known}, and repetitions=N")
        return 2
    if not repetitions.isdigit() or int(repetitions) < 1:
        console.print(f"error: repetitions={repetitions}: give a whole number of at least 1")
        return 2
    spin_briefly()
    keep_freed_memory()  # for all contenders in this process: else a ratio would show only the allocator
    if (load := os.getloadavg()[0]) > 1:
        console.print(f"the machine is busy (load {load:.1f}): ratios vary more, and a goal may be missed for that")
    failed = 0
    for name in names:
        module, title = MEASUREMENTS[name]
        measure = getattr(importlib.import_module(f"benchmark.speed.{module}"), name)
        console.print(f"[bold]{title}[/bold]")
        try:
            lines = measure(int(repetitions), lambda line: console.print(f"  {line}", markup=False))
        except RuntimeError as error:
            console.print(f"error: {error}", markup=False)
            failed = 1
            continue
        console.print(_table(lines))
        if int(repetitions) < MIN_REPETITIONS:
            console.print(f"printed only: docs/reference/performance.md has medians of {MIN_REPETITIONS} repetitions")
            continue
        report.save(DOCS, name, title, lines)
        report.write(DOCS)
    return failed


def _table(lines: list[Line]) -> Table:
    """The lines for a terminal, coloured by whether they meet their goals."""
    table = Table(*report.COLUMNS, box=None, pad_edge=False)
    for line in lines:
        table.add_row(*report.cells(line), style={True: "green", False: "red", None: ""}[line.met])
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
