"""The pictures of the guides are of what there is now."""

import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark.configuration.files import available
from methods.base import FederatedMethod, Objective
from methods.core import types

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"


@pytest.fixture(scope="module")
def views():
    spec = importlib.util.spec_from_file_location("draw_views", PICTURES / "draw_views.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recipes(views):
    return views.recipes()


def test_the_picture_of_views_has_every_scenarios_recipe(views, recipes):
    shown = json.loads(Image.open(views.FILE).text["recipes"])
    assert shown.keys() == set(available("scenario"))
    assert shown == json.loads(json.dumps({name: asdict(recipe) for name, recipe in recipes.items()}))
    assert views.FILE.stat().st_size <= 300_000


def test_the_picture_of_views_is_what_its_script_draws_with_a_row_for_every_recipe(views, recipes):
    drawn = views.draw()
    committed, now = (np.asarray(image.convert("RGB"), float) for image in (Image.open(views.FILE), drawn))
    assert committed.shape == now.shape
    assert np.abs(committed - now).mean() < 4  # it is saved in 256 colours
    assert views.title(["fedx/cifar10", "fedx/cifar10-k5"], recipes) == "fedx/cifar10"
    assert views.title(["orchestra/cifar10-cross-silo", "orchestra/cifar100-cross-silo"], recipes) == "orchestra/..."
    of_a_recipe = [[name for name in recipes if recipes[name] == recipe] for recipe in set(recipes.values())]
    titles = {views.title(names, recipes) for names in of_a_recipe}
    assert len(titles) == len(of_a_recipe)
    assert drawn.size[1] == (1 + len(titles)) * (views.SIDE + views.GAP) + views.GAP


def test_the_picture_of_a_round_names_hooks_that_there_are():
    root = ElementTree.parse(PICTURES / "round.svg").getroot()
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    names = {text.text for text in texts if text.get("class") == "hook"} - {"blue"}
    assert {"send", "receive", "reply", "update", "export", "Mean", "Sum", "Cat", "Each"} <= names
    assert all(any(hasattr(where, name) for where in (FederatedMethod, Objective, types)) for name in names)


@pytest.mark.parametrize("name", ["concept", "round"])
def test_a_drawing_is_readable_in_both_themes(name):
    text = (PICTURES / f"{name}.svg").read_text()
    light, _, dark = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1].partition("prefers-color-scheme: dark")
    colours = re.findall(r"\.(\w+) \{[^}]*(?:fill|stroke): #", light)
    missing = {colour for colour in colours if not re.search(rf"\.{colour}\b", dark)}
    assert missing <= {"inside"}  # white letters on the encoder's blue, in both
    assert colours
