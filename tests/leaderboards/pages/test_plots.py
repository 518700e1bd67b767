"""The figures: what is drawn, and that the same records give the same bytes."""

from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from leaderboards.pages import board, plots
from tests.leaderboards.test_schema import record

BOARD = [
    *(record("ssd", seed, linear) for seed, linear in enumerate([50.0, 50.0, 53.0])),
    *(record("orchestra", seed, linear) for seed, linear in enumerate([48.0, 50.0, 49.0])),
    *(record("fedavg-byol", seed, linear) for seed, linear in enumerate([46.0, 47.0, 48.0])),
    record("untrained", 0, 30.25),
]
ROWS = ("fedavg-align_uniform", "ssd")


def curve(values, **others):
    return [{"round": float(r + 1), "uniformity_between": v, "uniformity_within": v, "monitor": 50.0} | others
            for r, v in enumerate(values)]  # fmt: skip


@pytest.fixture
def records():
    return [
        {**record(row, seed, 50.0, scenario="cifar10-mini"), "curve": curve([-1.0 - seed, -2.0])}
        for row in ROWS
        for seed in (0, 1)
    ]


def test_the_dot_plot_shows_every_seed_its_mean_and_spread_the_floor_and_what_tells_rows_apart():
    (axes,) = plots.draw_headline(BOARD, "cifar10-micro").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ssd", "orchestra", "fedavg-byol"]
    drawn = {marker: [] for marker in ("o", "|", "None")}
    for line in axes.lines:
        drawn[line.get_marker()].append((list(line.get_xdata()), list(line.get_ydata())))
    assert drawn["o"] == [([50, 50, 53], [0] * 3), ([48, 50, 49], [1] * 3), ([46, 47, 48], [2] * 3)]
    *means, scale = drawn["|"]
    assert means == [([51], [0]), ([49], [1]), ([47], [2])]
    assert scale[0][1] - scale[0][0] == pytest.approx(5.0402 / 3**0.5, abs=1e-4)
    (bar, *_), floor = drawn["None"][:3], drawn["None"][3]
    assert bar[0] == pytest.approx([51 - 3**0.5, 51 + 3**0.5])
    assert floor[0] == [30.25, 30.25]
    bands = [(band.get_y(), band.get_y() + band.get_height()) for band in axes.patches]
    assert bands == [(-0.5, 0.5), (0.5, 1.5)]  # the third row is worse than the first
    assert {text.get_text().strip() for text in axes.texts} == {
        *("1-2", "1-3", "2-3", "51.0 ± 1.7", "49.0 ± 1.0", "47.0 ± 1.0", "untrained 30.2"),
        "2.9 points tell two rows apart",
    }


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="nothing"),
        pytest.param([record("untrained")], id="only the floor"),
        pytest.param([record(linear=None)], id="no headline"),
        pytest.param([record(r"$\frac$_{", 0, 50.0)], id="a name that is no mathematics"),
    ],
)
def test_unusual_boards_have_a_figure(entries, tmp_path):
    plots.save(lambda: plots.draw_headline(entries, "cifar10-micro"), tmp_path / "figure.svg")
    assert ElementTree.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


def test_a_curve_is_the_mean_and_spread_over_seeds():
    both = [curve([-1.0, -2.0, -3.0]), curve([-2.0, -2.0])]
    points = plots.mean_and_spread(both, "uniformity_between")
    assert points == [(1, -1.5, pytest.approx(0.5**0.5)), (2, -2.0, 0.0)]  # a round that one seed lacks is left out
    assert plots.mean_and_spread(both[:1], "uniformity_between")[2] == (3, -3.0, 0.0)


def test_the_x_axis_may_be_the_bytes_or_seconds_up_to_a_round():
    first = [{**point, "bytes": 10.0 * point["round"], "seconds": 1.0} for point in curve([-1.0, -2.0])]
    second = [{**point, "bytes": 30.0 * point["round"], "seconds": 3.0} for point in curve([-1.0, -2.0])]
    assert plots.mean_and_spread([first, second], "monitor", "bytes") == [(20.0, 50.0, 0.0), (40.0, 50.0, 0.0)]
    assert plots.mean_and_spread([first, second], "monitor", "seconds") == [(2.0, 50.0, 0.0), (2.0, 50.0, 0.0)]


def test_bytes_are_drawn_in_gigabytes_over_orders_of_magnitude(records, tmp_path, monkeypatch):
    spec = {"file": "b", "title": "t", "scenario": "cifar10-mini", "against": "bytes", "rows": [*ROWS],
             "metrics": {"monitor": "kNN"}}  # fmt: skip
    monkeypatch.setitem(plots.COMPARISONS, "figures", [spec])
    for entry in records:
        entry["curve"] = [{**point, "bytes": 2e9 * point["round"]} for point in entry["curve"]]
    (draw,) = plots.curve_figures(records).values()
    plots.save(draw, tmp_path / "b.svg")
    assert "mathdefault" not in (tmp_path / "b.svg").read_text()
    (axes,) = draw().axes
    assert list(axes.lines[0].get_xdata()) == [2.0, 4.0]
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "GB up and down, all clients")


def test_a_figure_is_drawn_where_two_rows_have_curves(records, tmp_path):
    assert list(plots.curve_figures(records)) == ["ssd-uniformity"]
    board.write(records, tmp_path)
    first = (tmp_path / "figures" / "ssd-uniformity.svg").read_bytes()
    board.write(records, tmp_path)
    assert (tmp_path / "figures" / "ssd-uniformity.svg").read_bytes() == first
    assert "figures/ssd-uniformity.svg" in (tmp_path / "README.md").read_text()


def test_labels_are_moved_apart_in_their_order():
    assert plots.spread_labels([0.0, 0.5, 1.0], 0.1) == [0.0, 0.5, 1.0]
    moved = plots.spread_labels([0.52, 0.5, 0.5, 0.9], 0.1)
    assert moved[1] < moved[2] < moved[0] < moved[3]
    assert min(b - a for a, b in zip(sorted(moved), sorted(moved)[1:], strict=False)) >= 0.1 - 1e-9


def test_a_line_has_its_name_at_its_end_and_names_do_not_overlap(records):
    (draw,) = plots.curve_figures(records).values()
    figure = draw()
    FigureCanvasAgg(figure).draw()  # constrained layout places the axes
    for axes in figure.axes:
        assert axes.get_legend() is None
        boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without the line to it
        assert set(boxes) == set(ROWS)
        first, second = sorted(boxes.values(), key=lambda box: box.y0)
        assert first.y1 <= second.y0
        assert all(box.x0 > axes.bbox.x1 for box in boxes.values())
        colours = {line.get_label(): to_rgb(line.get_color()) for line in axes.lines}
        assert {text.get_text(): text.arrow_patch.get_edgecolor()[:3] for text in axes.texts} == colours


def test_records_without_curves_have_no_figure(records):
    for entry in records:
        if entry["row"] == "ssd":
            del entry["curve"]
    assert plots.curve_figures(records) == {}


@pytest.mark.parametrize(
    ("left_out", "phrase"),
    [((), "mean and spread of 2 seeds"), ((0,), "mean and spread of 1 to 2 seeds"), ((0, 2), "one seed")],
)
def test_the_title_gives_the_number_of_seeds(records, left_out, phrase):
    entries = [entry for k, entry in enumerate(records) if k not in left_out]
    (draw,) = plots.curve_figures(entries).values()
    assert phrase in draw().get_suptitle()
