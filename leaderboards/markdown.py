"""Numbers and names as the pages show them."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from leaderboards.schema import RecordError

if TYPE_CHECKING:
    from leaderboards.rank import Cell, Row

MISSING = "–"


def line(cells: Iterable[str]) -> str:
    """A line of a Markdown table, whatever its cells hold."""
    return "| " + " | ".join(map(escape, cells)) + " |"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_~\[\]|])", r"\\\1", text)


def between(page: str, start: str, end: str, lines: Iterable[str]) -> str:
    """A page with what stands between two marks written anew.

    Raises:
        RecordError: a mark is not there.
    """
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise RecordError(f"no mark {end if found else start}: put it where the tables belong")
    return "\n".join([before + start, "", *lines, "", end + after])


def fill(file: Path, filled: Callable[[str], str]) -> None:
    """Writes a page anew between its marks. Raises RecordError with the file where it cannot."""
    try:
        page = filled(file.read_text(encoding="utf-8"))
    except RecordError as error:
        raise RecordError(f"{file}: {error}") from error
    file.write_text(page, encoding="utf-8")


def with_spread(cell: "Cell | None", decimals: int) -> str:
    """`48.0 ± 0.4`, without a spread where there is none."""
    if cell is None:
        return MISSING
    spread = "" if cell.spread is None else f" ± {cell.spread:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}{spread}"


def rank_of(row: "Row") -> str:
    """`2=` where the rank is shared."""
    return MISSING if row.rank is None else f"{row.rank}{'=' if row.tied else ''}"


def three_digits(value: float) -> str:
    """A number to three digits: 12345 is "12,300"."""
    return f"{float(f'{value:.3g}'):,.10g}"


def in_bytes(count: float | None) -> str:
    """Bytes in decimal units: 46800000 is "46.8 MB"."""
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{three_digits(count)} {unit}"
        count /= 1000
    return f"{three_digits(count)} TB"
