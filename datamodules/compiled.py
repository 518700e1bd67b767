"""The views of `views.apply` by a function of fixed shapes, for torch.compile: an option, never the reference.

Every image passes every stage of the recipe; where its draws leave a stage out, the stage's parameters change nothing.
So neither a shape nor a branch hangs on the draws, and the colour ops fuse into two passes over the pixels. Equal to
the reference to 1e-5, save the pixels whose intensity is within rounding of `solarize_threshold`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations

import torch
from torch import Tensor

from datamodules.ops import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    blur_weights,
    blurring,
    luma,
    resampling,
    rotate,
    send,
    separable,
    shift,
    turn_hue,
)
from datamodules.recipe import Recipe
from datamodules.views import Draws, apply, check, normalise

AROUND = (BRIGHTNESS, SATURATION, BRIGHTNESS, HUE, BRIGHTNESS, SATURATION, BRIGHTNESS)
SLOTS = (*AROUND, CONTRAST, *AROUND)
"""Colour ops that hold all 24 orders of the four, and only one contrast, the op that must see the whole image first:
the pointwise ops around it are the shortest sequence that holds every order of three."""
NEUTRAL = tuple(float(op != HUE) for op in SLOTS)
"""What changes nothing in a slot."""

_rotate = torch.compiler.disable(rotate)  # takes the nearest pixel: an angle rounded otherwise would take another one


def apply_compiled(images: Tensor, draws: Draws, recipe: Recipe) -> Tensor:
    """`views.apply`, compiled at the first call: once for all numbers of images, anew for other recipes and sizes.

    Needs what torch.compile needs: a C++ compiler on a CPU, Triton on a GPU.
    """
    check(images, recipe)
    if len(images) < 2:  # one is a constant to a compiler, not a number of images
        return apply(images, draws, recipe)
    if draws.offset is not None:
        images = shift(images, draws.offset, recipe.pad_mode)
    images, table = images.contiguous(), send(tabulate(draws, recipe), images)
    for tensor in (images, table):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):  # another mode would be compiled anew
        return _compiled()(images, table, recipe)


@cache
def _compiled() -> Callable[[Tensor, Tensor, Recipe], Tensor]:
    return torch.compile(apply_table)


def tabulate(draws: Draws, recipe: Recipe) -> Tensor:
    """The parameters of each view as a row of float32, `[n, 23 + blur_kernel]`: see `_columns`."""
    table = torch.zeros(len(draws.mirror), 23 + recipe.blur_kernel)
    mirror, crops, degrees, slots, gray, solarized, kernel = _columns(table, recipe)
    mirror[:, 0] = draws.mirror
    slots[:] = torch.tensor(NEUTRAL)
    kernel[:, recipe.blur_kernel // 2] = 1
    if draws.crops is not None:
        crops[:] = torch.stack(draws.crops, 1)
    if draws.degrees is not None:
        degrees[:, 0] = draws.degrees
    if draws.jitter is not None:
        rows, order, factors = draws.jitter
        place = _places()[order @ torch.tensor([64, 16, 4, 1])]
        slots[rows] = slots[rows].scatter(1, place, factors.gather(1, order))
    if draws.gray is not None:
        gray[draws.gray] = 1
    if draws.blur is not None:
        rows, sigma = draws.blur
        kernel[rows] = blur_weights(sigma, recipe.blur_kernel)
    if draws.solarize is not None:
        solarized[draws.solarize] = 1
    return table


def apply_table(images: Tensor, table: Tensor, recipe: Recipe) -> Tensor:
    """The views of uint8 images `[B, C, H, W]` by the rows of `tabulate`, float `[B, C, size, size]`."""
    mirror, crops, degrees, slots, gray, solarized, kernel = _columns(table, recipe)
    planes = _crop(images, mirror[:, 0] > 0, crops, recipe)
    if recipe.rotation:
        planes = list(_rotate(torch.stack(planes, 1), degrees[:, 0]).unbind(1))
    if recipe.jitter_p:
        planes = _jitter(planes, slots, recipe.jitter)
    if recipe.grayscale and len(planes) == 3:
        shade = luma(planes)
        planes = [torch.where(gray[..., None] > 0, shade, plane) for plane in planes]
    if recipe.blur:
        across = blurring(kernel, recipe.size)
        planes = list(separable(torch.stack(planes, 1), across, across).unbind(1))
    if recipe.solarize:
        bright = [(solarized[..., None] > 0) & (plane >= recipe.solarize_threshold) for plane in planes]
        planes = [torch.where(inverted, 1 - plane, plane) for inverted, plane in zip(bright, planes, strict=True)]
    return normalise(torch.stack(planes, 1), recipe)


def _columns(table: Tensor, recipe: Recipe) -> tuple[Tensor, ...]:
    """Mirror; top, left, height, width; degrees; the values of SLOTS; gray; solarize; weights of the blur's taps."""
    return table.split([1, 4, 1, len(SLOTS), 1, 1, recipe.blur_kernel], 1)


@cache
def _places() -> Tensor:
    """`[256, 4]`: for the order of the colour ops, read as a number to base 4, the slots they take."""
    places = torch.zeros(256, 4, dtype=torch.int64)
    for order in permutations(range(4)):
        slot = -1
        for i, op in enumerate(order):
            slot = SLOTS.index(op, slot + 1)
            places[int("".join(map(str, order)), 4), i] = slot
    return places


def _crop(images: Tensor, mirror: Tensor, crops: Tensor, recipe: Recipe) -> list[Tensor]:
    """Channels, `[B, size, size]` each. Rows come first, all channels at once: nothing is copied on the way."""
    (height, width), size = images.shape[2:], recipe.size
    if not recipe.crop_scale and (height, width) == (size, size):
        x = images.float() / 255
        return list(torch.where(mirror[:, None, None, None], x.flip(3), x).unbind(1))
    top, left, tall, wide = crops.unbind(1)
    rows, columns = resampling(top, tall, height, size), resampling(left, wide, width, size, mirror)
    x = torch.bmm(rows, (images.transpose(1, 2).float() / 255).flatten(2)).unflatten(2, (-1, width))
    return list(torch.bmm(x.flatten(1, 2), columns.mT).unflatten(1, (size, -1)).unbind(2))


def _jitter(planes: list[Tensor], slots: Tensor, strengths: Sequence[float]) -> list[Tensor]:
    for op, value in zip(SLOTS, slots[..., None, None].unbind(1), strict=True):
        if not strengths[op] or (len(planes) == 1 and op in (SATURATION, HUE)):
            continue
        if op == HUE:
            low, chroma, shares = turn_hue(planes, value)
            planes = [low + chroma * share.clamp(0, 1) for share in shares]
        elif op == BRIGHTNESS:
            planes = [(plane * value).clamp(max=1) for plane in planes]
        else:
            target = luma(planes)
            if op == CONTRAST:
                target = target.mean((1, 2), keepdim=True)
            planes = [(target + value * (plane - target)).clamp(0, 1) for plane in planes]
    return planes
