"""Draws views.png: eight images, and a view of each by the recipe of every scenario.

    PYTHONPATH=. python docs/pictures/draw_views.py

The images are cut from the two photographs that come with scikit-learn. The views are not normalised. The picture's
text `recipes` has the recipe of each scenario, which a test compares with the configs.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_sample_images

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from datamodules.recipe import Recipe
from datamodules.views import make_views

FILE = Path(__file__).with_name("views.png")
SIDE, GAP, LABEL, SEED = 64, 4, 316, 0
CUTS = ((0, 40, 20, 230), (0, 140, 220, 200), (0, 150, 420, 200), (0, 20, 60, 120), (0, 20, 200, 400),
        (1, 80, 190, 300), (1, 120, 250, 150), (1, 0, 40, 427))  # fmt: skip
"""Photograph, top, left and side in pixels of each image."""
LARGE = ("imagenet-100", "tiny-imagenet")
"""Data sets of images larger than 32 pixels. Shifts and the kernels of a blur are in pixels."""


def recipes() -> dict[str, Recipe]:
    """The recipe of each scenario, without the normalisation, for images of 32 pixels, or 64 for larger ones."""
    found = {}
    for scenario in available("scenario"):
        config = compose(scenario, "fedavg")
        large = config.data.image_size > 32 if config.data.image_size else config.data.name in LARGE
        values = OmegaConf.to_container(config.views, resolve=True)
        found[scenario] = Recipe(**{**values, "size": 64 if large else 32, "mean": None, "std": None})
    return found


def images(size: int) -> torch.Tensor:
    """The eight images, uint8 `[8, 3, size, size]`."""
    photographs = load_sample_images().images
    cuts = [photographs[photo][top : top + side, left : left + side] for photo, top, left, side in CUTS]
    small = [np.asarray(Image.fromarray(cut).resize((size, size), Image.Resampling.LANCZOS)) for cut in cuts]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).contiguous()


def words(recipe: Recipe) -> str:
    """What a recipe does."""
    brightness, contrast, saturation, hue = recipe.jitter
    stages = {
        f"shift by up to {recipe.pad} pixels": recipe.pad,
        f"crop {'-'.join(f'{share:g}' for share in recipe.crop_scale or ())}": recipe.crop_scale,
        f"flip ({100 * recipe.flip:g} %)": recipe.flip,
        f"rotation {recipe.rotation:g}°": recipe.rotation,
        f"jitter {brightness:g} {contrast:g} {saturation:g} {hue:g} ({100 * recipe.jitter_p:g} %)": recipe.jitter_p,
        f"grey ({100 * recipe.grayscale:g} %)": recipe.grayscale,
        f"blur of {recipe.blur_kernel} pixels ({100 * recipe.blur:g} %)": recipe.blur,
        f"solarize ({100 * recipe.solarize:g} %)": recipe.solarize,
    }
    return ", ".join(stage for stage, used in stages.items() if used)


def title(scenarios: list[str], found: Mapping[str, Recipe]) -> str:
    """Scenarios in few words: those of a paper by its folder, with their data sets where it has several recipes."""
    others = {name.partition("/")[0] for name, recipe in found.items() if recipe != found[scenarios[0]]}
    short = []
    for name in scenarios:
        folder, slash, _ = name.partition("/")
        data = re.sub("(/tiny-imagenet|/imagenet-100|/[a-z0-9]+).*", r"\1", name)  # without what follows the data set
        short.append(data if folder in others or not slash else f"{folder}/...")
    return ", ".join(dict.fromkeys(short))


def draw() -> Image.Image:
    """The picture."""
    rows: dict[Recipe, list[str]] = {}
    found = recipes()
    for scenario, recipe in found.items():
        rows.setdefault(recipe, []).append(scenario)
    step = SIDE + GAP
    picture = Image.new("RGB", (LABEL + len(CUTS) * step, (1 + len(rows)) * step + GAP), "white")
    pen, bold, font = ImageDraw.Draw(picture), ImageFont.load_default(13), ImageFont.load_default(12)
    lines = [("images", "", images(SIDE))]
    for recipe, scenarios in rows.items():
        (views,), _ = make_views(images(recipe.size), ("augment",), recipe, torch.Generator().manual_seed(SEED))
        lines.append((title(scenarios, found), words(recipe), (views * 255).round().clamp(0, 255).to(torch.uint8)))
    for row, (name, text, tiles) in enumerate(lines):
        top = GAP + row * step
        pen.multiline_text((GAP, top), _wrapped(name, bold), "black", bold, spacing=2)
        pen.multiline_text((GAP, top + SIDE), _wrapped(text, font), "#57606a", font, anchor="ld", spacing=2)
        for column, tile in enumerate(tiles):
            image = Image.fromarray(tile.permute(1, 2, 0).numpy())
            picture.paste(image.resize((SIDE, SIDE), Image.Resampling.NEAREST), (LABEL + column * step, top))
    return picture


def _wrapped(text: str, font: ImageFont.FreeTypeFont) -> str:
    """Text with line breaks, after spaces, so that it fits beside the images."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) > LABEL - 3 * GAP:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def save(file: Path = FILE) -> None:
    """Writes the picture, in 256 colours, with the recipes."""
    text = PngInfo()
    text.add_text("recipes", json.dumps({name: asdict(recipe) for name, recipe in recipes().items()}))
    draw().quantize(256, dither=Image.Dither.NONE).save(file, optimize=True, pnginfo=text)


if __name__ == "__main__":
    save()
