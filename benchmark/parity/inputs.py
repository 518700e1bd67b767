"""Inputs of a parity run, made from numbers alone so that anyone can make them again, and fingerprints of tensors.

Generators are NumPy's PCG64, seeded by a key that begins with the file's seed.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.federated import Batch, FederatedDataModule
from datamodules.recipe import Recipe
from datamodules.sources import Source, Split

VIEWS, WEIGHTS, DIRECTIONS, DRAWS = 1, 2, 3, 4
"""Second number of a key."""
SIDE = 32
"""Height and width of an image in pixels."""
CLASSES = 10

Fingerprint = tuple[float, float, float]
"""Mean and population standard deviation of a tensor, and its product with a random direction."""


def generator(seed: int, *key: int) -> np.random.Generator:
    """The generator of a key."""
    return np.random.default_rng([seed, *key])


def name_key(name: str) -> int:
    """A tensor's number in the keys of its initial value and of its direction."""
    return zlib.crc32(name.encode())


def normal(seed: int, *key: int, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers of a key, float32."""
    return torch.from_numpy(generator(seed, *key).standard_normal(tuple(shape), dtype=np.float32))


def initial(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """Initial parameter, float32: normal numbers over the root of the fan-in; 1-d: 1 + 0.1 times them, biases 0.1."""
    numbers = generator(seed, WEIGHTS, name_key(name)).standard_normal(tuple(shape))
    if len(shape) > 1:
        numbers = numbers / np.sqrt(np.prod(shape[1:]))
    else:
        numbers = 0.1 * numbers if name.endswith("bias") else 1 + 0.1 * numbers
    return torch.from_numpy(numbers.astype(np.float32))


def fingerprint(seed: int, name: str, tensor: Tensor) -> Fingerprint:
    """The fingerprint of a tensor in float64; the product is divided by the root of the number of elements."""
    values = tensor.detach().cpu().double().numpy()
    direction = generator(seed, DIRECTIONS, name_key(name)).standard_normal(values.shape)
    return float(values.mean()), float(values.std()), float((values * direction).sum() / np.sqrt(values.size))


@dataclass(frozen=True)
class ViewKey:
    """Numbers in the keys of a phase's views.

    round: the file's number of the round. epoch: number of the first pass. first: number of the first view.
    """

    round: int
    epoch: int = 0
    first: int = 0


class GivenViews(FederatedDataModule):
    """Clients whose views are numbers of a file's seed, in the order of their images; nothing is drawn.

    Args:
        seed: of the file.
        sizes: images of each client.
        labels: of each client's images, where the loss needs them.
        arguments: see `FederatedDataModule`.

    key: of the present phase, set before it. position: client, round and step of the last batch; -1: public images.
    """

    def __init__(self, seed: int, sizes: Sequence[int], *, labels: Sequence[Tensor] = (), **arguments: Any) -> None:
        pixels = np.zeros((sum(sizes), 3, SIDE, SIDE), dtype=np.uint8)
        split = Split(pixels, np.zeros(len(pixels), dtype=np.int64))
        source = Source("given", split, split, tuple(map(str, range(CLASSES))), "")
        ends = np.cumsum(sizes)
        parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        super().__init__(source, parts, Recipe(SIDE), public=parts[0], **arguments)
        self.seed, self.given_labels = seed, labels
        self.key, self.position = ViewKey(0), (0, 0, 0)

    def batches(
        self,
        client: int | None,
        names: Sequence[str],
        batch_size: int,
        *,
        epochs: int = 1,
        order: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        labels: bool = False,
        drop_last: bool | None = None,
        **_: Any,
    ) -> Iterator[Batch]:
        """Batches of the given views; public images are client 0's."""
        held, step = client or 0, 0
        images = len(self.parts[held])
        count = -(-images // batch_size)
        if order is not None:
            count = self.batches_per_epoch(client, batch_size, drop_last=drop_last)
        for epoch in range(self.key.epoch, self.key.epoch + epochs):
            prefix = (held, self.key.round, epoch)
            views = [
                normal(self.seed, VIEWS, *prefix, index, shape=(images, 3, SIDE, SIDE)).to(device, self.dtype)
                for index in range(self.key.first, self.key.first + len(names))
            ]
            turns = torch.from_numpy(generator(self.seed, DRAWS, *prefix).integers(0, 4, images)).to(device)
            for rows in torch.arange(images, device=device).split(min(batch_size, images))[:count]:
                self.position = (-1 if client is None else client, self.key.round, step)
                yield Batch(
                    tuple(view[rows] for view in views),
                    rows,
                    turns[rows] if "rotate" in names else None,
                    self.given_labels[held].to(device)[rows] if labels else None,
                )
                step += 1
