"""How a row is drawn: one colour in all figures and on the site, and a dash and a marker where a figure needs them."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

from leaderboards.rank import FLOOR
from leaderboards.store import load_yaml

_HUES: dict[str, dict[str, Any]] = load_yaml("palette.yaml")
LIGHT = tuple(content["light"] for content in _HUES.values())
"""The hues on white, as `#rrggbb`."""
DARK = tuple(content["dark"] for content in _HUES.values())
"""The same hues on the dark paper of the site."""
GREY = "#5d656c"
"""On white, of the untrained encoder, which is no competitor."""
ROWS = {row: hue for hue, content in enumerate(_HUES.values()) for row in content["rows"]}
"""Row -> its hue, an index of `LIGHT` and `DARK`."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "v")


class Look(NamedTuple):
    """What matplotlib draws a row with, on white."""

    colour: str
    dash: Any
    marker: str


def hue(row: str) -> int | None:
    """A row's hue, the same everywhere; None for the row `untrained`, which is grey."""
    return None if row == FLOOR else ROWS.get(row, crc32(row.encode()) % len(_HUES))


def looks(rows: Iterable[str]) -> list[Look]:
    """The looks of the rows of one figure: rows of one hue differ in dash and marker, up to 20 of them."""
    seen, result = Counter[int | None](), list[Look]()
    for number in map(hue, rows):
        cue = seen[number]
        seen[number] += 1
        colour = GREY if number is None else LIGHT[number]
        result.append(Look(colour, DASHES[cue % len(DASHES)], MARKERS[cue % len(MARKERS)]))
    return result
