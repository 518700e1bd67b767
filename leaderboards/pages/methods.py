"""The methods' pages: our numbers and links to the papers', between marks; the text around them is written by hand."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from leaderboards import sources
from leaderboards.comparisons import LESS, MORE, Difference, bases, differences
from leaderboards.markdown import anchor, escape, replace_between, rewrite, table_lines
from leaderboards.pages.board import boards
from leaderboards.pages.columns import BELOW, BELOW_WORDS, COLUMNS, ENCODERS_WORDS, WORST_ENCODER
from leaderboards.pages.reproduction import heading
from leaderboards.papers.tables import Published
from leaderboards.rank import FLOOR, HEADLINE, Row
from leaderboards.schema import Record

SECTIONS = {
    "Published numbers": ("published", "written by the board command from leaderboards/published"),
    "Measured here": ("ours", "written by the board command from the run records"),
}
"""Section of a page -> the mark of what is written there, and by whom."""
SOURCE_WRITER = "written by the board command from the head of the method's config"


def filled(page: str, method: str, boards: Mapping[str, list[Row]], cells: Sequence[Published]) -> str:
    """A page with new numbers. method: the page's name; rows of `fedu-fedx` are on the pages fedu and fedx.

    A page without marks gets them, in sections of their own; that a method is reconstructed stands below its paper.
    """
    for title, (mark, writer) in SECTIONS.items():
        if f"<!-- {mark}: " not in page and f"<!-- end of {mark} -->" not in page:
            page += f"\n## {title}\n\n<!-- {mark}: {writer} -->\n<!-- end of {mark} -->\n"
    if note := sources.note(method):
        if "<!-- source: " not in page:
            title, paper, rest = page.split("\n\n", 2)
            mark = f"<!-- source: {SOURCE_WRITER} -->\n<!-- end of source -->"
            page = "\n\n".join([title, paper, mark, rest])
        page = replace_between(page, "source", note)
    page = replace_between(page, "ours", _table(method, boards))
    known = {row.method for rows in boards.values() for row in rows}
    return replace_between(page, "published", _published(page, method, cells, known))


def write(records: Sequence[Record], folder: str | Path, cells: Sequence[Published]) -> None:
    """Fills the pages `<method>.md` of a folder, if the folder exists."""
    all_boards = boards(records)
    for file in sorted(Path(folder).glob("*.md")):
        rewrite(file, partial(filled, method=file.stem, boards=all_boards, cells=cells))


def _published(page: str, method: str, cells: Sequence[Published], known: Collection[str]) -> str:
    """Links to the papers' tables that have rows of a method: of its own paper, by our row, or by the page's title.

    known: methods that our rows have.
    """
    title = re.compile(rf"(?<![\w-]){re.escape(page.split(chr(10))[0].lstrip('# '))}(?![\w-])")
    papers: dict[str, dict[str, None]] = {}
    for cell in cells:
        ours = _methods_of(cell.ours.row, known) if cell.ours else ()
        if method in (cell.paper, *ours) or title.search(cell.row):
            link = f"[{cell.where}](../reproduction.md#{anchor(heading(cell))})"
            papers.setdefault(cell.name, {})[link] = None
    lines = [f"- {escape(name)}: {', '.join(links)}" for name, links in papers.items()]
    return "\n".join(lines) if lines else "No table with a row of it could be read."


def _methods_of(row: str, known: Collection[str]) -> list[str]:
    """The methods of a row by its name: `fedu-fedx` is of both, `fedx-local` of FedX alone."""
    fitting = [name for name in known if row == name or row.startswith(f"{name}-")]
    return max(fitting, key=len, default=row.partition("-")[0]).split("-")


def _table(method: str, boards: Mapping[str, list[Row]]) -> str:
    columns, lines = ("row", "rank", "linear (%)", "kNN (%)", "seeds"), []
    for scenario, rows in boards.items():
        floors = {row.row: row.cells[HEADLINE].mean for row in rows if row.method == FLOOR and HEADLINE in row.cells}
        gains = differences(rows, bases())
        for row in rows:
            if method in row.method.split("-"):
                above = ""
                if HEADLINE in row.cells and row.floor in floors and row.row != row.floor:
                    above = f"{row.cells[HEADLINE].mean - floors[row.floor]:+z.1f}"
                adds = [_phrase(gain) for gain in gains if gain.row == row.row]  # a row may build on several rows
                cells = [COLUMNS[column](row) for column in columns]
                lines.append([scenario, *cells, above, "; ".join(adds)])
    if not lines:
        return "No row of it has been recorded yet."
    headings = ["scenario", *columns, "above untrained", "adds to what it builds on"]
    text = "\n".join(table_lines(headings, lines, "llrrrrrl"))
    notes = [BELOW_WORDS] if BELOW in text else []
    notes += [ENCODERS_WORDS] if WORST_ENCODER in text else []
    return "\n\n".join([text, *notes])


def _phrase(difference: Difference) -> str:
    interval = "" if difference.interval is None else f" ({difference.between})"
    doubt = [difference.verdict] if difference.verdict not in (MORE, LESS) else []
    return "; ".join([f"{difference.points:+z.1f} to {difference.base}{interval}", *doubt, *difference.unlike])
