"""Images at one size and with one number of channels, before they are stored."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from datamodules.errors import DataError

MODES = ("shorter_side_crop", "squash", "pad")
"""How an image that is not square becomes one: its middle, another aspect ratio, or black borders."""
THOUSANDTHS = (299, 587, 114)
"""Weights of red, green and blue in a grey level (ITU-R BT.601)."""
LUMA = np.array(THOUSANDTHS) / 1000


def fitting(size: int | None, mode: str | None, channels: int | None) -> Callable[[np.ndarray], np.ndarray]:
    """A function from an image `[C, H, W]` uint8, or from several `[N, C, H, W]`, to the final size and channels.

    Args:
        size: side in pixels of the square; None: images stay as they are.
        mode: one of `MODES`, for images that are not square; None: these are refused.
        channels: 1 or 3; None: images stay as they are.

    Raises DataError, also when the function is called: an impossible request, or an image it does not cover.

    >>> fit = fitting(size=4, mode="pad", channels=3)
    >>> fit(np.zeros((1, 6, 8), dtype=np.uint8)).shape
    (3, 4, 4)
    """
    if size is not None and size < 1:
        raise DataError(f"data.image_size={size}: give a number of pixels, at least 1")
    if mode not in (None, *MODES):
        raise DataError(f"data.resize={mode!r}: choose {', '.join(MODES)}")
    if mode is not None and size is None:
        raise DataError(f"data.resize={mode} needs a size: set data.image_size=N (pixels)")
    if channels not in (None, 1, 3):
        raise DataError(f"data.channels={channels}: give 1 (grey), 3 (colour), or null for what the images have")

    def fit(image: np.ndarray) -> np.ndarray:
        if image.ndim == 4:
            if size is not None and image.shape[2:] != (size, size):
                return np.stack([fit(each) for each in image])
            return image if channels in (None, image.shape[1]) else with_channels_of_many(image, channels)
        image = image if channels is None else with_channels(image, channels)
        return image if size is None else _square(image, size, mode)

    return fit


def with_channels(image: np.ndarray, channels: int) -> np.ndarray:
    """The image with so many channels: grey ones are repeated, colours weighted by `LUMA`.

    >>> with_channels(np.zeros((1, 8, 8), dtype=np.uint8), 3).shape
    (3, 8, 8)
    """
    if len(image) == channels:
        return image
    if len(image) == 1:
        return np.repeat(image, channels, axis=0)
    if len(image) == 3 and channels == 1:
        return np.rint(np.tensordot(LUMA, image, axes=1)).astype(np.uint8)[None]
    raise DataError(
        f"data.channels={channels}: the images have {len(image)} channels, which is neither grey nor colour"
    )


def with_channels_of_many(images: np.ndarray, channels: int) -> np.ndarray:
    """As `with_channels`, of images `[N, C, H, W]` together, bit by bit."""
    if (images.shape[1], channels) != (3, 1):
        return np.stack([with_channels(image, channels) for image in images])
    red, green, blue = (weight * images[:, k].astype(np.int32) for k, weight in enumerate(THOUSANDTHS))
    luma = red + green + blue + 500
    levels = luma // 1000
    # where a grey level lies in the middle of two, the one that it becomes follows from how its image was summed up
    between = np.flatnonzero((luma == 1000 * levels).any(axis=(1, 2)))
    grey = levels.astype(np.uint8)[:, None]
    for k in between:
        grey[k] = with_channels(images[k], channels)
    return grey


def _square(image: np.ndarray, size: int, mode: str | None) -> np.ndarray:
    height, width = image.shape[1:]
    if height == width or mode == "squash":
        return resized(image, size, size)
    if mode is None:
        raise DataError(
            f"an image is {width} x {height}, not square: set data.resize to shorter_side_crop (its middle), "
            "pad (black borders) or squash"
        )
    scale = size / (min if mode == "shorter_side_crop" else max)(height, width)
    image = resized(image, *(max(1, round(scale * side)) for side in (height, width)))
    top, left = ((side - size) // 2 for side in image.shape[1:])  # below 0: the border
    if mode == "shorter_side_crop":
        return image[:, top : top + size, left : left + size]
    padded = np.zeros((len(image), size, size), dtype=np.uint8)
    padded[:, -top : image.shape[1] - top, -left : image.shape[2] - left] = image
    return padded


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image `[C, H, W]` at another size, bilinearly, with antialiasing where it becomes smaller.

    >>> resized(np.zeros((3, 8, 8), dtype=np.uint8), 4, 6).shape
    (3, 4, 6)
    """
    if image.shape[1:] == (height, width):
        return image
    channels = (Image.fromarray(channel).resize((width, height), Image.Resampling.BILINEAR) for channel in image)
    return np.stack([np.asarray(channel) for channel in channels])
