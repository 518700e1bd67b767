"""Errors of the data that a user can fix: one line with what was given, what is possible and what to do."""

from collections.abc import Sequence


def first(names: Sequence[str], most: int = 3) -> str:
    """The first few of the names as a text.

    >>> first(("a", "b", "c", "d"))
    'a, b, c, ...'
    """
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


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
