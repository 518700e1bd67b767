"""A data set before its images are decoded; classes and clients get their names here, whatever source they are from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datamodules.errors import DataError
from datamodules.pictures import Picture
from datamodules.splits import Part


@dataclass(frozen=True)
class Raw:
    """A data set before decoding: `read(images[split][i])` is image i of a split, `[C, H, W]` uint8 or uint16, or more.

    clients, paths: of each image, by split, where the data have them: the name of its client, and its file's path
    within the split. notes: see `sources.Source`.
    """

    classes: tuple[str, ...]
    images: Mapping[str, Any]
    labels: Mapping[str, np.ndarray]
    read: Callable[[Any], np.ndarray | Picture] = np.asarray
    clients: Mapping[str, Sequence[str]] = field(default_factory=dict)
    paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
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
        {
            split: list(map(str, part.clients))
            for split, part in parts.items()
            if part.clients and part.clients[0] is not None
        },
        {split: part.paths for split, part in parts.items() if part.paths is not None},
        tuple(notes),
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
