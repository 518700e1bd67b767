"""Embedded and generated images, which need no file: digits, domains, synthetic, typefaces-sample."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from datamodules.arrays import of_arrays
from datamodules.errors import DataError
from datamodules.gathered import gathered
from datamodules.glyphs import sample
from datamodules.raw import Raw, Rows, a_fifth

SYNTHETIC = {"examples": 600, "classes": 4, "channels": 3, "seed": 0}
"""Options of `synthetic` and their defaults."""
PART = 1 << 16
"""Pixels of `synthetic` made at a time, few enough for a processor's cache; their number changes no bit of them."""
DISPLAYS = 1500
"""Images of the domain `display`."""
SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""Lit segments of a seven-segment display, by digit: a at the top, then clockwise, g in the middle."""


def as_raw(images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> Raw:
    """A data set with a fifth of each class as test, drawn with seed 0; both splits keep the order of `images`."""
    test = a_fifth(labels)
    rows = {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    split_images = {split: Rows(images, kept) for split, kept in rows.items()}
    return Raw(classes, split_images, {split: labels[kept] for split, kept in rows.items()})


def digits() -> Raw:
    """1,797 handwritten digits, 8 x 8, one channel."""
    images, labels = _written()
    return as_raw(images[:, None], labels, tuple("0123456789"))


def _written() -> tuple[np.ndarray, np.ndarray]:
    """Images `[1797, 8, 8]` uint8, intensities 0..16 scaled to 0..255, and labels `[1797]` int64.

    Those of scikit-learn, which has them from the test set of Alpaydin and Kaynak's Optical Recognition of Handwritten
    Digits (UCI, 1998; CC BY 4.0). The file spares an install of scikit-learn, and a run a second of importing it.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        return np.rint(stored["images"] * (255 / 16)).astype(np.uint8), stored["labels"].astype(np.int64)


def synthetic(examples: int, classes: int, channels: int, seed: int, image_size: int) -> Raw:
    """A smooth pattern of three waves per class and channel, with random contrast and pixel noise per example."""
    if channels < 1 or classes < 1 or examples < 5 * classes:
        counts = f"{examples} examples, {classes} classes, {channels} channels"
        raise DataError(f"synthetic data of {counts}: give at least one channel, one class, five examples a class")
    rng = np.random.default_rng(seed)
    frequency = rng.integers(0, 3, (2, classes, channels, 3, 1, 1))
    phase = rng.uniform(0, 2 * np.pi, (classes, channels, 3, 1, 1))
    y, x = np.mgrid[:image_size, :image_size] * (2 * np.pi / image_size)
    patterns = np.cos(frequency[0] * y + frequency[1] * x + phase).mean(axis=2)
    labels = np.arange(examples) % classes
    contrast = rng.uniform(60, 120, (examples, 1, 1, 1))
    images = np.empty((examples, channels, image_size, image_size), dtype=np.uint8)
    step = max(1, PART // images[0].size)
    for start in range(0, examples, step):  # in float64 they are eight times as large
        part = slice(start, start + step)
        made = contrast[part] * patterns[labels[part]]
        made += 128
        made += rng.normal(0, 25, made.shape)
        images[part] = np.rint(made, out=made).clip(0, 255, out=made)
    return as_raw(images, labels, tuple(map(str, range(classes))))


def domains() -> Raw:
    """Two domains of ten digits, 8 x 8, five clients each: handwriting, and seven-segment displays.

    The training images name their client, `handwriting-0` to `display-4`, the test images their domain.
    """
    written, digits = _written()
    rng = np.random.default_rng(0)
    shown = np.arange(DISPLAYS) % 10
    images = np.concatenate([written, _displays(shown, rng)])[:, None]
    labels = np.concatenate([digits, shown])
    names = np.repeat(["handwriting", "display"], [len(written), DISPLAYS])
    raw = as_raw(images, labels, tuple("0123456789"))
    test = a_fifth(labels)
    numbers = rng.integers(0, 5, len(labels))
    clients = [f"{name}-{number}" for name, number in zip(names[~test], numbers[~test], strict=True)]
    return replace(raw, clients={"train": clients, "test": names[test].tolist()})


def _displays(digits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Seven-segment displays `[N, 8, 8]` uint8, shifted by up to a pixel, of random brightness, with noise."""
    lines: dict[str, tuple[int | slice, int | slice]] = {  # rows and columns of a 7 x 4 display
        "a": (0, slice(0, 4)), "b": (slice(0, 4), 3), "c": (slice(3, 7), 3), "d": (6, slice(0, 4)),
        "e": (slice(3, 7), 0), "f": (slice(0, 4), 0), "g": (3, slice(0, 4)),
    }  # fmt: skip
    images = np.zeros((len(digits), 8, 8))
    shifts = rng.integers(0, [2, 5], (len(digits), 2))
    for image, digit, (top, left) in zip(images, digits, shifts, strict=True):
        for segment in SEGMENTS[digit]:
            image[top : top + 7, left : left + 4][lines[segment]] = 1
    bright = rng.uniform(90, 230, (len(digits), 1, 1))
    return np.rint(images * bright + rng.normal(0, 20, images.shape)).clip(0, 255).astype(np.uint8)


def typefaces() -> Raw:
    """The characters of seven typefaces that Matplotlib brings, 28 x 28, as `datamodules.rebuilt` draws `typefaces`."""
    return of_arrays(gathered(sample()).arrays, "typefaces-sample", {})


EMBEDDED: dict[str, Callable[..., Raw]] = {
    "digits": digits,
    "domains": domains,
    "synthetic": synthetic,
    "typefaces-sample": typefaces,
}
"""Name -> function that makes the images."""
