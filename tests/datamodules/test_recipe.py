"""The bounds of a recipe's values."""

import re

import pytest

from datamodules.errors import ViewError
from datamodules.recipe import Recipe
from tests.datamodules.own_data import refused


def test_a_recipe_accepts_lists_for_tuples():
    listed = Recipe(32, crop_scale=[0.2, 1], jitter=[0.4, 0.4, 0.4, 0.1], mean=[0.5], std=[0.5])
    assert listed == Recipe(32, crop_scale=(0.2, 1), mean=(0.5,), std=(0.5,))
    assert hash(listed)


PROBABILITY, RANGE = "a probability in [0, 1]", "(low, high) with 0 < low <= high"
STRENGTHS, KERNEL = "four strengths >= 0, the last (hue) <= 0.5", "odd, >= 1 and below twice the size"
PIXELS, PAD = "a whole number of pixels, at least 1", "a whole number of pixels below the size"
BOUNDS = {
    "size": (PIXELS, 0, 8.5),
    "flip": (PROBABILITY, 1.5),
    "jitter_p": (PROBABILITY, -0.1),
    "grayscale": (PROBABILITY, "often"),
    "blur": (PROBABILITY, float("nan")),
    "solarize": (PROBABILITY, 2),
    "solarize_threshold": ("an intensity in [0, 1]", 128),
    "crop_scale": (f"{RANGE} <= 1, or null", (0, 1), (0.9, 0.2), (0.2, 1.1), 0.5),
    "local_scale": (f"{RANGE} <= 1", (0.2, 1.1), None),
    "crop_ratio": (RANGE, (4 / 3, 0.75)),
    "blur_sigma": (RANGE, (0.0, 2.0)),
    "interpolation": ("bilinear or bicubic", "nearest"),
    "jitter": (STRENGTHS, (0.4, 0.4, 0.4, 0.6), (0.4, 0.4, 0.4), (0.4, -1, 0.4, 0.1)),
    "pad": (PAD, -1, 32),
    "pad_mode": ("reflect or zero", "edge"),
    "blur_kernel": (KERNEL, 4, 65),
    "rotation": ("an angle in [0, 180] degrees", -15),
    "mean": ("one number a channel, or null", 0.5),
    "std": ("one number > 0 a channel, or null", (0.0,)),
}
"""Key of a recipe -> what it must be, and values that it cannot be."""


@pytest.mark.parametrize("key", BOUNDS)
def test_impossible_recipes_are_errors_of_one_line(key):
    bounds, *values = BOUNDS[key]
    for value in values:
        with refused(f"^{re.escape(f'views.{key} is {value!r}; it must be {bounds}')}$", ViewError):
            Recipe(**{"size": 32, key: value})


@pytest.mark.parametrize("changes", [{"mean": (0.5,)}, {"std": (0.5,)}, {"mean": (0.5,), "std": (0.5, 0.5)}])
def test_mean_and_std_come_together(changes):
    mean, std = (changes.get(key) for key in ("mean", "std"))
    line = f"views.mean is {mean}, views.std {std}; give both, of one length, or neither"
    with refused(re.escape(line), ViewError):
        Recipe(32, **changes)
