"""LEAF's JSON files: `{train,test}/*.json` with the pixels and labels of each user, who is a client."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.errors import DataError, one_line
from datamodules.raw import Raw, raw
from datamodules.splits import Part, choose, split_of

_BEGINS = re.compile(rb'\s*\{\s*"(users|num_samples|user_data|hierarchies)"\s*:')


def files_of(folder: Path) -> dict[str, list[Path]]:
    """LEAF's files of each split, by the names of their folders; empty where the folder is none of LEAF's."""
    if not folder.is_dir():
        return {}
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and split_of(path.name))
    files = {name: sorted((folder / name).glob("*.json")) for name in names}
    return {name: found for name, found in files.items() if found and _is_leaf(found[0])}


def _is_leaf(file: Path) -> bool:
    with file.open("rb") as stream:
        return _BEGINS.match(stream.read(200)) is not None


def of_leaf(folder: Path, options: Mapping[str, Any]) -> Raw:
    """The data set of a folder of LEAF: grey square images `[1, H, W]`, in the order of files, users and their images.

    options: `train` and `test`, names of folders.

    Raises DataError: a file that is not LEAF's, or one of texts or of names of images.
    """
    found = {}
    for name, files in files_of(folder).items():
        pixels: list[np.ndarray] = []
        labels: list[Any] = []
        clients: list[str] = []
        for file in files:
            for user, x, y in _users(file):
                pixels.append(_pixels(x, f"{file}, user {user}"))
                labels += y
                clients += [user] * len(y)
        if len({each.shape[1:] for each in pixels}) != 1:
            raise DataError(f"{folder / name} has images of several sizes, or none: give one size")
        found[name] = Part(np.concatenate(pixels), labels, clients)
    names, notes = choose(found, str(folder), options, "/")
    return raw({split: found[name] for split, name in names.items()}, str(folder), notes=notes)


def _users(file: Path) -> list[tuple[str, list[Any], list[Any]]]:
    """Name, images and labels of each user with images in a file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        users = [
            (str(user), list(content["user_data"][user]["x"]), list(content["user_data"][user]["y"]))
            for user in content["users"]
        ]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {one_line(error)[:100]}"
        raise DataError(
            f"{file} is none of LEAF's files ({reason}): it has users and user_data, with x and y"
        ) from error
    for user, x, y in users:
        if len(x) != len(y) or not all(isinstance(label, int | str) for label in y):
            raise DataError(f"{file}, user {user}: give x and y one value an image, y whole numbers or texts")
    return [user for user in users if user[1]]


def _pixels(x: list[Any], where: str) -> np.ndarray:
    """Images `[N, 1, S, S]` uint8 of lists of S * S grey levels, of which 1 is white."""
    if any(isinstance(each, str) for each in x):
        raise DataError(
            f"{where}: x is {str(x[0])[:50]!a}, no pixels: where these are names of images, as in LEAF's CelebA, give "
            "a table NAME.csv with path,label,client beside them"
        )
    try:
        levels = np.asarray(x, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: x is no list of numbers an image") from error
    side = math.isqrt(levels.shape[1]) if levels.ndim == 2 else 0
    if not side or side**2 != levels.shape[1] or not (levels.min() >= 0 and levels.max() <= 1):
        shape = list(levels.shape)
        raise DataError(f"{where}: x is {shape}: give each image as its grey levels, S * S numbers in [0, 1]")
    return np.rint(levels * 255).astype(np.uint8).reshape(-1, 1, side, side)
