"""Errors of the data that a user can fix: one line with what was given, what is possible and what to do."""


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
