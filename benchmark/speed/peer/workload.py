"""Workload of all frameworks: the clients, the network and the loss of `scenario.yaml`, for their own loops.

Network, loss and cached images are this suite's, so that frameworks are compared and not networks. Views come in two
kinds: "mirrored" (an image and its mirror image, both tensors, almost no work) and "simclr" (crop, flip, jitter,
grayscale by torchvision, image by image, as in these frameworks' examples).
"""

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from datamodules.partition import iid
from datamodules.sources import Source, load
from methods.maths import nt_xent
from methods.networks import convnet, mlp

PATH = Path(__file__).with_name("scenario.yaml")
SCENARIO = yaml.safe_load(PATH.read_text())
CLIENTS: int = SCENARIO["partition"]["clients"]
COHORT = round(CLIENTS * SCENARIO["federation"]["participation"])
ROUNDS: int = SCENARIO["federation"]["rounds"]
SGD: dict[str, Any] = {name: SCENARIO["optimizer"][name] for name in ("lr", "momentum", "weight_decay")}
BATCHES = (16, 64)
"""Batch sizes that are measured."""
CORES = 2
"""CPU cores that each framework may use."""

SIMCLR = transforms.Compose(
    [
        transforms.RandomResizedCrop(SCENARIO["data"]["image_size"], (0.2, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        transforms.RandomGrayscale(0.2),
        transforms.ToTensor(),
    ]
)


class Network(nn.Module):
    """Encoder and projector, the same initial weights in every process."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = convnet(**{key: value for key, value in SCENARIO["encoder"].items() if key != "class"})
        self.projector = mlp((self.encoder.dim, *SCENARIO["heads"]["projector"]), norm=False)

    def loss(self, view_a: Tensor, view_b: Tensor) -> Tensor:
        """NT-Xent of two views `[B, 3, H, W]`, in one pass."""
        z = self.projector(self.encoder(torch.cat([view_a, view_b])))
        return nt_xent(*z.chunk(2), SCENARIO["adjust"]["simclr"]["objective"]["temperature"])


class Augmented(Dataset):
    """Two SimCLR views, `[3, H, W]` float, of each of some images `[N, 3, H, W]` uint8."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[index])
        return SIMCLR(image), SIMCLR(image)


@functools.cache
def source() -> Source:
    """The images, memory-mapped; created at the first call."""
    data = SCENARIO["data"]
    cache = Path(data["cache"]).expanduser()
    return load(data["name"], root=".", cache=cache, image_size=data["image_size"], options=data["options"])


@functools.cache
def images(client: int) -> np.ndarray:
    """A client's images, `[N, 3, H, W]` uint8."""
    train = source().train
    return train.images[iid(train.labels, CLIENTS, seed=0)[client]]


def mirrored(client: int) -> tuple[Tensor, Tensor]:
    """A client's images in random order and their mirror images, `[N, 3, H, W]` float in [0, 1]."""
    unmirrored = torch.from_numpy(images(client))
    unmirrored = unmirrored[torch.randperm(len(unmirrored))].float().div(255)
    return unmirrored, unmirrored.flip(3)


def batches(client: int, views: str, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch of pairs of views, `[B, 3, H, W]` each."""
    if views == "simclr":
        yield from DataLoader(Augmented(images(client)), batch_size, shuffle=True)
    else:
        yield from zip(*(view.split(batch_size) for view in mirrored(client)), strict=True)


def report_round() -> None:
    """Prints the end of a round, in seconds since the process was started (`T0` in its environment, Unix time)."""
    print(f"round over after {time.time() - float(os.environ['T0'])} s", flush=True)  # noqa: T201
