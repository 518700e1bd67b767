"""SimCLR's views of 32 x 32 images: this suite's batched ones, eager and compiled, against torchvision on PIL images.

The recipe is the same for all: resized crop of 20 to 100 % of the area, mirror, colour jitter .4 .4 .4 .1 four times
in five, gray once in five, as float tensors. torchvision works image by image inside one DataLoader without workers,
as the papers' programs do; ours takes uint8 batches. All run in one process, at torch's own number of threads.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from benchmark.speed.peer.workload import SIMCLR
from benchmark.speed.timing import Line, Say, interleaved, process, ratio, seconds, spread
from datamodules.compiled import apply_compiled
from datamodules.recipe import Recipe
from datamodules.views import Apply, apply, augment

TITLE = "Views: whole batches, eager and compiled, beside torchvision's image by image"

IMAGES, BATCH, SIZE = 2048, 512, 32
SMALLER = (16, 64)
"""Images a call whose speed is set against that of BATCH."""
PIL, EAGER, COMPILED = "torchvision", "eager", "compiled"
WAYS: dict[str, Apply] = {EAGER: apply, COMPILED: apply_compiled}
RECIPE = Recipe(SIZE)


def measure(repetitions: int, say: Say) -> list[Line]:
    """Views a second, as ratios to torchvision and among calls of several sizes, and what compiling costs."""
    images = pictures(IMAGES)
    say(f"{IMAGES} images, {BATCH} a call, {torch.get_num_threads()} threads")
    contenders: dict[str, Callable[[], float]] = {PIL: partial(rate, partial(one_by_one, _Pictures(images)))}
    for name, way in WAYS.items():
        for batch in (BATCH, *SMALLER):
            contenders[_of(name, batch)] = partial(rate, partial(batched, images, batch, way))
    for warm_up in contenders.values():
        warm_up()
    figures = interleaved(contenders, repetitions, say)
    lines = [
        Line("views a second, eager / torchvision", ratio(figures, _of(EAGER), PIL), goal=">= 9"),
        Line("views a second, compiled / torchvision", ratio(figures, _of(COMPILED), PIL), goal=">= 20"),
        Line("views a second, compiled / eager", ratio(figures, _of(COMPILED), _of(EAGER))),
        Line(f"{PIL}, one DataLoader without workers", spread(figures[PIL]), "views/s"),
        *(Line(f"{name}, {BATCH} images a call", spread(figures[_of(name)]), "views/s") for name in WAYS),
    ]
    for name in WAYS:
        for batch in SMALLER:
            what = f"views a second, {name}, calls of {batch} / of {BATCH} images"
            lines.append(Line(what, ratio(figures, _of(name, batch), _of(name))))
    return lines + _cost_of_compiling(figures, min(repetitions, 3), say)


def _of(name: str, batch: int = BATCH) -> str:
    return f"{name}, {batch}"


def pictures(n: int) -> Tensor:
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


def rate(one_pass: Callable[[], None]) -> float:
    """Views a second of one pass over the images."""
    return IMAGES / seconds(one_pass)


def one_by_one(images: Dataset) -> None:
    """A pass over the images by torchvision."""
    for _ in DataLoader(images, BATCH):
        pass


def batched(images: Tensor, batch: int, way: Apply) -> None:
    """A pass over the images, `batch` a call."""
    generator = torch.Generator().manual_seed(0)
    for part in images.split(batch):
        augment(part, RECIPE, generator, way)


def _cost_of_compiling(figures: dict[str, list[float]], repetitions: int, say: Say) -> list[Line]:
    """Seconds until the first compiled view, in a new process: with nothing compiled before, and with a full cache."""
    fresh: list[float] = []
    cached: list[float] = []
    for repetition in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            for found in (fresh, cached):
                ran = process(
                    [sys.executable, "-m", "benchmark.speed.views"],
                    env={"TORCHINDUCTOR_CACHE_DIR": folder},
                    cwd=Path(__file__).parents[2],
                )
                found.append(float(ran.output.split()[-1]))
        say(f"compiling {repetition + 1}/{repetitions}: {fresh[-1]:.1f} s, from the cache {cached[-1]:.1f} s")
    eager, compiled = (spread(figures[_of(name)]).median for name in (EAGER, COMPILED))
    gained = 1 / eager - 1 / compiled
    lines = [
        Line("compiling, the first time on a machine", spread(fresh), "s"),
        Line("compiling, from the machine's cache", spread(cached), "s"),
    ]
    if gained > 0:
        lines += [
            Line("views from which compiling pays, the first time", spread(s / gained / 1e6 for s in fresh), "million"),
            Line(
                "views from which compiling pays, from the cache", spread(s / gained / 1e6 for s in cached), "million"
            ),
        ]
    return lines


if __name__ == "__main__":  # in a process of its own: what the first compiled batch costs more than the second
    first = torch.zeros(BATCH, 3, SIZE, SIZE, dtype=torch.uint8)
    began = time.perf_counter()
    batched(first, BATCH, apply_compiled)
    took = time.perf_counter() - began
    sys.stdout.write(str(took - seconds(partial(batched, first, BATCH, apply_compiled))))
