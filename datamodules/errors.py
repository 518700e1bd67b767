"""Errors of the data that a user can fix: one line with what was given, what is possible and what to do."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches


def first(names: Sequence[str], limit: int = 3) -> str:
    """The first few of the names as a text.

    >>> first(("a", "b", "c", "d", "e"))
    'a, b, c, ...'
    """
    return ", ".join(names if len(names) <= limit + 1 else [*names[:limit], "..."])  # "..." is as long as one name


def one_line(error: object) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split())


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)`, or nothing where no known name is near; one of other case, hyphens or underscores is.

    >>> nearest("digist", ("digits", "domains"))
    " (did you mean 'digits'?)"
    """
    known = list(known)
    same = [other for other in known if _letters(other) == _letters(name)]
    close = get_close_matches(name, known, n=5)

    def likeness(other: str) -> tuple[float, int]:  # of equally similar ones, that of the name's length
        return SequenceMatcher(None, other, name).ratio(), -abs(len(other) - len(name))

    return f" (did you mean {(same or [max(close, key=likeness)])[0]!r}?)" if same or close else ""


def _letters(name: str) -> str:
    """Without case, hyphens and underscores, as papers write `SSD` and `L-DAWA`."""
    return re.sub("[-_]", "", name).lower()


class DataError(ValueError):
    """Data that are missing or unusable; the root of this package's errors."""

    exit_code = 2


class PartitionError(DataError):
    """A partition that cannot be made."""


class ViewError(DataError):
    """An impossible recipe, images that do not fit it, or an unknown view."""


class UnreadableError(DataError):
    """An image file cannot be read. file: its path."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"cannot read the image {file} ({reason}): replace or remove it")
        self.file = file
