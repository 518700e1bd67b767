"""Small image folders for tests."""

import itertools
from pathlib import Path

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


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
