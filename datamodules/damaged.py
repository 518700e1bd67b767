"""Images of a data set that cannot be read: all named at once, or left out."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from datamodules.errors import DataError, UnreadableError
from datamodules.raw import OF_IMAGES, Raw, taken

OPTION = "skip_damaged"
"""The key of `data.options` that leaves out what cannot be read."""
UNREADABLE = 20
"""Images that cannot be read, after which no further one is looked for."""
CHUNK = 64
"""Images that a thread reads between two calls of `alive`."""


def refusal(raw: Raw) -> DataError:
    """The error that names the images that cannot be read, at most UNREADABLE, so that all can be mended at once."""
    errors = (_error_of(raw, item) for item in itertools.chain.from_iterable(raw.images.values()))
    first, *others = itertools.islice(filter(None, errors), UNREADABLE)
    names = ", ".join([other.file for other in others] + ["..."] * (len(others) + 1 == UNREADABLE))
    same = f"; the same holds for {names}" if others else ""
    return DataError(f"{first}, or leave all such out by data.options.{OPTION}=true{same}")


def without_damaged(raw: Raw, alive: Callable[[], object]) -> Raw:
    """The data set without the images that cannot be read, and a note of how many there are.

    alive: called from time to time. Raises DataError: no image of a split, or of a class of train, can be read.
    """
    damaged = {split: list(_damaged(raw, items, alive)) for split, items in raw.images.items()}
    errors = [error for found in damaged.values() for _, error in found]
    if not errors:
        return raw
    kept = {
        split: np.setdiff1d(np.arange(len(raw.images[split])), [position for position, _ in found])
        for split, found in damaged.items()
    }
    labels = {split: raw.labels[split][rows] for split, rows in kept.items()}
    empty = [(split, found[0][1]) for split, found in damaged.items() if found and not len(kept[split])]
    for k in np.setdiff1d(raw.labels["train"], labels["train"]):
        first = next(error for position, error in damaged["train"] if raw.labels["train"][position] == k)
        empty.append((f"class {raw.classes[k]!r} in train", first))
    if empty:
        raise DataError(f"data.options.{OPTION}: no image of {empty[0][0]} would be left: {empty[0][1]}")
    total = sum(map(len, raw.images.values()))
    note = f"{len(errors):,} of {total:,} images cannot be read and are left out (data.options.{OPTION})"
    parts: dict[str, Any] = {
        name: {split: taken(each, kept[split]) for split, each in getattr(raw, name).items()} for name in OF_IMAGES
    }
    return replace(raw, labels=labels, **parts, notes=(*raw.notes, f"{note}; the first is {errors[0].file}"))


def _damaged(raw: Raw, items: Sequence[Any], alive: Callable[[], object]) -> Iterator[tuple[int, UnreadableError]]:
    """Position and error of each image of a split that cannot be read."""

    def look(start: int) -> list[tuple[int, UnreadableError]]:
        errors = ((k, _error_of(raw, items[k])) for k in range(start, min(start + CHUNK, len(items))))
        return [(k, error) for k, error in errors if error is not None]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(look, range(0, len(items), CHUNK)):
            yield from found
            alive()


def _error_of(raw: Raw, item: Any) -> UnreadableError | None:
    """Why an image cannot be read; None where it can. Raises what is not the file's fault: the next start reads it."""
    try:
        raw.read(item)
    except UnreadableError as error:
        cause = error.__cause__
        passing = isinstance(cause, OSError) and cause.errno not in (None, errno.ENOENT)
        if passing or isinstance(cause, MemoryError):
            raise
        return error
    return None
