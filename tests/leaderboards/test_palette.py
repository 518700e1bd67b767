"""The colours of rows: far apart for every reader, visible on both papers, and never twice in one figure."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from leaderboards import palette
from leaderboards.comparisons import COMPARISONS
from leaderboards.pages.studies import STUDIES

CSS = (Path(__file__).parents[2] / "leaderboards" / "site" / "style.css").read_text()
PAPERS = dict(zip(("light", "dark"), re.findall(r"--paper: light-dark\((#\w+), (#\w+)\)", CSS)[0], strict=True))
HUES = {"light": palette.LIGHT, "dark": palette.DARK}
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
"""On linear RGB: Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision
deficiency", IEEE TVCG 15(6), 2009, severity 1.0."""
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
"""Linear sRGB to CIE XYZ, D65 (IEC 61966-2-1)."""
APART = 20.0
"""Least difference of two hues, CIE 1976 in CIELAB; about 2.3 is just noticeable (Mahy et al. 1994)."""


def linear(colour):
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour, vision):
    """CIELAB of a colour as a reader sees it."""
    seen = np.clip(np.asarray(VISION[vision]) @ linear(colour), 0, 1)
    x, y, z = np.cbrt(XYZ @ seen / XYZ.sum(axis=1))  # the ratios are above 0.0089, where the cube root holds
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    """The contrast ratio of WCAG 2."""
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", HUES)
def test_any_two_hues_are_far_apart_for_every_reader_and_each_stands_out_from_its_paper(theme):
    """WCAG 2.1 asks 3 of graphics, and 4.5 of text."""
    for vision in VISION:
        seen = [lab(colour, vision) for colour in HUES[theme]]
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > APART, vision
    assert min(contrast(colour, PAPERS[theme]) for colour in HUES[theme]) >= 3
    assert PAPERS["light"] == "#ffffff"  # also that of the committed figures
    assert contrast(palette.GREY, PAPERS["light"]) >= 4.5


def test_no_committed_figure_has_a_hue_twice():
    figures = {figure["file"]: figure["rows"] for figure in COMPARISONS["figures"]}
    for study in STUDIES:
        lines = study["ours"]["lines"].values()
        figures[study["page"]] = [next(iter(line.values())).split()[1] for line in lines]
    for name, rows in figures.items():
        hues = [palette.hue(row) for row in rows]
        assert len(set(hues)) == len(rows), name


def test_a_row_is_named_under_one_hue_and_has_that_of_its_full_name():
    named = [row for content in palette._HUES.values() for row in content["rows"]]
    assert len(named) == len(set(named)) == len(palette.ROWS)
    for row in ("fedavg", "fedx"):
        assert palette.hue(row) == palette.hue(f"{row}-simclr")
    assert palette.hue("untrained") is None


def test_rows_of_one_hue_differ_in_dash_and_marker_and_a_row_keeps_its_colour():
    rows = ["ssd", *(row for row in (f"row-{k}" for k in range(200)) if palette.hue(row) == palette.hue("ssd"))][:20]
    looks = palette.looks(rows)
    assert {look.colour for look in looks} == {palette.LIGHT[palette.ROWS["ssd"]]}
    assert len({(str(look.dash), look.marker) for look in looks}) == 20
    assert len({str(look.dash) for look in looks[:4]}) == 4
    assert {palette.hue(f"row-{k}") for k in range(200)} == set(range(len(palette.LIGHT)))
