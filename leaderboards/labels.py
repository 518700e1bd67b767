"""Names of clients and classes as the texts of a figure: drawable by its font, and short."""

import unicodedata
from itertools import accumulate

LONGEST = 20
"""Most letters of a name in a figure."""


def short(name: str, limit: int = LONGEST) -> str:
    """A drawable name without its middle where it is long: ends tell apart what begins alike.

    >>> short("hospital_of_the_university_ward_12")
    'hospital_o…y_ward_12'
    """
    letters = _drawn(name)
    if sum(map(len, letters)) <= limit:
        return "".join(letters)
    half = (limit - 1) / 2
    first = [letter for letter, end in zip(letters, accumulate(map(len, letters)), strict=True) if end <= half + 1]
    backwards = letters[::-1]
    last = [letter for letter, end in zip(backwards, accumulate(map(len, backwards)), strict=True) if end <= half]
    return f"{''.join(first)}\u2026{''.join(last[::-1])}"


def drawable(text: str) -> str:
    """The text with each letter escaped that the figure's font lacks, or that it would set in the wrong order.

    >>> drawable("été 中")
    'été \\\\u4e2d'
    """
    return "".join(_drawn(text))


def _drawn(text: str) -> list[str]:
    """Each letter, or its escape."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))

    def shown(letter: str) -> str:
        leftward = unicodedata.bidirectional(letter) in ("R", "AL")
        has = letter.isspace() or (letter.isprintable() and font.get_char_index(ord(letter)) != 0)
        return letter if has and not leftward else letter.encode("unicode_escape").decode()

    return [shown(letter) for letter in unicodedata.normalize("NFC", text)]
