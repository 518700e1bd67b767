"""A picture as a file or a library holds it: turned as it is shown, with its depth, and what of it is left out.

Depth: 16 bits a channel become 8 by one rule, wherever the images come from. White is the largest value of 16 bits, or
less where a file says so (a PGM's header, a TIFF of 12 bits), or `data.levels`.
"""

import contextlib
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from datamodules.errors import DataError, UnreadableError
from datamodules.sizes import with_channels

DEEPEST = 65_535
"""The largest value of 16 bits."""
DARK = 8
"""Images of 16 bits none of which reaches this part of their range are most likely of fewer bits."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what shows the picture upright."""
BITS_PER_SAMPLE = 258
"""TIFF's tag."""


class Picture(NamedTuple):
    """An image `[C, H, W]`: uint8, or uint16 where its source has 16 bits a channel and all of them could be read.

    white: the value that is white. deep: whether its source has 16 bits. paged, transparent: whether further pages, or
    transparency, are left out.
    """

    values: np.ndarray
    white: int = 255
    deep: bool = False
    paged: bool = False
    transparent: bool = False


def picture(image: "np.ndarray | Picture") -> Picture:
    """An array `[C, H, W]` of uint8 or uint16 as a picture; a picture as it is."""
    if isinstance(image, Picture):
        return image
    return Picture(image, DEEPEST, deep=True) if image.dtype == np.uint16 else Picture(image)


def of_pillow(image: Image.Image) -> Picture:
    """A picture of Pillow, turned as its EXIF orientation says; grey ones have one channel, all others three.

    Raises ValueError: pixels of which it is not known which is white; Pillow's errors, of any class: a broken file.
    """
    coding, paged = _coding(image), _paged(image)  # loading forgets the first, and closes the file
    image.load()
    upright = _upright(image)
    if (white := _white(image, coding)) is not None:
        grey = np.asarray(upright)
        if grey.min() < 0:
            raise ValueError("it has grey levels below 0: shift them, so that black is 0")
        if white < DEEPEST and image.format == "PPM":
            grey = np.rint(grey * (white / DEEPEST))  # Pillow has scaled them
        return Picture(grey.astype(np.uint16)[None], white, deep=True, paged=paged)
    if image.mode in ("I", "F"):  # Pillow would clip them at 0 and 255
        raise ValueError("its pixels are numbers of 32 bits, and which of them is white is not known")
    plain = np.asarray(upright if upright.mode == "L" else upright.convert("RGB"))
    values = plain[None] if plain.ndim == 2 else plain.transpose(2, 0, 1)
    deep = ";16" in str(coding[:1]) or (image.format == "PPM" and coding[1:] > (255,))
    return Picture(values, deep=deep, paged=paged, transparent=_transparent(image))


def read_image(path: str) -> Picture:
    """An image file as a picture of three channels. Raises UnreadableError."""
    try:
        with Image.open(path) as image:
            read = of_pillow(image)
            return read._replace(values=with_channels(read.values, 3))
    except Exception as error:  # decoders raise errors of many unrelated classes for a broken file
        raise UnreadableError(path, str(error)) from error


def _coding(image: Image.Image) -> tuple[Any, ...]:
    """How the pixels are stored, as Pillow's decoder is told: for PNG, TIFF and PPM the raw mode comes first."""
    if tiles := getattr(image, "tile", None):  # an image that is kept in memory is read more than once
        args = tiles[0].args
        image.info["coding"] = args if isinstance(args, tuple) else (args,)
    coding: tuple[Any, ...] = image.info.get("coding", ())
    return coding


def _white(image: Image.Image, coding: tuple[Any, ...]) -> int | None:
    """The white of grey levels of 16 bits, as far as the file says; None where it has others."""
    bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE)
    if image.mode.startswith("I;16"):
        return 4095 if bits == (12,) else DEEPEST
    if image.mode == "I" and image.format == "PPM":
        return coding[1] if len(coding) > 1 and isinstance(coding[1], int) and coding[1] > 0 else DEEPEST
    if image.mode == "I" and image.format == "TIFF" and bits == (16,):
        return DEEPEST // 2  # with a sign
    return DEEPEST if image.mode == "I" and image.format == "PNG" else None


def _upright(image: Image.Image) -> Image.Image:
    """The image as it is shown. Unlike `exif_transpose` of Pillow, this does not write the other tags again."""
    with contextlib.suppress(Exception):  # broken metadata of an image that can be read
        return image.transpose(TURNS[image.getexif()[ExifTags.Base.Orientation]])
    return image


def _paged(image: Image.Image) -> bool:
    """Whether a file has more than one page or frame; a PSD's layers are all in its one picture."""
    with contextlib.suppress(Exception):  # a page that is broken, or an image of no file
        return bool(getattr(image, "is_animated", False)) and image.format != "PSD"
    return False


def _transparent(image: Image.Image) -> bool:
    """Whether a pixel is not opaque."""
    with contextlib.suppress(Exception):  # not every mode has a conversion
        if image.has_transparency_data:
            alpha = image if "A" in image.getbands() else image.convert("RGBA")
            return bool(np.asarray(alpha.getchannel("A")).min() < 255)
    return False


def checked_levels(levels: Any) -> int | str | None:
    """`data.levels`. Raises DataError: neither a grey level nor `max` nor None."""
    whole = isinstance(levels, int) and not isinstance(levels, bool) and 0 < levels <= DEEPEST
    if not whole and levels not in (None, "max"):
        raise DataError(
            f"data.levels={levels!r}: give the grey level of 16-bit images that is white, 1 to {DEEPEST}, e.g. 4095 "
            "for 12 bits, or max for the largest of the training images"
        )
    return levels


def eight_bits(image: Picture, levels: int | None, name: str) -> np.ndarray:
    """A picture as uint8. levels: the white of 16 bits; None: the picture's own. name: for messages.

    >>> eight_bits(Picture(np.uint16([[[0, 2048, 4095, 5000]]]), 65535, deep=True), 4095, "it")
    array([[[  0, 128, 255, 255]]], dtype=uint8)
    """
    if image.values.dtype == np.uint8:
        if image.deep and levels is not None:
            raise DataError(
                f"data.levels: {name} has 16 bits a channel and colours, of which Pillow reads 8 bits: "
                "convert it to 8 bits, or give arrays of uint16"
            )
        return image.values
    white = image.white if levels is None else levels
    return np.rint(np.minimum(image.values, white) * (255.0) / white).astype(np.uint8)


@dataclass
class Findings:
    """What a reader of a data set has to know of its pictures: numbers of images, and the largest of their values.

    bright: of 16 bits, and not darker than an eighth of the range. coarse: of 16 bits, of which 8 could be read. above:
    with values above `data.levels`.
    """

    images: int = 0
    deep: int = 0
    bright: int = 0
    coarse: int = 0
    above: int = 0
    paged: int = 0
    transparent: int = 0
    largest: int = 0

    def add(self, image: Picture, levels: int | None) -> None:
        """Count a picture."""
        self.images += 1
        self.paged += image.paged
        self.transparent += image.transparent
        if image.deep:
            largest = int(image.values.max())
            self.deep += 1
            self.bright += largest * DARK >= image.white
            self.coarse += image.white == 255
            self.above += levels is not None and largest > levels
            self.largest = max(self.largest, largest)

    def include(self, other: "Findings") -> None:
        """Count the pictures of another count."""
        for each in fields(self):
            combine = max if each.name == "largest" else sum
            setattr(self, each.name, combine((getattr(self, each.name), getattr(other, each.name))))

    def notes(self, levels: int | None, asked: int | str | None) -> list[str]:
        """A line each. levels: the white that was used; asked: `data.levels`."""

        def count(number: int) -> str:
            return f"{number:,} of {self.images:,} images"

        lines = []
        if levels is not None and asked == "max" and self.deep:
            lines.append(f"white is grey level {levels:,}, the largest of the training images (data.levels=max)")
        if self.above:
            lines.append(f"{count(self.above)} have grey levels above data.levels={levels}, which are white")
        if levels is None and self.deep and not self.bright:
            bits = 2 ** max(self.largest.bit_length(), 1) - 1
            remedy = f"set data.levels={bits}, the largest value being {self.largest:,}, or data.levels=max"
            if self.coarse:  # see `eight_bits`
                remedy = "Pillow reads 8 bits of such colours; convert them to 8 bits, or give arrays of uint16"
            lines.append(
                f"all {self.deep:,} images of 16 bits are darker than an eighth of the range, and keep few levels: "
                f"{remedy}"
            )
        if self.paged:
            lines.append(f"{count(self.paged)} have further pages or frames, which are left out")
        if self.transparent:
            lines.append(f"{count(self.transparent)} have transparent pixels, whose transparency is left out")
        return lines


def as_image(content: Any, where: str) -> Picture:
    """An image of Pillow, NumPy or torch, of 8 or 16 bits a channel; floats in [0, 1] are scaled by 255.

    where: for messages. Raises DataError: another type, shape or range.
    """
    if isinstance(content, Image.Image):
        try:
            return of_pillow(content)
        except Exception as error:  # decoders raise errors of many unrelated classes for a broken file
            raise DataError(f"{where} cannot be read ({error}): replace or remove it") from error
    try:
        array = np.asarray(content)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    except Exception as error:  # a tensor of a GPU, a list of lists of several lengths
        raise DataError(f"{where} is no image ({error}): give one of Pillow, or an array on the CPU") from error
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3) or not array.size:
        kind = f"{array.dtype} {list(array.shape)}" if array.dtype != object else f"of type {type(content).__name__}"
        raise DataError(
            f"{where} is {kind}: give an image of Pillow, uint8, uint16, or floats in [0, 1] before normalisation"
        )
    if array.ndim == 2:
        return picture(array[None])
    if array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        return picture(array)
    if array.shape[2] > 4:
        raise DataError(
            f"{where} has shape {list(array.shape)}: give [H, W], [H, W, C] or [C, H, W] with 1 or 3 channels"
        )
    return picture(array.transpose(2, 0, 1))
