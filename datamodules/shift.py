"""Feature shift: the images of each group of clients, and a part of the test images, are turned, inverted or blurred.

Rotations by group are as in IFCA's rotated MNIST (Ghosh et al. 2020), where each group has a copy of all images.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from datamodules import ops
from datamodules.errors import PartitionError
from datamodules.sources import Source

CHUNK = 1024
"""Images transformed in one call."""

Transform = Callable[[Tensor], Tensor]
"""uint8 `[B, C, H, W]` -> the same."""
PLAIN: dict[str, Transform] = {"none": torch.clone, "invert": torch.bitwise_not}
NUMBERED = re.compile(r"(rotate|blur)-(\d{1,3}(?:\.\d{1,3})?)", re.ASCII)


def transform(name: str) -> Transform:
    """The transform of a name: `none`, `invert`, `rotate-90` (degrees, counterclockwise), `blur-1.5` (pixels).

    Raises PartitionError: another name, or a blur of no deviation.
    """
    if name in PLAIN:
        return PLAIN[name]
    word, number = found.groups() if (found := NUMBERED.fullmatch(name)) else ("", "0")
    if word == "rotate":
        return partial(_rotated, degrees=float(number))
    if word == "blur" and float(number) > 0:
        return partial(_blurred, sigma=float(number))
    raise PartitionError(
        f"partition.shift: {name!a} is no transform: give none, invert, rotate-DEGREES such as rotate-90, or "
        "blur-PIXELS such as blur-1.5"
    )


def _rotated(images: Tensor, degrees: float) -> Tensor:
    return ops.rotate(images.float(), torch.full((len(images),), degrees)).to(torch.uint8)


def _blurred(images: Tensor, sigma: float) -> Tensor:
    kernel = 2 * min(math.ceil(3 * sigma), min(images.shape[2:]) - 1) + 1
    return ops.gaussian_blur(images.float(), torch.full((len(images),), sigma), kernel).round().to(torch.uint8)


def shifted(source: Source, parts: Sequence[np.ndarray], names: Sequence[str], *, seed: int) -> Source:
    """The data set with transformed images, which are copied; client k is in group k modulo the number of transforms.

    An image that no client holds has a drawn group; so have all where there are fewer clients than groups, as one of
    all images, and the test images, which name their group as their client.

    Args:
        parts: a client's indices into the training images. names: of the groups' transforms.

    Raises PartitionError: an unknown transform.
    """
    transforms, rng = [transform(name) for name in names], np.random.default_rng([seed, 5])

    def dealt(count: int) -> np.ndarray:
        return rng.permutation(np.arange(count) % len(names))

    train, test = dealt(len(source.train.labels)), dealt(len(source.test.labels))
    for client, indices in enumerate(parts) if len(parts) >= len(names) else ():
        train[indices] = client % len(names)
    return replace(
        source,
        train=replace(source.train, images=_transformed(source.train.images, train, transforms)),
        test=replace(
            source.test, images=_transformed(source.test.images, test, transforms), clients=np.array(names)[test]
        ),
    )


def _transformed(images: np.ndarray, groups: np.ndarray, transforms: Sequence[Transform]) -> np.ndarray:
    """A copy of images `[N, C, H, W]` uint8, each by the transform of its group `[N]`."""
    made = np.empty_like(images, subok=False)
    for group, apply in enumerate(transforms):
        rows = np.flatnonzero(groups == group)
        for chunk in np.split(rows, range(CHUNK, len(rows), CHUNK)):
            made[chunk] = apply(torch.from_numpy(np.asarray(images[chunk]))).numpy()
    return made
