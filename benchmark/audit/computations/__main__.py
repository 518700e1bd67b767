"""Measures again, for minutes, the published numbers whose values are stored: `make computed`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmark.audit import computations
from benchmark.tracking.progress import Display
from leaderboards.papers import computed, tables


def main(names: Sequence[str]) -> int:
    """Measures the stored computations of these names, or all, one after the other, and writes each when it is done."""
    file, cells = Path("leaderboards") / computed.FILE, tables.collect()
    for cell in (each for each in cells if each.computed and computations.of(each).stored):
        if names and cell.computed not in names:
            continue
        with Display(Console()) as display, display.during(cell.place):
            values = computations.of(cell).compute(cell, computed.printed(cells))
        computed.write(file, computed.read(file) | {cell.place: values})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
