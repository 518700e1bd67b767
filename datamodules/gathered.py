"""Drawn images of clients as one data set: what is left out, which are test images, and which clients nobody trains on.

All of it follows from names and pixels alone, so it is the same on every machine.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from datamodules.errors import DataError

FEWEST = 20
"""Images of the smallest client."""
DIM = 64
"""An image without a pixel as bright as this, a quarter of white, is empty."""


class Drawn(NamedTuple):
    """One image, `[H, W]` uint8, with its client, its class, and what else names it."""

    client: str
    label: str
    variant: str
    image: np.ndarray


class Gathered(NamedTuple):
    """Arrays as `arrays.of_numpy` reads them, and how many images were left out, by reason."""

    arrays: dict[str, np.ndarray]
    left_out: dict[str, int]


def gathered(drawn: Iterable[Sequence[Drawn]]) -> Gathered:
    """The data set of each client's images.

    Empty images are left out, and images that are there already, of whatever client and class: a face without small
    letters shows capitals in their place, and of I and l that are one stroke nobody can tell which it is. A client half
    of whose images an earlier one has is its copy, as a fork of a family is, and left out; so are clients that then
    have fewer than FEWEST images.

    Raises DataError: no client is left.
    """
    kept: list[Drawn] = []
    left_out = dict.fromkeys(("empty", "twice", "of copied clients", "of small clients"), 0)
    seen: set[bytes] = set()
    for images in drawn:
        visible = [each for each in images if each.image.max(initial=0) >= DIM]
        own = {each.image.tobytes(): each for each in reversed(visible)}  # of equal ones the first
        new = [each for each in visible if own[each.image.tobytes()] is each and each.image.tobytes() not in seen]
        copied = sum(each.image.tobytes() in seen for each in visible)
        if 2 * copied >= len(visible) or len(new) < FEWEST:
            left_out["of small clients" if 2 * copied < len(visible) else "of copied clients"] += len(images)
            continue
        left_out["empty"] += len(images) - len(visible)
        left_out["twice"] += len(visible) - len(new)
        seen |= own.keys()
        kept += new
    if not kept:
        raise DataError(f"no client has {FEWEST} different images: give the lock file more packages")
    test = are_test([each.client for each in kept], [each.label for each in kept])
    arrays: dict[str, np.ndarray] = {}
    for split, rows in (("train", np.flatnonzero(~test)), ("test", np.flatnonzero(test))):
        some = [kept[row] for row in rows]
        arrays[f"{split}_images"] = np.stack([each.image for each in some])
        arrays[f"{split}_labels"] = np.array([each.label for each in some])
        arrays[f"{split}_clients"] = np.array([each.client for each in some])
        arrays[f"{split}_names"] = np.array(["/".join(each[:3]) for each in some])
    return Gathered(arrays, left_out)


def are_test(clients: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Whether each image is a test image, `[N]` bool.

    Those of a tenth of the clients all are: nobody trains on these. Of another client a fifth of the classes that it
    has are, with every image of them, as two weights of one letter are nearly the same picture. Which clients and
    classes, the hashes of their names say.
    """
    names = sorted(set(clients), key=_hash)
    held_out = set(names[: round(len(names) / 10)])
    classes: dict[str, set[str]] = {name: set() for name in names}
    for client, label in zip(clients, labels, strict=True):
        classes[client].add(label)
    tested = {(client, label) for client, of in classes.items() for label in _fifth(client, of)}
    pairs = zip(clients, labels, strict=True)
    return np.array([client in held_out or (client, label) in tested for client, label in pairs], dtype=bool)


def _fifth(client: str, labels: set[str]) -> list[str]:
    """A fifth of the classes that a client has."""
    return sorted(labels, key=lambda label: _hash(f"{client}/{label}"))[: round(len(labels) / 5)]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
