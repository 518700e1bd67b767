"""Recipe of the random augmentations that make a view, with the bounds of its values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from torch import Generator, Tensor

from datamodules.errors import ViewError
from datamodules.ops import HUE


@dataclass(frozen=True)
class Recipe:
    """Stages of `augment`: shift, crop, flip, rotation, jitter, grayscale, blur, solarize, normalise, in this order.

    Lists become tuples; an impossible value raises `ViewError`.
    """

    size: int
    """Side of the square view, pixels."""
    crop_scale: tuple[float, float] | None = (0.2, 1.0)
    """Smallest and largest crop, as a fraction of the image's area; None: no crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width / height of a crop."""
    interpolation: str = "bilinear"
    """How a crop is resized: bilinear or bicubic."""
    pad: int = 0
    """Largest shift of the image, pixels, in either direction: a crop of the same size out of the padded image."""
    pad_mode: str = "reflect"
    """Padding beyond the edge: reflect or zero."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """Brightness, contrast, saturation: factors in [max(0, 1 - j), 1 + j]; hue: a shift in [-j, j] turns."""
    jitter_p: float = 0.8
    """Probability of the colour jitter, whose four ops come in random order."""
    grayscale: float = 0.2
    """Probability of a conversion to grey."""
    blur: float = 0.0
    """Probability of a Gaussian blur."""
    blur_kernel: int = 3
    """Side of the blur's kernel, pixels, odd."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Smallest and largest standard deviation of the blur, pixels."""
    solarize: float = 0.0
    """Probability of inverting the bright pixels."""
    solarize_threshold: float = 0.5
    """Smallest intensity in [0, 1] of the pixels that are inverted."""
    rotation: float = 0.0
    """Largest angle of a rotation, degrees, in either direction; nearest pixel, zeros outside."""
    mean: tuple[float, ...] | None = None
    """Mean subtracted from each channel (one number: from all), in units of [0, 1]; None: no normalisation."""
    std: tuple[float, ...] | None = None
    """Standard deviation by which each channel is then divided, in units of [0, 1]."""
    local_scale: tuple[float, float] = (0.05, 0.4)
    """`crop_scale` of `local` views."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), Sequence) and not isinstance(value, str):
                object.__setattr__(self, field.name, tuple(value))
        for names, bounds, is_valid in (
            ("size", "a whole number of pixels, at least 1", lambda v: isinstance(v, int) and v >= 1),
            ("crop_scale", "(low, high) with 0 < low <= high <= 1, or null", lambda v: v is None or _is_range(v, 1)),
            ("local_scale", "(low, high) with 0 < low <= high <= 1", lambda v: _is_range(v, 1)),
            ("crop_ratio blur_sigma", "(low, high) with 0 < low <= high", _is_range),
            ("flip jitter_p grayscale blur solarize", "a probability in [0, 1]", lambda v: _are_within([v], 0, 1)),
            (
                "jitter",
                "four strengths >= 0, the last (hue) <= 0.5",
                lambda v: _are_within(v, 0, n=4) and v[HUE] <= 0.5,
            ),
            ("pad", "a whole number of pixels below the size", lambda v: isinstance(v, int) and 0 <= v < self.size),
            ("interpolation", "bilinear or bicubic", lambda v: v in ("bilinear", "bicubic")),
            ("pad_mode", "reflect or zero", lambda v: v in ("reflect", "zero")),
            ("blur_kernel", "odd, >= 1 and below twice the size", lambda v: v in range(1, 2 * self.size, 2)),
            ("solarize_threshold", "an intensity in [0, 1]", lambda v: _are_within([v], 0, 1)),
            ("rotation", "an angle in [0, 180] degrees", lambda v: _are_within([v], 0, 180)),
            ("mean", "one number a channel, or null", lambda v: v is None or _are_within(v, -math.inf)),
            ("std", "one number > 0 a channel, or null", lambda v: v is None or _are_within(v, 1e-12)),
        ):
            for name in names.split():
                if not is_valid(value := getattr(self, name)):
                    raise ViewError(f"views.{name} is {value!r}; it must be {bounds}")
        if len(self.mean or ()) != len(self.std or ()):
            raise ViewError(f"views.mean is {self.mean}, views.std {self.std}; give both, of one length, or neither")


Stage = Callable[[Tensor, Generator], Tensor]
"""Function of float views `[n, C, size, size]` in [0, 1] and a generator on the CPU that returns such views."""


@dataclass(frozen=True)
class OwnRecipe(Recipe):
    """A recipe with a stage of the user's own after the others, before views are normalised."""

    stage: Stage | None = None
    """The stage; None: none."""


def _are_within(values: object, low: float, high: float = math.inf, n: int | None = None) -> bool:
    if not isinstance(values, list | tuple) or not values or len(values) != (n or len(values)):
        return False
    return all(isinstance(value, int | float) and low <= value <= high and value < math.inf for value in values)


def _is_range(pair: Sequence[float], high: float = math.inf) -> bool:
    return _are_within(pair, 1e-12, high, n=2) and pair[0] <= pair[1]
