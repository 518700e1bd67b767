"""Icons of one name as grey images, the content of the federation `icons`.

A package of Iconify has the SVG bodies of a family. They are drawn by resvg, whose wheel is 1.4 MB and needs nothing of
the system, where Skia's is 15 MB and CairoSVG needs Cairo installed.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from datamodules.errors import DataError, one_line
from datamodules.gathered import Drawn
from datamodules.packages import Package, members

SIDE = 32
"""Pixels of an image."""
SHARED = 40
"""Families that have to have a name for it to be a class."""
NAMES = Path(__file__).parent / "icon_names.yaml"
BEGINS = ("baseline", "outline", "sharp", "twotone")
WEIGHTS = "bold|light|regular|thin"
LINES = "duotone|fill(ed)?|line(ar)?|outlined?|solid|stroke|tone|two|twotone"
ENDS = re.compile(f"(-({WEIGHTS}|{LINES}|rounded|sharp))+$")
"""Words at the beginning and end of an icon's name that name its style."""
SIZES = re.compile(r"-\d\d(?=-|$)")


def of_packages(packages: Sequence[Package], folder: Path) -> Iterator[list[Drawn]]:
    """The icons of each package, a family, whose name at least SHARED families have.

    Raises DataError: an icon cannot be drawn, or resvg is not installed.
    """
    families = {package.client: _family(folder / package.file) for package in packages}
    counts = Counter(label for family in families.values() for label in set(map(label_of, family)))
    labels = {label for label, count in counts.items() if label is not None and count >= SHARED}
    for client, family in families.items():
        yield [
            Drawn(client, label, name, drawn(svg, f"{client}, icon {name}"))
            for name, svg in family.items()
            if (label := label_of(name)) in labels and label is not None
        ]


def label_of(name: str) -> str | None:
    """The class of an icon's name: without words of style, by the project's table; None where it says too little.

    >>> label_of("house-outline")
    'home'
    """
    words = name.split("-")
    if words[0] in BEGINS:
        words = words[1:] or words
    same, none = _table()
    plain = ENDS.sub("", "-".join(words))
    label = same.get(plain, plain)
    return None if label in none else label


@cache
def _table() -> tuple[Mapping[str, str], frozenset[str]]:
    """Name -> class, and the names that are no class."""
    table = yaml.safe_load(NAMES.read_text(encoding="utf-8"))
    return {name: label for label, names in table["same"].items() for name in names}, frozenset(table["none"])


def _family(file: Path) -> dict[str, str]:
    """Name without its size -> SVG of a package's icons, the largest of each; no animated ones.

    An alias that turns or mirrors its icon is left out.
    """
    try:
        content = json.loads(members(file, lambda name: name == "icons.json")["icons.json"])
        icons = content["icons"]
        parents = {name: alias["parent"] for name, alias in content.get("aliases", {}).items() if len(alias) == 1}
        found = {name: icons[parent] for name, parent in parents.items() if parent in icons} | icons
        return {
            SIZES.sub("", name): _svg(icon, content)
            for name, icon in sorted(found.items())
            if "<animate" not in icon["body"]
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{file} has no icons of Iconify ({one_line(error)})") from error


def _svg(icon: Mapping[str, Any], family: Mapping[str, Any]) -> str:
    """An icon as an SVG document; what it does not say of its box, its family says."""
    sides = {"left": 0, "top": 0, "width": 16, "height": 16}
    box = " ".join(str(icon.get(key, family.get(key, default))) for key, default in sides.items())
    size = f'width="{SIDE}" height="{SIDE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{box}">{icon["body"]}</svg>'


def drawn(svg: str, where: str) -> np.ndarray:
    """How much an icon covers of each pixel: `[32, 32]` uint8, white on black. Raises DataError: it is no SVG."""
    try:
        import resvg_py
    except ImportError as error:
        raise DataError("icons are drawn by resvg: pip install 'fulcrum-ful[icons]'") from error
    try:
        png = resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True)
    except ValueError as error:
        raise DataError(f"{where} cannot be drawn ({one_line(error)})") from error
    return np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA"))[..., 3]
