"""Views: random augmentations of a whole batch, on the device the images are on, with parameters per sample.

Ops take float images `[B, C, H, W]` in [0, 1], C = 1 or 3, and parameters `[B]`; each equals torchvision's.
Parameters and the lists of samples an op touches are drawn on the CPU: no device is waited for, and all see the same
draws. Crop, flip and blur are linear and separable, two batched matrix products.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from datamodules.ops import (
    HUE,
    color_jitter,
    gaussian_blur,
    grayscale,
    horizontal_flip,
    hue_last_first,
    quarter_turns,
    resized_crop,
    rotate,
    send,
    shift,
    solarize,
)
from datamodules.recipe import Recipe, ViewError

NAMES = ("augment", "plain", "rotate", "other")
"""Views there are."""

Crops = tuple[Tensor, Tensor, Tensor, Tensor]  # top, left, height, width: `[B]` each, pixels


class Draws(NamedTuple):
    """The random parameters of n views, on the CPU; None for a stage the recipe leaves out.

    mirror: bool `[n]`. crops: top, left, height, width. degrees: `[n]`, of the rotation.
    jitter: rows `[m]` of the views that are jittered, their orders `[m, 4]` and factors `[m, 4]`.
    gray, solarize: rows. blur: rows `[m]` and sigmas `[m]`, pixels. offset: int64 `[n, 2]`, pixels, of the shift.
    """

    mirror: Tensor
    crops: Crops | None
    degrees: Tensor | None
    jitter: tuple[Tensor, Tensor, Tensor] | None
    gray: Tensor | None
    blur: tuple[Tensor, Tensor] | None
    solarize: Tensor | None
    offset: Tensor | None = None


Apply = Callable[[Tensor, Draws, Recipe], Tensor]
"""Makes the views that draws describe: `apply`, the reference, or `compiled.apply_compiled`."""


def make_views(
    images: Tensor,
    names: Sequence[str],
    recipe: Recipe,
    generator: Generator,
    by: Apply | None = None,
    others: Tensor | None = None,
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The views called `names`, each `augment`, `plain`, `rotate` or `other`, of uint8 images `[B, C, H, W]`.

    Args:
        by: applies the draws; None: `apply`.
        others: what `other` augments, as many images; None: these images in a random order.

    Returns:
        The views, float `[B, C, size, size]` each, and the quarter turns of the `rotate` view, int64 `[B]`, or None.

    Raises:
        ViewError: an unknown name, or `rotate` more than once.
    """
    if unknown := [name for name in names if name not in NAMES]:
        raise ViewError(f"unknown view {unknown[0]!r}; known views: {', '.join(NAMES)}")
    if list(names).count("rotate") > 1:
        raise ViewError(f"views {list(names)} hold 'rotate' twice; ask for it once: one list of turns is returned")
    views: list[Tensor] = []
    turns = None
    for name in names:
        if name == "rotate":
            view, turns = rotated(images, recipe, generator, by)
        elif name == "other":
            if others is None:
                others = images[torch.randperm(len(images), generator=generator).to(images.device)]
            view = augment(others, recipe, generator, by)
        else:
            view = augment(images, recipe, generator, by) if name == "augment" else plain(images, recipe)
        views.append(view)
    return tuple(views), turns


def augment(images: Tensor, recipe: Recipe, generator: Generator, by: Apply | None = None) -> Tensor:
    """A random view of each uint8 image `[B, C, H, W]`: float `[B, C, size, size]`, contiguous.

    The generator lives on the CPU; its state alone decides the parameters. A stage of probability 0 costs nothing.
    """
    check(images, recipe)
    n, _, height, width = images.shape
    return (by or apply)(images, draw(n, height, width, recipe, generator), recipe)


def draw(n: int, height: int, width: int, recipe: Recipe, generator: Generator) -> Draws:
    """The random parameters of `n` views of images of `height` x `width` pixels."""
    size = recipe.size

    def some(probability: float) -> Tensor | None:
        return (torch.rand(n, generator=generator) < probability).nonzero().squeeze(1) if probability else None

    # what a seed means hangs on the order of these lines
    mirror = torch.rand(n, generator=generator) < recipe.flip
    whole = not recipe.crop_scale and (height, width) == (size, size)
    crops = None if whole else draw_crops(n, height, width, recipe, generator)
    offset = torch.randint(-recipe.pad, recipe.pad + 1, (n, 2), generator=generator) if recipe.pad else None
    limit = recipe.rotation
    degrees = _uniform((n,), (-limit, limit), generator) if limit else None
    jitter = None
    if (rows := some(recipe.jitter_p if any(recipe.jitter) else 0)) is not None:
        order, factors = draw_jitter(len(rows), recipe, generator)
        rank = hue_last_first(order)
        jitter = rows[rank], order[rank], factors[rank]
    gray = some(recipe.grayscale)
    blurred = some(recipe.blur)
    blur = None if blurred is None else (blurred, _uniform((len(blurred),), recipe.blur_sigma, generator))
    return Draws(mirror, crops, degrees, jitter, gray, blur, some(recipe.solarize), offset)


def apply(images: Tensor, draws: Draws, recipe: Recipe) -> Tensor:
    """The views `draws` describe, of the images they were drawn for: as `augment`, which is `draw` and this."""
    if draws.offset is not None:
        images = shift(images, draws.offset, recipe.pad_mode)
    x = _to_float(images, recipe)
    if draws.crops is not None:
        x = resized_crop(x, *draws.crops, recipe.size, draws.mirror)
    elif recipe.flip:
        x = horizontal_flip(x, send(draws.mirror, x))
    if draws.degrees is not None:
        x = rotate(x, draws.degrees)
    if draws.jitter is not None:
        rows, order, factors = draws.jitter
        _replace(x, rows, lambda y: color_jitter(y, order, factors))
    if draws.gray is not None:
        _replace(x, draws.gray, grayscale)
    if draws.blur is not None:
        rows, sigma = draws.blur
        _replace(x, rows, lambda y: gaussian_blur(y, sigma, recipe.blur_kernel))
    if draws.solarize is not None:
        _replace(x, draws.solarize, lambda y: solarize(y, recipe.solarize_threshold))
    return normalise(x, recipe)


def plain(images: Tensor, recipe: Recipe) -> Tensor:
    """Uint8 images `[B, C, H, W]` as float `[B, C, size, size]`, contiguous: resized if need be, and normalised."""
    x = _to_float(images, recipe)
    (n, _, height, width), size = x.shape, recipe.size
    return normalise(x if height == width == size else resized_crop(x, *_whole(n, height, width), size), recipe)


def rotated(images: Tensor, recipe: Recipe, generator: Generator, by: Apply | None = None) -> tuple[Tensor, Tensor]:
    """`augment`, then 0 to 3 quarter turns (Gidaris et al. 2018): the views, and their turns, int64 `[B]`, uniform."""
    views = augment(images, recipe, generator, by)
    turns = send(torch.randint(4, (len(views),), generator=generator), views)
    return quarter_turns(views, turns), turns


def draw_crops(n: int, height: int, width: int, recipe: Recipe, generator: Generator) -> Crops:
    """Top, left, height, width `[n]` of random crops, pixels (Szegedy et al. 2015): area and log ratio are uniform.

    As in torchvision the first of ten tries that fits is taken; where none does, the largest central crop of an allowed
    ratio. Without `recipe.crop_scale`, the whole image.
    """
    if recipe.crop_scale is None:
        return _whole(n, height, width)
    low, high = recipe.crop_ratio
    area = _uniform((n, 10), recipe.crop_scale, generator) * (height * width)
    ratio = _uniform((n, 10), (math.log(low), math.log(high)), generator).exp()
    h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    first, found = fits.int().argmax(1, keepdim=True), fits.any(1)
    h = torch.where(found, h.gather(1, first).squeeze(1), min(height, round(width / low)))
    w = torch.where(found, w.gather(1, first).squeeze(1), min(width, round(height * high)))
    free = torch.stack([height - h, width - w])
    top, left = torch.where(found, torch.rand(2, n, generator=generator) * (free + 1), free / 2).floor()
    return top, left, h, w


def draw_jitter(n: int, recipe: Recipe, generator: Generator) -> tuple[Tensor, Tensor]:
    """Orders of the colour ops, int64 `[n, 4]`, a uniform permutation a row, and the ops' uniform factors, `[n, 4]`."""
    strength = torch.tensor(recipe.jitter)
    low, high = (1 - strength).clamp(min=0), 1 + strength
    low[HUE], high[HUE] = -strength[HUE], strength[HUE]
    factors = low + (high - low) * torch.rand(n, 4, generator=generator)
    return torch.rand(n, 4, generator=generator).argsort(1), factors


def check(images: Tensor, recipe: Recipe) -> None:
    """Raises `ViewError` unless the images are uint8 `[B, C, H, W]` with as many channels as the recipe can take."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ViewError(f"images are {images.dtype} {list(images.shape)}; give uint8 [B, C, H, W] with C 1 or 3")
    if recipe.mean is not None and len(recipe.mean) not in (1, images.shape[1]):
        raise ViewError(f"views.mean is {recipe.mean}, the images have {images.shape[1]} channels; give 1 or as many")


def _to_float(images: Tensor, recipe: Recipe) -> Tensor:
    check(images, recipe)
    return images.contiguous().float().div_(255)


def _replace(images: Tensor, rows: Tensor, op: Callable[[Tensor], Tensor]) -> None:
    """In place, the images at `rows` `[m]` by `op` of them; it never sees the others."""
    rows = send(rows, images)
    images.index_copy_(0, rows, op(images[rows]))


def normalise(images: Tensor, recipe: Recipe) -> Tensor:
    """By the recipe's mean and std, in place."""
    if recipe.mean is None or recipe.std is None:
        return images
    mean, std = send(torch.tensor([recipe.mean, recipe.std]), images)[..., None, None]
    return images.sub_(mean).div_(std)


def _uniform(shape: tuple[int, ...], between: tuple[float, float], generator: Generator) -> Tensor:
    return torch.empty(shape).uniform_(*between, generator=generator)


def _whole(n: int, height: int, width: int) -> Crops:
    return torch.zeros(n), torch.zeros(n), torch.full((n,), float(height)), torch.full((n,), float(width))
