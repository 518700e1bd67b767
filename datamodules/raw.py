"""A data set before its images are decoded: labels as positions of classes, a fifth held out where there is no test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from datamodules.errors import DataError
from datamodules.pictures import Picture
from datamodules.splits import Part

OF_IMAGES = ("images", "clients", "paths", "names", "positions")
"""Fields of `Raw` with a value for each image of a split, beside the labels."""
HELD_OUT = "a fifth of the images, drawn with seed 0, is the test set: the data have none"


class Rows(Sequence[np.ndarray]):
    """Some rows of an array, in any order, copied only where a slice of them is asked for.

    >>> Rows(np.arange(5) * 10, np.array([4, 0, 2]))[1:].tolist()
    [0, 20]
    """

    def __init__(self, array: "np.ndarray | Rows", rows: np.ndarray) -> None:
        self.array, self.rows = array, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        """A row, a view; or those of a slice or of indices, a copy."""
        return self.array[self.rows[index]]


def taken(values: Any, rows: Sequence[int] | np.ndarray) -> Any:
    """The values at these positions; of an array as `Rows`, so that a copy of it needs no memory."""
    if isinstance(values, np.ndarray | Rows):
        return Rows(values, np.asarray(rows, dtype=np.int64))
    return [values[row] for row in rows]


@dataclass(frozen=True)
class Raw:
    """A data set before decoding: `read(images[split][i])` is image i of a split: `[C, H, W]`
    uint8 or uint16, or a `Picture`.

    clients, paths, names: of each image, by split, where the data have them: the name of its client, its file's path
    within the split, and the name that something else than a file gives it. positions: of each image in the order that
    its source has, where that is another one, see `order`. notes: see `sources.Source`.
    """

    classes: tuple[str, ...]
    images: Mapping[str, Any]
    labels: Mapping[str, np.ndarray]
    read: Callable[[Any], np.ndarray | Picture] = np.asarray
    clients: Mapping[str, Sequence[str]] = field(default_factory=dict)
    paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    positions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def raw(
    parts: Mapping[str, Part],
    where: str,
    read: Callable[[Any], np.ndarray | Picture] = np.asarray,
    classes: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> Raw:
    """The data set of these images of train and test.

    Args:
        parts: a data set without test images has no `test`. where: for messages. read: see `Raw`.
        classes: names, of which labels are positions or names; None: the distinct labels of train, in increasing order.

    Raises DataError: images of which only some have a label, or a path and a client; a label that no class has.
    """
    labels = {} if parts["train"].labels is None else {split: part.labels or () for split, part in parts.items()}
    for split, part in parts.items():
        _refuse_missing(part, split, where, bool(labels))
        if labels and len(labels[split]) != len(part.images):
            raise DataError(f"{where}: {len(labels[split])} labels of {len(part.images)} images of {split}")
    known = sorted(set(labels.get("train", ())), key=lambda label: (isinstance(label, str), label))
    positions: dict[Any, int] = {label: k for k, label in enumerate(known)}
    if classes is not None:
        positions = {key: k for k, name in enumerate(classes) for key in (k, name)}
    for split, each in labels.items():
        if (unknown := [label for label in each if label not in positions]) and parts[split].paths is None:
            raise DataError(f"{where}: label {unknown[0]!r} of {split} is none of train's classes")
        if unknown := sorted(set(unknown)):
            raise DataError(
                f"class {unknown[0]!r} is in test and not in train ({len(unknown)} such): no probe could learn it; "
                "give train images of it, or remove it from test"
            )
    return Raw(
        tuple(map(str, known if classes is None else classes)) if labels else (),
        {split: part.images for split, part in parts.items()},
        {
            split: np.array([positions[label] for label in labels.get(split, ())] or [0] * len(part.images), np.int64)
            for split, part in parts.items()
        },
        read,
        {split: list(map(str, part.clients)) for split, part in parts.items() if part.clients},
        {split: part.paths for split, part in parts.items() if part.paths is not None},
        {split: part.names for split, part in parts.items() if part.names is not None},
        notes=tuple(notes),
    )


def _refuse_missing(part: Part, split: str, where: str, labelled: bool) -> None:
    """Raises DataError: some images have a label, or of files a client, and others have none."""
    missing, total = part.unlabelled, len(part.images)
    if part.paths is None:
        if labelled and part.labels and missing:
            raise DataError(
                f"{where}: {len(missing):,} of {total:,} images of {split} have no label, the first is image "
                f"{missing[0]} ({part.labels[missing[0]]!r}): give all one, or remove them"
            )
        return
    clients = [k for k, client in enumerate(part.clients or ()) if client is None]
    for key, without in (("label", missing), ("client", clients)):
        if 0 < len(without) < total:
            way = "; data.labels=false uses none" if key == "label" else ""
            raise DataError(
                f"{where}: {part.paths[without[0]]} of {split} has no {key}, others have: give all one, or none{way}"
            )


def a_fifth(groups: np.ndarray) -> np.ndarray:
    """Whether each image is held out: a fifth of each group, drawn with seed 0."""
    rng = np.random.default_rng(0)
    test = np.zeros(len(groups), dtype=bool)
    for members in np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1]):
        test[rng.permutation(members)[: round(len(members) / 5)]] = True
    return test


def with_test(read: Callable[[], Raw], hold_out: bool) -> Raw:
    """The data set; where it has no test images, a fifth of each class is held out, or of each client without labels.

    hold_out: false: without labels, nothing is held out, and test is empty.
    """
    made = read()
    if "test" in made.images:
        return made
    labels, labelled = made.labels["train"], len(made.classes) > 1
    if not hold_out and not labelled:
        return replace(made, images={**made.images, "test": []}, labels={"train": labels, "test": labels[:0]})
    clients = np.unique(made.clients.get("train", [""]), return_inverse=True)[1]
    test = a_fifth(labels if labelled else np.broadcast_to(clients, labels.shape))
    if not test.any():
        raise DataError(
            "the images are too few to hold a fifth out as test: give test images, or at least three of a kind"
        )
    rows = {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    parts: dict[str, Any] = {"labels": {split: labels[kept] for split, kept in rows.items()}}
    for name in OF_IMAGES:
        train = getattr(made, name).get("train")
        parts[name] = {} if train is None else {split: taken(train, kept) for split, kept in rows.items()}
    return replace(made, **parts, notes=(*made.notes, HELD_OUT))
