"""The views of fixed shapes against the reference: uncompiled for every stage, compiled for the default recipe."""

import shutil

import pytest
import torch

from datamodules import compiled, views
from datamodules.compiled import apply_compiled, apply_table, tabulate
from datamodules.recipe import Recipe, ViewError
from tests.datamodules.own_data import bytes_of, refused, seeded

EVERY_STAGE = {"blur": 0.5, "blur_kernel": 5, "solarize": 0.5, "rotation": 20}
RECIPES = {
    "default": {},
    "every stage": EVERY_STAGE | {"mean": (0.4, 0.5, 0.6), "std": (0.9, 1.0, 0.8)},
    "bicubic": {"interpolation": "bicubic"},
    "uncropped": EVERY_STAGE | {"crop_scale": None},
    "unflipped": {"crop_scale": None, "flip": 0.0},
    "strong": {"jitter": (0.8, 0.8, 0.8, 0.5), "jitter_p": 1.0},
    "no hue": {"jitter": (0.4, 0.0, 0.4, 0.0), "grayscale": 1.0},
    "crop alone": {"jitter_p": 0.0, "grayscale": 0.0},
    "zero jitter": {"jitter": (0.0, 0.0, 0.0, 0.0)},
}


def both(function, images, recipe, seed=1):
    """Views by the reference and by `function`, from the same draws."""
    drawn = views.draw(len(images), *images.shape[2:], recipe, seeded(seed))
    return views.apply(images, drawn, recipe), function(images, drawn, recipe)


def uncompiled(images, draws, recipe):
    return apply_table(images, tabulate(draws, recipe), recipe)


@pytest.mark.parametrize("shape", [(60, 3, 16, 16), (33, 3, 40, 21), (40, 1, 16, 16)], ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_fixed_shapes_give_the_views_of_the_reference(name, shape):
    changes = RECIPES[name]
    if shape[1] == 1 and "mean" in changes:
        changes = changes | {"mean": (0.5,), "std": (0.8,)}
    images, recipe = bytes_of(shape), Recipe(16, **changes)
    before = images.clone()
    reference, ours = both(uncompiled, images, recipe)
    torch.testing.assert_close(ours, reference, atol=1e-5, rtol=0)
    assert ours.is_contiguous()
    assert torch.equal(images, before)


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="inductor needs a C++ compiler")
@pytest.mark.long
def test_compiled_is_the_reference_for_any_number_of_images_by_one_compilation():
    """Compiled by inductor, as in use: the code it generates for this CPU has to be correct."""
    recipe = Recipe(8, pad=2, mean=(0.5,), std=(0.5,))
    torch.compiler.reset()
    programs = torch._dynamo.utils.counters["stats"]
    before = programs["unique_graphs"]
    for n in (6, 2, 40, 1, 0):
        reference, ours = both(apply_compiled, bytes_of((n, 3, 8, 8)), recipe, seed=n)
        torch.testing.assert_close(ours, reference, atol=1e-5, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        reference, ours = both(apply_compiled, bytes_of((9, 3, 8, 8)), recipe)
    torch.testing.assert_close(ours, reference, atol=1e-5, rtol=0)
    assert programs["unique_graphs"] == before + 1


def test_wrong_images_are_errors_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", lambda: pytest.fail("compiled"))
    images, recipe = bytes_of((4, 1, 8, 8)), Recipe(8, mean=(0.5, 0.5), std=(0.5, 0.5))
    with refused("the images have 1 channels; give 1 or as many", ViewError):
        apply_compiled(images, views.draw(4, 8, 8, recipe, seeded(0)), recipe)
    with refused("give uint8", ViewError):
        apply_compiled(images.float(), views.draw(4, 8, 8, Recipe(8), seeded(0)), Recipe(8))
