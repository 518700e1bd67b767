"""What calculates a number of ours, beside a published one, without a run of the paper's setting.

A cell's `computed` is the name of a computation, `kind/name`: a function of the cell and of all published numbers. It
returns our values, by seed where there are seeds; for a claim one value for each comparison, 1 where it contradicts
the claim. Computations of a paper's own numbers are in `own_numbers.py`, those of the suite's code in
`benchmark.audit.computations`.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from leaderboards import store
from leaderboards.papers.tables import Published
from leaderboards.schema import RecordError

FILE = "measured.json"
"""In the leaderboards' folder: place of a published cell that needs no run -> our values."""
TOLERANCE = 1e-9
"""Largest relative difference of a value that did not move: between machines sums differ in their last digits."""

KINDS = {
    "own": "the paper's own numbers, added up and compared",
    "formula": "a paper's formula, evaluated",
    "partition": "partitions, drawn and counted",
    "bytes": "messages of one round, counted",
    "costs": "operations and memory of a round, counted",
    "simulated": "simulations of minutes, not of the paper's data",
}
"""First part of a computation's name -> what its numbers are from, in words."""

Printed = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Place of a table, `fedx, table 1` -> row -> column -> the printed number."""
Compute = Callable[[Published, Printed], list[float]]


class Computation(NamedTuple):
    """A computation. stored: it takes minutes, so that its committed values are only measured again when asked for."""

    compute: Compute
    stored: bool


COMPUTATIONS: dict[str, Computation] = {}


def computation(name: str, stored: bool = False) -> Callable[[Compute], Compute]:
    """Enters a function under this name."""
    assert name.partition("/")[0] in KINDS, name

    def enter(function: Compute) -> Compute:
        COMPUTATIONS[name] = Computation(function, stored)
        return function

    return enter


def printed(cells: Iterable[Published]) -> Printed:
    """All published numbers, without those in words."""
    numbers: dict[str, dict[str, dict[str, float]]] = {}
    for cell in cells:
        if not isinstance(cell.value, str):
            rows = numbers.setdefault(f"{cell.paper}, {cell.where}", {})
            rows.setdefault(cell.row, {})[cell.column] = cell.value
    return numbers


def of(cell: Published) -> Computation:
    """The computation of a cell. Raises RecordError: none has its name."""
    if cell.computed not in COMPUTATIONS:
        near = difflib.get_close_matches(cell.computed, COMPUTATIONS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise RecordError(f"{cell.place}: there is no computation {cell.computed!r}{hint}")
    return COMPUTATIONS[cell.computed]


def measure(cells: Iterable[Published], stored: bool = False) -> dict[str, list[float]]:
    """Place of each computed cell -> our values; of the computations whose values are stored, or of all others."""
    cells = list(cells)
    numbers, chosen = printed(cells), [cell for cell in cells if cell.computed]
    return {cell.place: of(cell).compute(cell, numbers) for cell in chosen if of(cell).stored is stored}


def read(file: Path) -> dict[str, list[float]]:
    """The committed values by place; empty without the file. Raises RecordError where it holds something else."""
    if not file.exists():
        return {}
    return store.read_table(file, dict[str, list[float]], "measured cells", "regress capture=true")


def write(file: Path, measured: Mapping[str, list[float]]) -> None:
    """Writes the values in the order of their places, a cell a line."""
    lines = [f" {json.dumps(place)}: {json.dumps(values)}" for place, values in sorted(measured.items())]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
