"""Names of all scripts and lengths in the figures of a run: no warning, and nothing outside of the picture."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmark.tracking import plots
from datamodules.heterogeneity import bubble_chart
from leaderboards.labels import LONGEST, drawable, short

SCRIPTS = ["中文网络医院第一号", "مستشفى القاهرة", "בית חולים", "病院😀🧪", "โรงพยาบาล", "_$a^b$_"]
LONG = [f"hospital_of_the_university_in_the_middle_of_the_town_ward_{k:02}" for k in range(6)]


@settings(derandomize=True)
@given(st.text(max_size=80))
def test_a_short_name_is_short_and_escapes_stay_whole(name):
    made = short(name)
    assert len(made) <= LONGEST
    whole = drawable(name)
    assert made == whole if len(whole) <= LONGEST else made.count("…") >= 1
    first, _, last = made.partition("…")
    assert whole.startswith(first)
    assert whole.endswith(last) or "…" in last


def test_names_that_begin_alike_are_told_apart_and_plain_ones_stay():
    assert len(set(map(short, LONG))) == len(LONG)
    plain = ["airplane", "Straße 7", "été", "Ω ≤ 3", "больница"]
    assert list(map(short, plain)) == plain


def border(path):
    """Whether a pixel of the picture's edge is painted: something is cut off there."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"))
    return bool((np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]) < 250).any())


@pytest.mark.parametrize("names", [SCRIPTS, LONG], ids=["scripts", "long"])
def test_every_figure_with_names_draws_without_a_warning(names, tmp_path):
    labels = np.arange(60) % len(names)
    parts = [np.flatnonzero(labels == k) for k in range(len(names))]
    values = {name: {"values": torch.tensor([3.0, 2.0, 1.0])} for name in names}
    places = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2)))
    attack = {"members": torch.rand(9), "others": torch.rand(9), "surest": torch.zeros(4, 1, 8, 8, dtype=torch.uint8)}
    title = " ".join(names)
    figures = {
        "partition": lambda path: bubble_chart(labels, parts, path, classes=names, names=names, spelt=short),
        "tsne": lambda path: plots.embedding(places, torch.from_numpy(labels), names, path, title),
        "spectrum": lambda path: plots.spectra(values, path, title),
        "membership": lambda path: plots.membership(dict.fromkeys(names, attack), path, title),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = plots.save(figures, tmp_path / "figures")
    assert not [name for name, file in files.items() if border(file)]
