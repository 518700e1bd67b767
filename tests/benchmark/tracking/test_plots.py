"""Figures of curves, spectra, embeddings and scores, also for runs with few points."""

import matplotlib
import matplotlib.colors
import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.tracking import plots

CURVE = [
    {"round": r, "monitor": 30.0 + r, "bytes": 1e6 * r, "seconds": 2.0 * r}
    | {"alignment": 0.5 / r, "uniformity": -1.0 * r, "effective_rank": 10.0 + r}
    for r in (1, 2, 3)
]


def colours(path):
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    return {tuple(colour) for colour in np.unique(pixels, axis=0)}


def painted(name):
    return tuple(round(255 * channel) for channel in matplotlib.colors.to_rgb(name))


@pytest.mark.parametrize(
    ("panels", "drawn"), [("geometry", [plots.BLUE, plots.RUST, plots.GREEN]), ("costs", [plots.RUST])]
)
@pytest.mark.parametrize("curve", [CURVE, CURVE[:1]], ids=["rounds", "one"])
def test_what_the_monitor_saw_is_drawn(panels, drawn, curve, tmp_path):
    plots.lines(panels, curve, tmp_path / "a.png", "a title")
    assert {painted(colour) for colour in drawn} <= colours(tmp_path / "a.png")


def test_the_plane_goes_from_the_first_round_to_the_last(tmp_path):
    plots.plane(CURVE, tmp_path / "a.png", "t")
    ends = {painted(matplotlib.colormaps["viridis"](position)) for position in (0.0, 1.0)}
    assert ends <= colours(tmp_path / "a.png")
    plots.plane(CURVE[:1], tmp_path / "b.png", "t")  # a dot without a line
    plots.plane([{**CURVE[0], "alignment": 0.1}], tmp_path / "c.png", "t")
    assert (tmp_path / "b.png").read_bytes() != (tmp_path / "c.png").read_bytes()


def test_costs_are_of_the_monitor_or_the_effective_rank_where_there_are_no_labels(tmp_path):
    def costs(name, change):
        plots.lines("costs", [{**point, **change(point)} for point in CURVE], tmp_path / f"{name}.png", "t")
        return (tmp_path / f"{name}.png").read_bytes()

    plain = costs("plain", lambda point: {})
    assert plain == costs("rank", lambda point: {"effective_rank": 1.0})
    assert plain != costs("other", lambda point: {"monitor": 90 - point["monitor"]})
    costs("unsent", lambda point: {"bytes": 0})
    assert painted(plots.GREY) in colours(tmp_path / "unsent.png")  # a text in the place of the axis
    unlabelled = [{key: value for key, value in point.items() if key != "monitor"} for point in CURVE]
    plots.lines("costs", unlabelled, tmp_path / "a.png", "t")
    assert painted(plots.BLUE) in colours(tmp_path / "a.png")
    assert painted(plots.RUST) not in colours(tmp_path / "a.png")


def test_every_encoder_has_its_spectrum_and_a_collapsed_one_too(tmp_path):
    values = {"a": torch.tensor([4.0, 2.0, 1.0]), "b": torch.tensor([3.0, 0.0, 0.0]), "flat": torch.zeros(3)}
    plots.spectra(values, tmp_path / "a.png", "t")
    assert {painted(f"C{k}") for k in range(3)} <= colours(tmp_path / "a.png")


@pytest.mark.parametrize("classes", [3, 15, 100])
def test_classes_are_told_apart_by_colour(classes, tmp_path):
    labels = torch.arange(3)
    places = torch.tensor([[0.0, 0], [1, 0], [0, 1]]).repeat_interleave(50, dim=0) + 0.1 * torch.rand(150, 2)
    names = [f"class {k}" for k in range(classes)]
    plots.embedding(places, labels.repeat_interleave(50), names, tmp_path / "a.png", "t")
    painted_colours = colours(tmp_path / "a.png")
    wanted = {tuple(round(255 * channel) for channel in plots._colour(k, classes)[:3]) for k in range(3)}
    assert wanted <= painted_colours


def test_scores_and_accuracies_have_their_correlation(tmp_path):
    points = [(0.1, 40.0), (0.2, 42.0), (0.3, 41.0), (0.4, 47.0)]
    caption = plots.scatter(points, tmp_path / "a.png", "t")
    pearson = np.corrcoef(*zip(*points, strict=True))[0, 1]
    assert caption == f"score and kNN accuracy correlate by {pearson:.2f}, their ranks by 0.80"
    for few in (1, 2):
        assert plots.scatter(points[:few], tmp_path / "b.png", "t") == "too few points to correlate"


def test_an_attack_is_drawn_with_the_images_it_is_surest_of(tmp_path):
    def attack(shift):
        surest = torch.zeros(16, 3, 8, 8, dtype=torch.uint8)
        surest[:, 1] = 200
        return {"members": torch.linspace(0, 1, 50) + shift, "others": torch.linspace(0, 1, 60), "surest": surest}

    plots.membership({"client0": attack(0.5), "client1": attack(0)}, tmp_path / "a.png", "t")
    assert {painted("C0"), painted("C1"), (0, 200, 0)} <= colours(tmp_path / "a.png")
    grey = {"client0": attack(0) | {"surest": torch.full((3, 1, 8, 8), 120, dtype=torch.uint8)}}
    plots.membership(grey, tmp_path / "b.png", "t")
    assert (120, 120, 120) in colours(tmp_path / "b.png")


def test_what_a_reply_tells_is_drawn_below_the_views(tmp_path):
    truth, guesses = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    truth[:, 0], guesses[:, 2] = 1.0, 1.0
    plots.inversion(truth, guesses, tmp_path / "a.png", "t")
    assert {(255, 0, 0), (0, 0, 255)} <= colours(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    rows = [np.argwhere((pixels == colour).all(axis=2))[:, 0].mean() for colour in ((255, 0, 0), (0, 0, 255))]
    assert rows[0] < rows[1]


def test_class_shares_are_drawn_side_by_side(tmp_path):
    truth, read = torch.eye(4, dtype=torch.float64), torch.full((4, 4), 0.25, dtype=torch.float64)
    plots.class_shares(truth, read, tmp_path / "a.png", "t")
    with Image.open(tmp_path / "a.png") as image:
        blue = np.asarray(image.convert("RGB")).astype(int)
    dark = (blue[..., 2] - blue[..., 0] > 60) & (blue[..., 0] < 30)  # a share of 1
    columns = np.argwhere(dark)[:, 1]
    assert len(columns)
    assert columns.mean() < blue.shape[1] / 2
