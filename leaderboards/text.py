"""Numbers and names as the pages show them."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leaderboards.rank import Cell

MISSING = "–"


def line(cells: Iterable[str]) -> str:
    """A line of a Markdown table, whatever its cells hold."""
    return "| " + " | ".join(map(escape, cells)) + " |"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_~\[\]|])", r"\\\1", text)


def between(page: str, start: str, end: str, lines: Iterable[str]) -> str:
    """A page with what stands between two marks written anew; without them, as it is."""
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    return "\n".join([before + start, "", *lines, "", end + after]) if found and closed else page


def with_spread(cell: "Cell | None", decimals: int) -> str:
    """`48.0 ± 0.4`, without a spread where there is none."""
    if cell is None:
        return MISSING
    spread = "" if cell.spread is None else f" ± {cell.spread:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}{spread}"


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
