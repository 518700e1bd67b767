"""Our numbers on the methods' pages, between two marks; the text around the marks is written by hand."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from leaderboards.comparisons import COMPARISONS, Difference, differences
from leaderboards.markdown import replace_between, rewrite, table_lines
from leaderboards.pages.board import COLUMNS, scenarios
from leaderboards.rank import FLOOR, HEADLINE, Row, board
from leaderboards.schema import Record

START = "<!-- ours: written by the board command from the run records -->"
END = "<!-- end of ours -->"


def boards(records: Sequence[Record]) -> dict[str, list[Row]]:
    """The board of each scenario, from which all pages are filled."""
    return {scenario: board(records, scenario) for scenario in scenarios(records)}


def filled(page: str, method: str, boards: Mapping[str, list[Row]]) -> str:
    """A page with new numbers. method: the page's name; rows of `fedu-fedx` are on the pages fedu and fedx."""
    return replace_between(page, START, END, _table(method, boards))


def write(records: Sequence[Record], folder: str | Path) -> None:
    """Fills the pages `<method>.md` of a folder, if the folder exists."""
    all_boards = boards(records)
    for file in sorted(Path(folder).glob("*.md")):
        rewrite(file, partial(filled, method=file.stem, boards=all_boards))


def _table(method: str, boards: Mapping[str, list[Row]]) -> str:
    columns, lines = ("row", "rank", "linear (%)", "kNN (%)", "seeds"), []
    for scenario, rows in boards.items():
        floors = [row.cells[HEADLINE].mean for row in rows if row.row == FLOOR and HEADLINE in row.cells]
        gains = differences(rows, COMPARISONS["bases"])
        for row in rows:
            if method in row.method.split("-"):
                is_compared = HEADLINE in row.cells and row.row != FLOOR
                above = [f"{row.cells[HEADLINE].mean - floor:+z.1f}" for floor in floors if is_compared]
                adds = [_phrase(gain) for gain in gains if gain.row == row.row]  # a row may build on several rows
                cells = [COLUMNS[column](row) for column in columns]
                lines.append([scenario, *cells, *(above or [""]), "; ".join(adds)])
    if not lines:
        return "No row of it has been recorded yet."
    headings = ["scenario", *columns, "above untrained", "adds to what it builds on"]
    return "\n".join(table_lines(headings, lines, "llrrrrrl"))


def _phrase(difference: Difference) -> str:
    points = f"{difference.cell.mean:+z.1f} to {difference.base} (counts from {difference.threshold:.1f})"
    return "; ".join([points, *([] if difference.significant else ["no clear difference"]), *difference.unlike])
