"""Views: random augmentations of a whole batch, on the images' device, with parameters per sample.

Operations take float images `[B, C, H, W]` in [0, 1], C = 1 or 3, and parameters `[B]`; each equals torchvision's.
Parameters and the lists of samples that an operation changes are drawn on the CPU: this waits for no device, and every
device gets the same draws. Crop, flip and blur are linear and separable, two batched matrix products.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from datamodules import ops
from datamodules.errors import ViewError
from datamodules.recipe import OwnRecipe, Recipe

NAMES = ("augment", "crop", "local", "plain", "rotate", "other")
"""Names of the views."""

Crops = tuple[Tensor, Tensor, Tensor, Tensor]  # top, left, height, width: `[B]` each, pixels


class Draws(NamedTuple):
    """The random parameters of n views, on the CPU; None for a stage the recipe leaves out.

    mirror: bool `[n]`. crops: top, left, height, width. degrees: `[n]`, of the rotation.
    jitter: rows `[m]` of the jittered views, their orders `[m, 4]` and factors `[m, 4]`.
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
"""Function from images and draws to views: `apply`, the reference, or `compiled.apply_compiled`."""


def make_views(
    images: Tensor,
    names: Sequence[str],
    recipe: Recipe,
    generator: Generator,
    apply_draws: Apply | None = None,
    others: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Views of uint8 images `[B, C, H, W]` by their names.

    `augment`: a random view. `crop`: one without what changes colours or blurs. `local`: one of a smaller crop
    (multi-crop, Caron et al. 2020). `rotate`: one with 0 to 3 quarter turns (Gidaris et al. 2018), uniform. `other`: a
    random view of other images. `plain`: the images without augmentation.

    Args:
        apply_draws: None: `apply`.
        others: the images of the `other` view, as many; None: these images in a random order.
        dtype: of `plain` views; that of the others is `apply_draws`'s.

    Returns:
        The views, float `[B, C, size, size]` each, and the quarter turns of the `rotate` view, int64 `[B]`, or None.

    Raises ViewError: an unknown name, or `rotate` more than once.
    """
    if unknown := [name for name in names if name not in NAMES]:
        raise ViewError(f"unknown view {unknown[0]!r}; known views: {', '.join(NAMES)}")
    if list(names).count("rotate") > 1:
        raise ViewError(f"views {list(names)} contain 'rotate' twice; give it once: one list of turns is returned")
    views: list[Tensor] = []
    turns = None
    for name in names:
        if name == "plain":
            views.append(plain(images, recipe, dtype))
            continue
        source = images
        if name == "other":
            if others is None:
                others = images[torch.randperm(len(images), generator=generator).to(images.device)]
            source = others
        own = recipe
        if name == "local":
            own = replace(recipe, crop_scale=recipe.local_scale)
        elif name == "crop":
            own = replace(recipe, jitter_p=0, grayscale=0, blur=0, solarize=0)
        view = augment(source, own, generator, apply_draws)
        if name == "rotate":
            turns = ops.send(torch.randint(4, (len(view),), generator=generator), view)
            view = ops.quarter_turns(view, turns)
        views.append(view)
    return tuple(views), turns


def augment(images: Tensor, recipe: Recipe, generator: Generator, apply_draws: Apply | None = None) -> Tensor:
    """A random view of each uint8 image `[B, C, H, W]`: float `[B, C, size, size]`, contiguous.

    The generator is on the CPU and alone determines the parameters. A stage of probability 0 costs nothing. That of an
    `OwnRecipe` draws last; ViewError where it returns something else than such views.
    """
    check(images, recipe)
    n, _, height, width = images.shape
    draws, form = draw(n, height, width, recipe, generator), apply_draws or apply
    if not isinstance(recipe, OwnRecipe) or recipe.stage is None:
        return form(images, draws, recipe)
    view = form(images, draws, replace(recipe, mean=None, std=None, stage=None))
    expected = _form(view)
    changed = recipe.stage(view, generator)
    if _form(changed) != expected:
        raise ViewError(f"views.class returns {_form(changed)} for views that are {expected}: return views like them")
    return normalise(changed.contiguous(), recipe)


def _form(views: object) -> str:
    """Type, shape and device of views in words; of something else, what it is."""
    if not isinstance(views, Tensor):
        return f"a {type(views).__name__}"
    return f"{views.dtype} {list(views.shape)} on {views.device}"


def draw(n: int, height: int, width: int, recipe: Recipe, generator: Generator) -> Draws:
    """The random parameters of `n` views of images of `height` x `width` pixels."""
    size = recipe.size

    def random_rows(probability: float) -> Tensor | None:
        return (torch.rand(n, generator=generator) < probability).nonzero().squeeze(1) if probability else None

    # the results of a seed depend on the order of these lines
    mirror = torch.rand(n, generator=generator) < recipe.flip
    whole = not recipe.crop_scale and (height, width) == (size, size)
    crops = None if whole else draw_crops(n, height, width, recipe, generator)
    offset = torch.randint(-recipe.pad, recipe.pad + 1, (n, 2), generator=generator) if recipe.pad else None
    limit = recipe.rotation
    degrees = _uniform((n,), (-limit, limit), generator) if limit else None
    jitter = None
    if (rows := random_rows(recipe.jitter_p if any(recipe.jitter) else 0)) is not None:
        order, factors = draw_jitter(len(rows), recipe, generator)
        rank = ops.hue_last_first(order)
        jitter = rows[rank], order[rank], factors[rank]
    gray = random_rows(recipe.grayscale)
    blurred = random_rows(recipe.blur)
    blur = None if blurred is None else (blurred, _uniform((len(blurred),), recipe.blur_sigma, generator))
    return Draws(mirror, crops, degrees, jitter, gray, blur, random_rows(recipe.solarize), offset)


def apply(images: Tensor, draws: Draws, recipe: Recipe, dtype: torch.dtype = torch.float32) -> Tensor:
    """Views of the images by these draws, computed in `dtype`: the second half of `augment`, after `draw`."""
    if draws.offset is not None:
        images = ops.shift(images, draws.offset, recipe.pad_mode)
    x = _to_float(images, recipe, dtype)
    if draws.crops is not None:
        x = ops.resized_crop(x, *draws.crops, recipe.size, draws.mirror, recipe.interpolation)
    elif recipe.flip:
        x = ops.horizontal_flip(x, ops.send(draws.mirror, x))
    if draws.degrees is not None:
        x = ops.rotate(x, draws.degrees)
    if draws.jitter is not None:
        rows, order, factors = draws.jitter
        _replace(x, rows, lambda y: ops.color_jitter(y, order, factors))
    if draws.gray is not None:
        _replace(x, draws.gray, ops.grayscale)
    if draws.blur is not None:
        rows, sigma = draws.blur
        _replace(x, rows, lambda y: ops.gaussian_blur(y, sigma, recipe.blur_kernel))
    if draws.solarize is not None:
        _replace(x, draws.solarize, lambda y: ops.solarize(y, recipe.solarize_threshold))
    return normalise(x, recipe)


def plain(images: Tensor, recipe: Recipe, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uint8 images `[B, C, H, W]` as float `[B, C, size, size]`, contiguous: resized if need be, and normalised."""
    x = _to_float(images, recipe, dtype)
    (n, _, height, width), size = x.shape, recipe.size
    return normalise(x if height == width == size else ops.resized_crop(x, *_whole(n, height, width), size), recipe)


def draw_crops(n: int, height: int, width: int, recipe: Recipe, generator: Generator) -> Crops:
    """Top, left, height, width `[n]` of random crops, pixels (Szegedy et al. 2015): area and log ratio are uniform.

    As in torchvision, the first of ten tries that fits; if none does, the largest central crop of an allowed ratio.
    Without `recipe.crop_scale`, the whole image.
    """
    if recipe.crop_scale is None:
        return _whole(n, height, width)
    low, high = recipe.crop_ratio
    area = _uniform((n, 10), recipe.crop_scale, generator) * (height * width)
    ratio = _uniform((n, 10), (math.log(low), math.log(high)), generator).exp()
    h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    first, any_fits = fits.int().argmax(1, keepdim=True), fits.any(1)
    h = torch.where(any_fits, h.gather(1, first).squeeze(1), min(height, round(width / low)))
    w = torch.where(any_fits, w.gather(1, first).squeeze(1), min(width, round(height * high)))
    free = torch.stack([height - h, width - w])
    top, left = torch.where(any_fits, torch.rand(2, n, generator=generator) * (free + 1), free / 2).floor()
    return top, left, h, w


def draw_jitter(n: int, recipe: Recipe, generator: Generator) -> tuple[Tensor, Tensor]:
    """Orders of the colour operations, int64 `[n, 4]`, a random permutation a row, and their factors, `[n, 4]`."""
    strength = torch.tensor(recipe.jitter)
    low, high = (1 - strength).clamp(min=0), 1 + strength
    low[ops.HUE], high[ops.HUE] = -strength[ops.HUE], strength[ops.HUE]
    factors = low + (high - low) * torch.rand(n, 4, generator=generator)
    return torch.rand(n, 4, generator=generator).argsort(1), factors


def check(images: Tensor, recipe: Recipe) -> None:
    """Raise `ViewError` unless the images are uint8 `[B, C, H, W]` with 1 or 3 channels that fit the recipe's mean."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ViewError(f"images are {images.dtype} {list(images.shape)}; give uint8 [B, C, H, W] with C 1 or 3")
    if recipe.mean is not None and len(recipe.mean) not in (1, images.shape[1]):
        raise ViewError(f"views.mean is {recipe.mean}, the images have {images.shape[1]} channels; give 1 or as many")


def _to_float(images: Tensor, recipe: Recipe, dtype: torch.dtype) -> Tensor:
    check(images, recipe)
    return images.contiguous().to(dtype).div_(255)


def _replace(images: Tensor, rows: Tensor, op: Callable[[Tensor], Tensor]) -> None:
    """Replace the images at `rows` `[m]` by `op` of them, in place."""
    rows = ops.send(rows, images)
    images.index_copy_(0, rows, op(images[rows]))


def normalise(images: Tensor, recipe: Recipe) -> Tensor:
    """Normalise images by the recipe's mean and std, in place."""
    if recipe.mean is None or recipe.std is None:
        return images
    mean, std = ops.send(torch.tensor([recipe.mean, recipe.std], dtype=images.dtype), images)[..., None, None]
    return images.sub_(mean).div_(std)


def _uniform(shape: tuple[int, ...], bounds: tuple[float, float], generator: Generator) -> Tensor:
    return torch.empty(shape).uniform_(*bounds, generator=generator)


def _whole(n: int, height: int, width: int) -> Crops:
    return torch.zeros(n), torch.zeros(n), torch.full((n,), float(height)), torch.full((n,), float(width))
