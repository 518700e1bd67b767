"""Numbers and names as the pages show them, and the pieces of Markdown that pages are made of."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from leaderboards.rank import Cell, Row
from leaderboards.schema import RecordError

MISSING = "–"
TEMPLATES = Path(__file__).parent / "pages" / "templates"


def line(cells: Iterable[object]) -> str:
    """One line of a Markdown table; no text of a cell can break the table."""
    return "| " + " | ".join(escape(str(cell)) for cell in cells) + " |"


def table_lines(headings: Sequence[str], rows: Iterable[Iterable[object]], align: str) -> list[str]:
    """A Markdown table. align: `l` or `r` for each column; the last letter holds for all further columns."""
    rules = ("---:" if side == "r" else "---" for side in align.ljust(len(headings), align[-1]))
    return [line(headings), f"|{'|'.join(rules)}|", *map(line, rows)]


def escape(text: str) -> str:
    """Text in one line that Markdown shows as it is."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_~\[\]|])", r"\\\1", text)


def anchor(heading: str) -> str:
    """The address of a heading within its page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def render(template: str, **values: Any) -> str:
    """A page from its template in `pages/templates`; filters: `md` escapes text, `line` makes a line of a table."""
    loader = FileSystemLoader(TEMPLATES)
    pages = Environment(loader=loader, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    filters = (line, anchor, with_spread, in_bytes, three_digits, seeds_phrase)
    pages.filters |= {function.__name__: function for function in filters}
    pages.filters |= {"md": escape, "interval": lambda places: interval(*places)}
    return f"{pages.get_template(template).render(values).rstrip()}\n"


def replace_between(page: str, mark: str, text: str) -> str:
    """The page with new text between `<!-- MARK: who writes it -->` and `<!-- end of MARK -->`.

    Raises RecordError: one of them is missing.
    """
    start, end = re.search(rf"<!-- {mark}: .*? -->", page), f"<!-- end of {mark} -->"
    _, end_mark, after = page[start.end() if start else 0 :].partition(end)
    if not start or not end_mark:
        raise RecordError(f"no mark {end if start else f'<!-- {mark}: ... -->'}: put it where the tables belong")
    return f"{page[: start.end()]}\n\n{text.strip()}\n\n{end}{after}"


def rewrite(file: Path, change: Callable[[str], str]) -> None:
    """Replaces a page by `change(page)`. Raises RecordError that names the file where `change` does."""
    try:
        page = change(file.read_text(encoding="utf-8"))
    except RecordError as error:
        raise RecordError(f"{file}: {error}") from error
    file.write_text(page, encoding="utf-8")


def with_spread(cell: Cell | None, decimals: int) -> str:
    """A mean and its spread, `48.0 ± 0.4`; the mean alone where there is no spread."""
    if cell is None:
        return MISSING
    spread = "" if cell.spread is None else f" ± {cell.spread:.{decimals}f}"
    return f"{round(cell.mean, decimals) + 0.0:.{decimals}f}{spread}"  # + 0.0: no negative zero


def seeds_phrase(counts: Iterable[int]) -> str:
    """Numbers of seeds in words: `one seed`, `3 seeds`, `1 to 3 seeds`."""
    fewest, *_, highest = sorted([*counts] * 2)
    return "one seed" if highest == 1 else f"{highest} seeds" if fewest == highest else f"{fewest} to {highest} seeds"


def rank_of(row: Row) -> str:
    """A row's rank: its best and its worst place, `2-9`; or why it has none."""
    return interval(*row.rank) if row.rank else row.unranked or MISSING


def interval(best: float, worst: float) -> str:
    """The best and the worst place, `2-9`; one number where they are the same."""
    return f"{best:g}" if best == worst else f"{best:g}-{worst:g}"


def three_digits(value: float | None) -> str:
    """A number to three significant digits: 12345 is "12,300"."""
    return MISSING if value is None else f"{float(f'{value:.3g}'):,.10g}"


def in_bytes(count: float | None) -> str:
    """Bytes in decimal units: 46800000 is "46.8 MB"."""
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{three_digits(count)} {unit}"
        count /= 1000
    return f"{three_digits(count)} TB"
