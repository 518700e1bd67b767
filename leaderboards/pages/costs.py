"""The cost sheet: what a client pays under each method, read from JSON and written into its page.

`benchmark.audit.cost_sheet` makes the sheet from the methods.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards import store
from leaderboards.markdown import in_bytes, replace_between, table_lines, three_digits
from leaderboards.sources import labelled

SHEET = "costs.json"
"""The sheet's file in the leaderboards' folder."""
COLUMNS = (
    *("method", "encoder", "networks of", "images", "batch", "GFLOP a round", "memory", "networks, kept, received"),
    *("gradients", "optimiser", "activations", "kept between rounds", "bytes up", "bytes down"),
)


@dataclass(frozen=True)
class Line:
    """What a client pays under one method over one encoder.

    scenario: of its setting. images: of the client; batch: of its training. flops: operations of a round, their mean;
    flops_max: in the round that has most. memory: bytes at most at once; weights, gradients, optimizer, activations:
    their largest parts. kept: bytes that stay between rounds. up, down: bytes of a round's messages, their mean.
    """

    name: str
    encoder: str
    scenario: str
    images: int
    batch: int
    flops: float
    flops_max: float
    memory: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    kept: int
    up: float
    down: float


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Sheet:
    """All methods and encoders."""

    lines: tuple[Line, ...]


def read(path: str | Path) -> Sheet:
    """The sheet in a file. Raises RecordError where the file is missing or holds no sheet."""
    return store.read_table(path, Sheet, "cost sheet", "costs")


def filled(page: str, sheet: Sheet) -> str:
    """docs/reference/cost-sheet.md with the sheet's table between its marks."""
    return replace_between(page, "costs", "\n".join(table_lines(COLUMNS, map(cells, sheet.lines), "lll" + "r" * 11)))


def table(lines: Iterable[Line]) -> Table:
    """Lines for the terminal, side by side."""
    name, *rows = zip(COLUMNS, *map(cells, lines), strict=True)
    result = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for heading in name:
        result.add_column(Text(heading), overflow="fold")
    for row in rows:
        result.add_row(*map(Text, row))
    return result


def cells(line: Line) -> tuple[str, ...]:
    """A line as text, by column."""
    mean, most = (three_digits(each / 1e9) for each in (line.flops, line.flops_max))
    sizes = (line.memory, line.weights, line.gradients, line.optimizer, line.activations, line.kept, line.up, line.down)
    flops = mean if mean == most else f"{mean} (at most {most})"
    counts = (f"{line.images:,}", f"{line.batch:,}")
    return (labelled(line.name, line.name), line.encoder, line.scenario, *counts, flops, *map(in_bytes, sizes))
