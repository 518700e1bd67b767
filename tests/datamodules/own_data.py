"""Small image folders for tests, how they are read, and a data set and a partition to name by import path."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, Tensor
from torch.utils.data import Dataset

from datamodules import sources
from datamodules.errors import DataError

RNG = np.random.default_rng(0)


def seeded(seed: int) -> Generator:
    """Torch's generator of this seed."""
    return torch.Generator().manual_seed(seed)


def bytes_of(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Random uint8."""
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded(seed))


def picture(size: tuple[int, int] = (8, 8), channels: int = 3) -> np.ndarray:
    """A random image `[H, W, 3]`, or `[H, W]` for one channel."""
    shape = size if channels == 1 else (*size, channels)
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def save(file: Path, image: np.ndarray | None = None) -> None:
    """Writes an image file and its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture() if image is None else image).save(file)


def make(root: Path, *levels: str, images: int = 5) -> None:
    """Images in all combinations of folders, e.g. `make(root, "train", "anna bert", "cat dog")`."""
    for names in itertools.product(*(level.split() for level in levels)):
        for index in range(images):
            save(root.joinpath(*names, f"{index}.png"))


def load(root: Path, name: str = "mine", **given: Any) -> sources.Source:
    """The data set of this name, decoded into a folder beside it."""
    return sources.load(name, root=root, cache=root / "cache", **given)


@contextmanager
def refused(match: str | None = None, kind: type[DataError] = DataError) -> Iterator[pytest.ExceptionInfo]:
    """An error of one line."""
    with pytest.raises(kind, match=match) as error:
        yield error
    assert len(str(error.value).splitlines()) == 1
    assert (isinstance(error.value, DataError), error.value.exit_code) == (True, 2)


class Blocks(Dataset):
    """Images of three shades, and their labels."""

    def __init__(self, split="train", count=60):
        self.targets = [k % 3 for k in range(count if split == "train" else 18)]
        self.rng = np.random.default_rng(split == "train")
        self.images = self.rng.integers(0, 80, (len(self.targets), 8, 8, 3), dtype=np.uint8)
        self.images += np.array(self.targets, dtype=np.uint8)[:, None, None, None] * 80

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


class Natural(Blocks):
    """The same of five clients, whose test images are theirs too."""

    def __init__(self, split="train", count=100):
        super().__init__(split, count)
        self.clients = [f"site {k % 5}" for k in range(len(self.targets))]


def by_turns(labels, seed, num_clients=None, first="a"):
    """Every third image to a client; the first is called `first`."""
    return {name: np.arange(k, len(labels), 3) for k, name in enumerate((first, "b", "c"))}
