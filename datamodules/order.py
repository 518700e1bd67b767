"""The order of a data set's images, and the hash of what they are: the same whatever they are stored in.

Partitions and batches are drawn by position, so the archive, folder and table of the same images need one order.
Within a split images are ordered by class, then by name: the path of a file, or what CIFAR's archives and the array
`names` call an image. Images without names are ordered by their pixels, so that it does not matter how somebody wrote
them into an array file. Embedded images come from one function, and keep its order.

Names do not follow from pixels, so an array file without names has another order than the folder of the same images. It
is the same data set all the same: `sha256` is of the images and labels of each split as a set. What depends on their
order too, such as whether a checkpoint is of these images, compares `in_order`. Committed records are older than the
first of these hashes and have the second one, which the data sets of `SHIPPED` therefore keep.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from datamodules.mapped import unmap_pages
from datamodules.pictures import picture
from datamodules.raw import OF_IMAGES, Raw, Rows, taken

CHUNK = 64
"""Images that a thread reads at a time."""
TOGETHER = 1 << 22
"""Bytes of images that are hashed, or copied, at a time: 4 MiB."""


class Hashes(NamedTuple):
    """Of images and labels: `sha256` whatever their order, `in_order` in the order that they have."""

    sha256: str
    in_order: str


SHIPPED = {
    "cifar10": (
        "04b7d0bf6a995f01f7c8222e58587b62a07799e050ae8cfce7102f21ba7c6e38",
        "f6ff4bf6b67686bcffe6febd2937b177af40c27d91bd30a461a9241900b4a91a",
    ),
    "digits": (
        "390b1b06acd962e6e64e09e23b0878bddfa4ad6f4458cbc6f46a4e67f2f456f5",
        "01c18914dc69b67d5f088d95004dd69554fd0b11e95646a215e296904a8d8f5c",
    ),
    "domains": (
        "57e2869e6ff590bb3f4ba105a005c6413e7343835bbdf50c749a00308521296e",
        "996a941bf153d0a18da4bc8ca9acc4783d7a457422cb79e2f4647032175696ba",
    ),
    "synthetic": (
        "9050ebe77501b7dbdeecad6123335785653d34404d9dfc42fa23776385f2845c",
        "a32cbf1179bb17f5d6df6e3f087cff285dff93ea08bcc4a47bb522d2e5a6d007",
    ),
}
"""Data set with its default options -> its `sha256`, and the hash of its images and labels as sets."""


def hashes(splits: Iterable[tuple[np.ndarray, np.ndarray]]) -> Hashes:
    """The hashes of a data set. splits: images `[N, C, H, W]` uint8 and labels `[N]` int64, train before test."""
    in_order, as_sets = hashlib.sha256(), hashlib.sha256()
    for images, labels in splits:
        in_order.update(repr(images.shape).encode())
        each = np.empty((len(labels), 40), dtype=np.uint8)  # an image's hash, then its label
        each[:, 32:] = labels.astype("<i8").view(np.uint8).reshape(-1, 8)
        for part in parts_of(images):
            few = np.ascontiguousarray(images[part])
            in_order.update(few.data)
            contents = few.reshape(len(few), -1).view(f"V{few[0].nbytes}")[:, 0].tolist()
            digests = b"".join([hashlib.sha256(content).digest() for content in contents])
            each[part, :32] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
            unmap_pages(images)
        in_order.update(repr(labels.shape).encode())
        in_order.update(np.ascontiguousarray(labels).data)
        as_sets.update(repr(images.shape).encode())
        whole = each.view("S40")[:, 0]
        whole.sort()
        as_sets.update(whole.data)
    recorded = {content: sha256 for sha256, content in SHIPPED.values()}
    return Hashes(recorded.get(as_sets.hexdigest(), as_sets.hexdigest()), in_order.hexdigest())


def parts_of(images: np.ndarray | Rows) -> Iterator[slice]:
    """Slices of images that together are all of them, in their order, each of TOGETHER bytes or a single image."""
    step = max(1, TOGETHER // images[0].nbytes) if len(images) else 1
    for start in range(0, len(images), step):
        yield slice(start, min(start + step, len(images)))


def ordered(raw: Raw) -> Raw:
    """The data set with each split in the canonical order; `positions` of the splits that had another one."""
    rows = {split: _order(raw, split) for split in raw.images}
    rows = {split: order for split, order in rows.items() if order != list(range(len(order)))}
    parts: dict[str, Any] = {"labels": {split: raw.labels[split][order] for split, order in rows.items()}}
    for name in OF_IMAGES:
        known = getattr(raw, name)
        parts[name] = {split: taken(known[split], order) for split, order in rows.items() if split in known}
    changed: dict[str, Any] = {name: {**getattr(raw, name), **each} for name, each in parts.items()}
    return replace(raw, **{**changed, "positions": rows})


def _order(raw: Raw, split: str) -> list[int]:
    """The positions of a split's images in their order."""
    labels, clients = raw.labels[split].tolist(), raw.clients.get(split)
    names = raw.names.get(split, raw.paths.get(split))
    # folder by folder, as a folder is read
    keys: Sequence[Any] = _contents(raw, split) if names is None else [str(name).split("/") for name in names]
    return sorted(range(len(labels)), key=lambda k: (labels[k], keys[k], "" if clients is None else clients[k]))


def _contents(raw: Raw, split: str) -> list[bytes]:
    """The hash of each image's pixels as they are before they are resized. Raises DataError: one cannot be read."""
    items = raw.images[split]

    def look(start: int) -> list[bytes]:
        pixels = (picture(raw.read(items[k])).values for k in range(start, min(start + CHUNK, len(items))))
        return [hashlib.sha256(repr(each.shape).encode() + each.tobytes()).digest() for each in pixels]

    with ThreadPoolExecutor(threads(picture(raw.read(items[0])).values.size if len(items) else 0)) as pool:
        return [digest for found in pool.map(look, range(0, len(items), CHUNK)) for digest in found]


def threads(size: int) -> int | None:
    """That read images of so many numbers each: below about 64 x 64 pixels they wait for the interpreter's lock."""
    return os.cpu_count() if size > 64**2 else 1
