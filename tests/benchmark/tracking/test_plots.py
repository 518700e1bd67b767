"""Figures of curves, spectra, embeddings and scores, also for runs with few points."""

from functools import partial

import matplotlib
import matplotlib.colors
import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.tracking import plots
from leaderboards.rank import Cell

CURVE = [
    {"round": r, "monitor": 30.0 + r, "bytes": 1e6 * r, "seconds": 2.0 * r}
    | {"alignment": 0.5 / r, "uniformity": -1.0 * r, "effective_rank": 10.0 + r}
    for r in (1, 2, 3)
]


@pytest.fixture
def figure(tmp_path):
    """Draws a figure and returns its pixels, `[height, width, 3]`."""

    def draw(function, *given):
        function(*given, tmp_path / "a.png", "a title")
        with Image.open(tmp_path / "a.png") as image:
            return np.asarray(image.convert("RGB")).astype(int)

    return draw


def colours(pixels):
    return set(map(tuple, np.unique(pixels.reshape(-1, 3), axis=0).tolist()))


def painted(name):
    return tuple(round(255 * channel) for channel in matplotlib.colors.to_rgb(name))


@pytest.mark.parametrize(
    ("panels", "drawn"), [("geometry", [plots.BLUE, plots.RUST, plots.GREEN]), ("costs", [plots.RUST])]
)
def test_what_the_monitor_saw_is_drawn(panels, drawn, figure):
    for curve in (CURVE, CURVE[:1]):
        assert {painted(colour) for colour in drawn} <= colours(figure(plots.lines, panels, curve))


def test_the_accuracies_of_clients_are_drawn_the_worst_at_the_top(figure):
    few, more = ({f"$site_{k}^2": Cell.of([10.0 + k]) for k in range(n)} for n in (2, 20))
    assert painted(plots.BLUE) in colours(figure(plots.accuracies, few))
    assert len(figure(plots.accuracies, more)) > len(figure(plots.accuracies, few))


def test_what_each_client_gets_is_drawn_with_those_that_never_trained_apart(figure):
    names = [f"$site_{k}^2" for k in range(9)]
    clients, accuracy = torch.tensor([1, 2, 4, 8]), torch.tensor([40.0, 30.0, 50.0, 60.0])
    both, one = (
        figure(partial(plots.served, clients, accuracy, torch.tensor(unseen), torch.tensor([3, 1, 9, 9]), names))
        for unseen in ([False, False, True, True], [False] * 4)
    )
    assert {painted(plots.BLUE), painted(plots.RUST)} <= colours(both)
    assert painted(plots.RUST) not in colours(one)


def test_the_plane_goes_from_the_first_round_to_the_last(figure):
    ends = {painted(matplotlib.colormaps["viridis"](position)) for position in (0.0, 1.0)}
    assert ends <= colours(figure(plots.plane, CURVE))
    dots = [figure(plots.plane, [point]) for point in (CURVE[0], {**CURVE[0], "alignment": 0.1})]  # without a line
    assert (dots[0] != dots[1]).any()


def test_costs_are_of_the_monitor_or_the_effective_rank_where_there_are_no_labels(figure):
    def costs(change):
        return figure(plots.lines, "costs", [{**point, **change(point)} for point in CURVE])

    plain = costs(lambda point: {})
    assert (plain == costs(lambda point: {"effective_rank": 1.0})).all()
    assert (plain != costs(lambda point: {"monitor": 90 - point["monitor"]})).any()
    assert painted(plots.GREY) in colours(costs(lambda point: {"bytes": 0}))  # a text in the place of the axis
    unlabelled = [{key: value for key, value in point.items() if key != "monitor"} for point in CURVE]
    shown = colours(figure(plots.lines, "costs", unlabelled))
    assert (painted(plots.BLUE) in shown, painted(plots.RUST) in shown) == (True, False)


def test_every_encoder_has_its_spectrum_and_a_collapsed_one_too(figure):
    values = {"a": torch.tensor([4.0, 2.0, 1.0]), "b": torch.tensor([3.0, 0.0, 0.0]), "flat": torch.zeros(3)}
    encoders = {name: {"values": each} for name, each in values.items()}
    assert {painted(f"C{k}") for k in range(3)} <= colours(figure(plots.spectra, encoders))


@pytest.mark.parametrize("classes", [3, 15, 100])
def test_classes_are_told_apart_by_colour(classes, figure):
    places = torch.tensor([[0.0, 0], [1, 0], [0, 1]]).repeat_interleave(50, dim=0) + 0.1 * torch.rand(150, 2)
    labels, names = torch.arange(3).repeat_interleave(50), [f"class {k}" for k in range(classes)]
    wanted = {tuple(round(255 * channel) for channel in plots._colour(k, classes)[:3]) for k in range(3)}
    assert wanted <= colours(figure(plots.embedding, places, labels, names))


def test_scores_and_accuracies_have_their_correlation(tmp_path):
    points = [(0.1, 40.0), (0.2, 42.0), (0.3, 41.0), (0.4, 47.0)]
    caption = plots.scatter(points, tmp_path / "a.png", "t")
    pearson = np.corrcoef(*zip(*points, strict=True))[0, 1]
    assert caption == f"score and kNN accuracy correlate by {pearson:.2f}, their ranks by 0.80"
    for few in (1, 2):
        assert plots.scatter(points[:few], tmp_path / "b.png", "t") == "too few points to correlate"


def test_an_attack_is_drawn_with_the_images_it_is_surest_of(figure):
    def attack(shift, image):
        surest = torch.tensor(image, dtype=torch.uint8).view(1, -1, 1, 1).expand(16, -1, 8, 8)
        return {"members": torch.linspace(0, 1, 50) + shift, "others": torch.linspace(0, 1, 60), "surest": surest}

    both = {"client0": attack(0.5, [0, 200, 0]), "client1": attack(0, [0, 200, 0])}
    assert {painted("C0"), painted("C1"), (0, 200, 0)} <= colours(figure(plots.membership, both))
    assert (120, 120, 120) in colours(figure(plots.membership, {"client0": attack(0, [120])}))


def test_what_a_reply_tells_is_drawn_below_the_views(figure):
    truth, guesses = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    truth[:, 0], guesses[:, 2] = 1.0, 1.0
    pixels = figure(plots.inversion, truth, guesses)
    rows = [np.argwhere((pixels == colour).all(axis=2))[:, 0].mean() for colour in ((255, 0, 0), (0, 0, 255))]
    assert rows[0] < rows[1]


def test_class_shares_are_drawn_side_by_side(figure):
    pixels = figure(plots.class_shares, torch.eye(4, dtype=torch.float64), torch.full((4, 4), 0.25).double())
    dark = (pixels[..., 2] - pixels[..., 0] > 60) & (pixels[..., 0] < 30)  # a share of 1
    assert np.argwhere(dark)[:, 1].mean() < pixels.shape[1] / 2
