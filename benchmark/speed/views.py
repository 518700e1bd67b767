"""SimCLR's views of 32 x 32 images: this suite's batched ones, eager and compiled, against torchvision on PIL images.

The recipe (`SIMCLR`) and the number of threads, torch's own, are the same for all; the result is float tensors.
"""

from collections.abc import Callable
from functools import partial

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from benchmark.speed.peer.workload import SIMCLR
from benchmark.speed.timing import Line, Log, interleaved, ratio, seconds, spread
from datamodules.compiled import apply_compiled
from datamodules.recipe import Recipe
from datamodules.views import Apply, apply, augment

IMAGES, BATCH, SIZE = 2048, 512, 32


def views(repetitions: int, log: Log) -> list[Line]:
    """Views a second, and their ratios."""
    images = make_images(IMAGES)
    log(f"{IMAGES} images, {BATCH} a call, {torch.get_num_threads()} threads")
    contenders = {
        "torchvision": partial(_by_torchvision, _Pictures(images)),
        "eager": partial(_by_batch, images, apply),
        "compiled": partial(_by_batch, images, apply_compiled),
    }
    for warm_up in contenders.values():
        warm_up()
    values = interleaved({name: partial(_rate, run) for name, run in contenders.items()}, repetitions, log)
    return [
        Line("views a second, eager / torchvision", ratio(values, "eager", "torchvision"), goal=">= 9"),
        Line("views a second, compiled / torchvision", ratio(values, "compiled", "torchvision"), goal=">= 20"),
        Line("views a second, compiled / eager", ratio(values, "compiled", "eager")),
        Line("torchvision, one DataLoader without workers", spread(values["torchvision"]), "views/s"),
        *(Line(f"{name}, {BATCH} images a call", spread(values[name]), "views/s") for name in ("eager", "compiled")),
    ]


def make_images(n: int) -> Tensor:
    """Uint8 `[n, 3, 32, 32]`: smooth shapes with a little grain, like photographs made small."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 5, 5, generator=generator)
    smooth = interpolate(coarse, (SIZE, SIZE), mode="bicubic")
    return (smooth + 0.03 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1).mul(255).byte()


class _Pictures(Dataset):
    """PIL images under torchvision's transforms, as the papers' programs write it."""

    def __init__(self, images: Tensor) -> None:
        self.images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return SIMCLR(self.images[index])


def _rate(make_views: Callable[[], None]) -> float:
    """Views a second of a pass over the images."""
    return IMAGES / seconds(make_views)


def _by_torchvision(images: Dataset) -> None:
    for _ in DataLoader(images, BATCH):
        pass


def _by_batch(images: Tensor, apply: Apply) -> None:
    generator = torch.Generator().manual_seed(0)
    for chunk in images.split(BATCH):
        augment(chunk, Recipe(SIZE), generator, apply)
