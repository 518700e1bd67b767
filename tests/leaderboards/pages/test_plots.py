"""The figures: what is drawn, and that the same records give the same bytes."""

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from leaderboards import rank
from leaderboards.pages import board, plots, trade_offs
from leaderboards.rank import HEADLINE, Cell, Row
from tests.leaderboards.test_schema import BOARD, record

ROWS = ("fedavg-align_uniform", "ssd")


def curve(values, **others):
    return [{"round": float(r + 1), "uniformity_between": v, "uniformity_within": v, "monitor": 50.0} | others
            for r, v in enumerate(values)]  # fmt: skip


@pytest.fixture
def records():
    both = [(row, seed) for row in ROWS for seed in (0, 1)]
    changes = {"scenario": "cifar10-mini"}
    return [record(row, seed, 50.0, **changes, curve=curve([-1.0 - seed, -2.0])) for row, seed in both]


def test_the_dot_plot_shows_every_seed_its_mean_and_spread_the_floor_and_what_tells_rows_apart():
    rows = rank.board([*BOARD, record("untrained", 0, 30.25)], "cifar10-micro")
    (axes,) = plots.draw_headline(rows, "cifar10-micro").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ssd", "orchestra", "fedavg-byol"]
    drawn = {marker: [] for marker in ("o", "|", "None")}
    for line in axes.lines:
        drawn[line.get_marker()].append((list(line.get_xdata()), list(line.get_ydata())))
    assert drawn["o"] == [([49.3, 51, 52.7], [0] * 3), ([48.7, 48.3, 50], [1] * 3), ([46, 47.7, 47.3], [2] * 3)]
    *means, scale = drawn["|"]
    assert means == [([pytest.approx(51)], [0]), ([pytest.approx(49)], [1]), ([pytest.approx(47)], [2])]
    assert scale[0][1] - scale[0][0] == pytest.approx(margin := rank.fitted(rows).margin_range[1])
    (bar, *_), floor = drawn["None"][:3], drawn["None"][3]
    assert bar[0] == pytest.approx([49.3, 52.7])
    assert floor[0] == [30.25, 30.25]
    bands = [(band.get_y(), band.get_y() + band.get_height()) for band in axes.patches]
    assert bands == [(-0.5, 0.5), (0.5, 1.5)]  # the third row is worse than the first
    assert {text.get_text().strip() for text in axes.texts} == {
        *("1-2", "1-3", "2-3", "51.0 ± 1.7", "49.0 ± 0.9", "47.0 ± 0.9", "untrained 30.2"),
        f"{margin:.1f} points tell two rows apart, by the median of all pairs",
    }


@pytest.mark.parametrize(
    "entries",
    [[], [record("untrained")], [record(linear=None)], [record(r"$\frac$_{", 0, 50.0)]],
    ids=["nothing", "only the floor", "no headline", "a name that is no mathematics"],
)
def test_unusual_boards_have_a_figure(entries, tmp_path):
    rows = rank.board(entries, "cifar10-micro")
    plots.save(lambda: plots.draw_headline(rows, "cifar10-micro"), tmp_path / "figure.svg")
    assert ElementTree.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


def test_a_curve_is_the_mean_and_spread_over_seeds_against_rounds_bytes_or_seconds():
    both = [curve([-1.0, -2.0, -3.0]), curve([-2.0, -2.0])]
    points = plots.mean_and_spread(both, "uniformity_between")
    assert points == [(1, -1.5, pytest.approx(0.5**0.5)), (2, -2.0, 0.0)]  # a round that one seed lacks is left out
    assert plots.mean_and_spread(both[:1], "uniformity_between")[2] == (3, -3.0, 0.0)
    runs = [curve([-1.0, -2.0], bytes=10.0 * k, seconds=float(k)) for k in (1, 3)]
    for point in (point for run in runs for point in run):
        point["bytes"] *= point["round"]
    assert plots.mean_and_spread(runs, "monitor", "bytes") == [(20.0, 50.0, 0.0), (40.0, 50.0, 0.0)]
    assert plots.mean_and_spread(runs, "monitor", "seconds") == [(2.0, 50.0, 0.0), (2.0, 50.0, 0.0)]


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


def test_a_curve_of_losses_alone_is_no_curve_of_a_figure(records):
    axes = {"round": 1, "bytes": 1.0, "seconds": 1.0, "loss": 2.0}
    assert plots.curve_figures([{**each, "curve": [axes]} for each in records]) == {}


def test_labels_are_moved_apart_in_their_order():
    assert plots.spread_labels([0.0, 0.5, 1.0], 0.1) == [0.0, 0.5, 1.0]
    moved = plots.spread_labels([0.52, 0.5, 0.5, 0.9], 0.1)
    assert moved[1] < moved[2] < moved[0] < moved[3]
    assert min(b - a for a, b in pairwise(sorted(moved))) >= 0.1 - 1e-9


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


@pytest.mark.parametrize(
    ("kept", "phrases"),
    [
        ((0, 1, 2, 3), ["mean and spread of 2 seeds"]),
        ((1, 2, 3), ["mean and spread of 1 to 2 seeds"]),
        ((1, 3), ["one seed"]),
        ((0, 1), []),  # of one row: no figure
    ],
)
def test_the_title_gives_the_number_of_seeds(records, kept, phrases):
    found = plots.curve_figures([each if k in kept else {**each, "curve": []} for k, each in enumerate(records)])
    assert len(found) == len(phrases)
    assert all(phrase in draw().get_suptitle() for phrase, draw in zip(phrases, found.values(), strict=True))


ROW = Row(
    **{"row": "a", "method": "fedavg", "objective": "simclr", "settings": {}, "seeds": (0,), "headline": {0: 40.0}},
    **{"cells": {HEADLINE: Cell(40.0, None, 1)}, "images": 1, "server_images": 0, "bytes_up": 1e6, "bytes_down": 1e6},
    **{"client_seconds": 1.0, "rounds": 1, "commits": (), "hardware": (), "dates": ("", "")},
)


def row(name, accuracy, **fields):
    return replace(ROW, row=name, cells={HEADLINE: Cell(accuracy, None, 1)}, **fields)


FIVE = [row(str(k), 40.0 + k, bytes_up=1e6 * (k + 1)) for k in range(5)]


def test_a_row_is_on_the_front_if_no_other_is_cheaper_and_better():
    points = {str(k): (float(7 * k % 20), float(11 * k % 17)) for k in range(20)}
    front = trade_offs.undominated(points)
    for name, (cost, accuracy) in points.items():
        others = [other for other in points.values() if other != (cost, accuracy)]
        assert (name in front) == (not any(other[0] <= cost and other[1] >= accuracy for other in others))
    assert all(points[a][0] < points[b][0] and points[a][1] < points[b][1] for a, b in pairwise(front))
    assert len(trade_offs.undominated({"a": (1.0, 40.0), "b": (1.0, 40.0)})) == 1  # equal rows give one name


def test_bytes_are_those_of_both_ways_and_rows_that_send_nothing_are_left_out():
    silent = row("local", 90.0, bytes_up=0.0, bytes_down=0.0)
    single = row("centralized", 95.0, bytes_up=None, bytes_down=None)
    (draw,) = trade_offs.figures([*FIVE, silent, single], "s").values()
    assert draw.args[0] == {str(k): (k + 2.0, 40.0 + k) for k in range(5)}
    equal, control = [row(str(k), 40.0 + k) for k in range(6)], replace(FIVE[4], control=True)
    for too_few in (FIVE[:3], equal, [*FIVE[:3], control]):  # a control is no method
        assert trade_offs.figures(too_few, "s") == {}


def test_epsilon_counts_where_it_covers_whole_clients_and_attacks_are_a_cost(tmp_path):
    private = [replace(each, epsilon=2.0**k, covers=("weights by client",)) for k, each in enumerate(FIVE)]
    assert list(trade_offs.figures(private, "s")) == ["bytes", "epsilon"]
    looser = [replace(each, row=f"loose {each.row}", delta=0.1) for each in private[:4]]
    assert set(trade_offs.figures([*private, *looser], "s")["epsilon"].args[0]) == set("01234")
    entries = [replace(each, covers=("R",)) for each in private]
    assert list(trade_offs.figures(entries, "s")) == ["bytes"]
    attacks = [{"membership/v1 auc": Cell(0.5 + k / 100, None, 1)} for k in range(5)]
    attacked = [replace(each, cells=each.cells | attack) for each, attack in zip(FIVE, attacks, strict=True)]
    drawn = trade_offs.figures(attacked, "scenario")
    assert list(drawn) == ["bytes", "membership"]
    texts = [text for axes in drawn["membership"]().axes for text in axes.texts]
    assert [text.get_text() for text in texts] == list("01234")
    for name in ("a", "b"):
        plots.save(drawn["bytes"], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_operations_and_memory_are_costs_where_they_were_counted():
    counted = [replace(each, flops=1e9 * 2**k, memory=1e6 * 3**k) for k, each in enumerate(FIVE)]
    drawn = trade_offs.figures([*counted, row("uncounted", 90.0)], "s")
    assert list(drawn) == ["bytes", "flops", "memory"]
    assert drawn["flops"].args[0] == {str(k): (2.0**k, 40.0 + k) for k in range(5)}
    assert drawn["memory"].args[0]["2"] == (9.0, 42.0)
    assert trade_offs.undominated(drawn["flops"].args[0] | {"worse": (3.0, 41.0)}) == list("01234")


def test_one_client_that_holds_all_images_has_no_costs_of_a_federation():
    counted = [replace(each, flops=1e9 * 2**k, memory=1e6 * 3**k) for k, each in enumerate(FIVE)]
    single = replace(counted[0], row="centralized", unranked="one client", bytes_up=None, bytes_down=None)
    assert all("centralized" not in draw.args[0] for draw in trade_offs.figures([*counted, single], "s").values())


@pytest.mark.parametrize("count", [6, 12, 14])
def test_names_of_undominated_rows_lie_left_of_them_and_neither_overlap_nor_leave_the_axes(count):
    rows = [row(f"fedavg-reconstruction-{k}", 40.0 + k / 10, bytes_up=1e6 * (1 + k / 50)) for k in range(count)]
    others = [row(f"x{k}", 30.0 - k, bytes_up=1e6 * (2 + k)) for k in range(3)]
    figure = trade_offs.figures([*rows, *others], "s")["bytes"]()
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == [each.row for each in rows]
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert all(axes.bbox.x0 <= box.x0 and box.y1 <= axes.bbox.y1 + 1 for box in boxes)
    for text, box in zip(axes.texts, boxes, strict=True):
        assert box.x1 < axes.transData.transform(text.xy)[0]


def test_few_costs_that_lie_apart_are_the_marks_of_their_axis():
    def marks(*costs):
        rows = [row(str(k), 40.0 + k, bytes_up=cost * 1e6, bytes_down=0.0) for k, cost in enumerate(costs)]
        axes = trade_offs.figures(rows, "s")["bytes"]().axes[0]
        return [tick.get_text() for tick in axes.get_xticklabels()]

    assert marks(1, 1, 8, 8) == ["1", "8"]
    assert "8.1" not in marks(1, 1, 8, 8.1)
    assert len(marks(11, 11.1, 30, 31)) > 2  # no power of ten lies between
