"""Our numbers on the methods' pages, between two marks; what stands around them is written by hand."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from leaderboards.comparisons import Difference, differences
from leaderboards.markdown import between, fill, line
from leaderboards.pages import board as render
from leaderboards.pages.curves import COMPARED
from leaderboards.rank import FLOOR, HEADLINE, Row, board
from leaderboards.schema import Record

START = "<!-- ours: written by the board command from the run records -->"
END = "<!-- end of ours -->"


def boards(records: Sequence[Record]) -> dict[str, list[Row]]:
    """The board of each scenario, which all pages are filled from."""
    return {scenario: board(records, scenario) for scenario in render.scenarios(records)}


def filled(page: str, method: str, boards: Mapping[str, list[Row]]) -> str:
    """A page with what is between its marks written anew.

    method: the page's name; rows of `fedu-fedx` stand on the pages fedu and fedx.
    """
    return between(page, START, END, _table(method, boards))


def write(records: Sequence[Record], folder: str | Path) -> None:
    """Fills the pages `<method>.md` of a folder, where it is there."""
    known = boards(records)
    for file in sorted(Path(folder).glob("*.md")):
        fill(file, partial(filled, method=file.stem, boards=known))


def _table(method: str, boards: Mapping[str, list[Row]]) -> list[str]:
    lines = []
    for scenario, rows in boards.items():
        added: dict[str, list[str]] = {}  # a row may build on several
        for one in differences(rows, COMPARED["bases"]):
            added.setdefault(one.row, []).append(_words(one))
        floor = next((row.cells[HEADLINE].mean for row in rows if row.row == FLOOR and HEADLINE in row.cells), None)
        for row in rows:
            if method in row.method.split("-"):
                shown = render.entries(row)
                columns = [shown[column] for column in ("row", "rank", "linear (%)", "kNN (%)", "seeds")]
                above = ""
                if floor is not None and HEADLINE in row.cells and row.row != FLOOR:
                    above = f"{row.cells[HEADLINE].mean - floor:+z.1f}"
                lines.append(line([scenario, *columns, above, "; ".join(added.get(row.row, []))]))
    if not lines:
        return ["No row of it has been recorded yet."]
    head = "| scenario | row | rank | linear (%) | kNN (%) | seeds | above untrained | adds to what it builds on |"
    return [head, "|---|---|---:|---:|---:|---:|---:|---|", *lines]


def _words(one: Difference) -> str:
    words = f"{one.points:+z.1f} to {one.base} (counts from {one.least:.1f})"
    return "; ".join([words, *([] if one.counts else ["not told apart"]), *one.unlike])
