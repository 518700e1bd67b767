"""The views of `views.apply` by a function of fixed shapes for torch.compile: optional and not the reference.

Every image passes every stage of the recipe; where its draws leave a stage out, the stage gets neutral parameters.
So no shape and no branch depends on the draws, and the colour operations fuse into two passes over the pixels. Equal
to the reference to 1e-5, except pixels whose intensity is within rounding of `solarize_threshold`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations

import torch
from torch import Tensor

from datamodules import ops
from datamodules.ops import BRIGHTNESS, CONTRAST, HUE, SATURATION
from datamodules.recipe import Recipe
from datamodules.views import Draws, apply, check, normalise

POINTWISE = (BRIGHTNESS, SATURATION, BRIGHTNESS, HUE, BRIGHTNESS, SATURATION, BRIGHTNESS)
SLOTS = (*POINTWISE, CONTRAST, *POINTWISE)
"""Colour operations of which every order of the four is a subsequence, with a single contrast, the only operation that
needs the whole image; `POINTWISE` is the shortest sequence that contains every order of the other three."""
NEUTRAL = tuple(float(op != HUE) for op in SLOTS)
"""Value of each slot that changes nothing."""

_rotate = torch.compiler.disable(ops.rotate)  # nearest pixel: an angle with another rounding would choose another pixel


def apply_compiled(images: Tensor, draws: Draws, recipe: Recipe) -> Tensor:
    """`views.apply`, compiled at the first call for any number of images, and again for each recipe and image size.

    Requires torch.compile's own requirements: a C++ compiler on a CPU, Triton on a GPU.
    """
    check(images, recipe)
    if len(images) < 2:  # the compiler would specialise to a batch of one
        return apply(images, draws, recipe)
    if draws.offset is not None:
        images = ops.shift(images, draws.offset, recipe.pad_mode)
    images, table = images.contiguous(), ops.send(tabulate(draws, recipe), images)
    for tensor in (images, table):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):  # another mode would compile again
        return _compiled()(images, table, recipe)


@cache
def _compiled() -> Callable[[Tensor, Tensor, Recipe], Tensor]:
    return torch.compile(apply_table)


def tabulate(draws: Draws, recipe: Recipe) -> Tensor:
    """Parameters of each view as a row of float32, `[n, 23 + blur_kernel]`: see `_columns`."""
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
        used = _slots_of_orders()[order @ torch.tensor([64, 16, 4, 1])]
        slots[rows] = slots[rows].scatter(1, used, factors.gather(1, order))
    if draws.gray is not None:
        gray[draws.gray] = 1
    if draws.blur is not None:
        rows, sigma = draws.blur
        kernel[rows] = ops.blur_weights(sigma, recipe.blur_kernel)
    if draws.solarize is not None:
        solarized[draws.solarize] = 1
    return table


def apply_table(images: Tensor, table: Tensor, recipe: Recipe) -> Tensor:
    """Views of uint8 images `[B, C, H, W]` by the rows of `tabulate`, float `[B, C, size, size]`."""
    mirror, crops, degrees, slots, gray, solarized, kernel = _columns(table, recipe)
    planes = _crop(images, mirror[:, 0] > 0, crops, recipe)
    if recipe.rotation:
        planes = list(_rotate(torch.stack(planes, 1), degrees[:, 0]).unbind(1))
    if recipe.jitter_p:
        planes = _jitter(planes, slots, recipe.jitter)
    if recipe.grayscale and len(planes) == 3:
        luma = ops.luma(planes)
        planes = [torch.where(gray[..., None] > 0, luma, plane) for plane in planes]
    if recipe.blur:
        matrix = ops.blurring(kernel, recipe.size)
        planes = list(ops.separable(torch.stack(planes, 1), matrix, matrix).unbind(1))
    if recipe.solarize:
        bright = [(solarized[..., None] > 0) & (plane >= recipe.solarize_threshold) for plane in planes]
        planes = [torch.where(inverted, 1 - plane, plane) for inverted, plane in zip(bright, planes, strict=True)]
    return normalise(torch.stack(planes, 1), recipe)


def _columns(table: Tensor, recipe: Recipe) -> tuple[Tensor, ...]:
    """Mirror; top, left, height, width; degrees; the values of SLOTS; gray; solarize; weights of the blur's taps."""
    return table.split([1, 4, 1, len(SLOTS), 1, 1, recipe.blur_kernel], 1)


@cache
def _slots_of_orders() -> Tensor:
    """`[256, 4]`: for each order of the colour operations, read as a number to base 4, the slots of its operations."""
    table = torch.zeros(256, 4, dtype=torch.int64)
    for order in permutations(range(4)):
        slot = -1
        for i, op in enumerate(order):
            slot = SLOTS.index(op, slot + 1)
            table[int("".join(map(str, order)), 4), i] = slot
    return table


def _crop(images: Tensor, mirror: Tensor, crops: Tensor, recipe: Recipe) -> list[Tensor]:
    """Channels, `[B, size, size]` each. Rows are resampled first, for all channels at once, which avoids a copy."""
    (height, width), size = images.shape[2:], recipe.size
    if not recipe.crop_scale and (height, width) == (size, size):
        x = images.float() / 255
        return list(torch.where(mirror[:, None, None, None], x.flip(3), x).unbind(1))
    top, left, crop_height, crop_width = crops.unbind(1)
    rows = ops.resampling(top, crop_height, height, size, interpolation=recipe.interpolation)
    columns = ops.resampling(left, crop_width, width, size, mirror, recipe.interpolation)
    x = torch.bmm(rows, (images.transpose(1, 2).float() / 255).flatten(2)).unflatten(2, (-1, width))
    x = torch.bmm(x.flatten(1, 2), columns.mT).unflatten(1, (size, -1))
    return list((x.clamp(0, 1) if recipe.interpolation == "bicubic" else x).unbind(2))


def _jitter(planes: list[Tensor], slots: Tensor, strengths: Sequence[float]) -> list[Tensor]:
    for op, value in zip(SLOTS, slots[..., None, None].unbind(1), strict=True):
        if not strengths[op] or (len(planes) == 1 and op in (SATURATION, HUE)):
            continue
        if op == HUE:
            low, chroma, fractions = ops.turn_hue(planes, value)
            planes = [low + chroma * fraction.clamp(0, 1) for fraction in fractions]
        elif op == BRIGHTNESS:
            planes = [(plane * value).clamp(max=1) for plane in planes]
        else:
            target = ops.luma(planes)
            if op == CONTRAST:
                target = target.mean((1, 2), keepdim=True)
            planes = [(target + value * (plane - target)).clamp(0, 1) for plane in planes]
    return planes
