"""Characters of a font as grey images, the content of the federation `typefaces`."""

import io
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from datamodules.errors import DataError, one_line
from datamodules.gathered import Drawn
from datamodules.packages import Package, members

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""The classes: FEMNIST's 62, in its order."""
SIDE, CAPITAL, MARGIN = 28, 18, 1  # pixels: of an image, of the capital H, and free at each border
FINER = 4  # a glyph is drawn so many times larger, so that hinting moves nothing, and then averaged
ABSENT = "\U0010ffff"  # no character: what a font shows for those that it lacks
LATIN = re.compile(r"files/.+-latin-(\d+)-(normal|italic)\.woff2")
"""Fonts of a package of Fontsource with the letters of English: weight and style."""
SAMPLE = {
    "computer-modern-roman": {"400-normal": "cmr10", "400-italic": "cmti10", "700-normal": "cmb10"},
    "computer-modern-sans": {"400-normal": "cmss10"},
    "computer-modern-typewriter": {"400-normal": "cmtt10"},
    "dejavu-sans": {"400-normal": "DejaVuSans", "400-italic": "DejaVuSans-Oblique", "700-normal": "DejaVuSans-Bold"},
    "dejavu-sans-mono": {"400-normal": "DejaVuSansMono", "700-normal": "DejaVuSansMono-Bold"},
    "dejavu-serif": {"400-normal": "DejaVuSerif", "400-italic": "DejaVuSerif-Italic", "700-normal": "DejaVuSerif-Bold"},
    "stix": {"400-normal": "STIXGeneral", "400-italic": "STIXGeneralItalic", "700-normal": "STIXGeneralBol"},
}
"""Typefaces that Matplotlib brings: name -> weight and style -> file."""


def of_packages(packages: Sequence[Package], folder: Path) -> Iterator[list[Drawn]]:
    """The characters of each package, a typeface, in all its weights and styles.

    Raises DataError: a package without fonts, or with one that cannot be read.
    """
    for package in packages:
        fonts = members(folder / package.file, lambda name: LATIN.fullmatch(name) is not None)
        if not fonts:
            raise DataError(
                f"{package.name}@{package.version} has no file {LATIN.pattern}: take it out of the lock file"
            )
        styles = {"-".join(found.groups()): font for name, font in fonts.items() if (found := LATIN.fullmatch(name))}
        yield _typeface(package.client, styles)


def sample() -> Iterator[list[Drawn]]:
    """The characters of the typefaces of SAMPLE."""
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    for client, files in SAMPLE.items():
        yield _typeface(client, {style: (folder / f"{file}.ttf").read_bytes() for style, file in files.items()})


def _typeface(client: str, styles: Mapping[str, bytes]) -> list[Drawn]:
    """The characters of a typeface's fonts. styles: weight and style -> content of the font."""
    return [
        Drawn(client, character, style, image)
        for style, font in styles.items()
        for character, image in glyphs(font, f"{client}, {style},").items()
    ]


def glyphs(font: bytes, where: str) -> dict[str, np.ndarray]:
    """The characters that a font has: character -> `[28, 28]` uint8, white on black.

    All are drawn in the size in which its H is 18 pixels high, and centred by their box, as FEMNIST's are; one that
    would not fit is made smaller. A character that is empty, or looks as one that the font lacks, is left out.

    Args:
        font: content of a TrueType, OpenType or WOFF2 file. where: for the message.

    Raises DataError: it is no font.
    """
    try:
        height = _box(_font(font, 100), "H")[3] or 70.0
        sized = _font(font, 100 * CAPITAL * FINER / height)
        missing = _drawn(sized, ABSENT)
        drawn = {character: _drawn(sized, character) for character in CHARACTERS}
    except (OSError, ValueError) as error:
        raise DataError(f"{where} cannot be read as a font ({one_line(error)})") from error
    return {
        character: _centred(image)
        for character, image in drawn.items()
        if image is not None and (missing is None or image.tobytes() != missing.tobytes())
    }


def _font(font: bytes, size: float) -> ImageFont.FreeTypeFont:
    """By FreeType's own layout: Raqm is not on every machine."""
    return ImageFont.truetype(io.BytesIO(font), size, layout_engine=ImageFont.Layout.BASIC)


def _box(font: ImageFont.FreeTypeFont, character: str) -> tuple[float, float, float, float]:
    """Left, top, width, height of a character's ink."""
    left, top, right, bottom = font.getbbox(character)
    return left, top, right - left, bottom - top


def _drawn(font: ImageFont.FreeTypeFont, character: str) -> Image.Image | None:
    """A character without borders; None where it has no ink."""
    left, top, width, height = _box(font, character)
    image = Image.new("L", (max(1, round(width)), max(1, round(height))))
    ImageDraw.Draw(image).text((-left, -top), character, fill=255, font=font)
    box = image.getbbox()
    return None if box is None else image.crop(box)


def _centred(glyph: Image.Image) -> np.ndarray:
    """A glyph in the middle of an image."""
    room = (SIDE - 2 * MARGIN) * FINER
    if max(glyph.size) > room:
        glyph.thumbnail((room, room), Image.Resampling.BOX)
    canvas = Image.new("L", (SIDE * FINER, SIDE * FINER))
    left, top = ((SIDE * FINER - length) // 2 for length in glyph.size)
    canvas.paste(glyph, (left, top))
    return np.asarray(canvas.reduce(FINER))
