"""Images that are generated."""

from typing import ClassVar

import numpy as np
from torch.utils.data import Dataset


class Stripes(Dataset):
    """Grey images of two classes, stripes across and down. count: of a split."""

    classes: ClassVar = ["across", "down"]

    def __init__(self, split: str = "train", count: int = 200) -> None:
        rng = np.random.default_rng(split == "test")
        self.targets = [k % 2 for k in range(count)]
        lit = 150 * (np.arange(16) % 4 < 2)
        clean = np.tile(lit[:, None], 16), np.tile(lit, (16, 1))
        noise = rng.integers(0, 60, (count, 16, 16))
        self.images = [(clean[label] + each).astype(np.uint8) for label, each in zip(self.targets, noise, strict=True)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], self.targets[index]
