from dataclasses import replace
from itertools import pairwise

import pytest

from leaderboards.pages import plots, trade_offs
from leaderboards.rank import HEADLINE, Cell, Row

ROW = Row(
    row="a", method="fedavg", objective="simclr", settings={}, seeds=(0,), headline={0: 40.0},
    cells={HEADLINE: Cell(40.0, None, 1)}, images=1, server_images=0, bytes_up=1e6, bytes_down=1e6,
    client_seconds=1.0, rounds=1, commits=(), hardware=(), dates=("", ""),
)  # fmt: skip


def row(name, accuracy, **fields):
    return replace(ROW, row=name, cells={HEADLINE: Cell(accuracy, None, 1), **fields.pop("cells", {})}, **fields)


FIVE = [row(str(k), 40.0 + k, bytes_up=1e6 * (k + 1)) for k in range(5)]


def test_a_row_is_on_the_front_if_no_other_is_cheaper_and_better():
    points = {str(k): (float(7 * k % 20), float(11 * k % 17)) for k in range(20)}
    front = trade_offs.undominated(points)
    for name, (cost, accuracy) in points.items():
        beaten = any(
            other != (cost, accuracy) and other[0] <= cost and other[1] >= accuracy for other in points.values()
        )
        assert (name in front) == (not beaten)
    assert all(points[a][0] < points[b][0] and points[a][1] < points[b][1] for a, b in pairwise(front))


def test_equal_rows_give_one_name():
    assert len(trade_offs.undominated({"a": (1.0, 40.0), "b": (1.0, 40.0)})) == 1


def test_bytes_are_those_of_both_ways_and_rows_that_send_nothing_are_left_out():
    silent = row("local", 90.0, bytes_up=0.0, bytes_down=0.0)
    single = row("centralized", 95.0, bytes_up=None, bytes_down=None)
    (draw,) = trade_offs.figures([*FIVE, silent, single], "s").values()
    points = draw.args[0]
    assert points == {str(k): (k + 2.0, 40.0 + k) for k in range(5)}


@pytest.mark.parametrize("rows", [FIVE[:3], [row(str(k), 40.0 + k) for k in range(6)]], ids=["few", "equal"])
def test_too_few_rows_or_equal_costs_are_no_figure(rows):
    assert trade_offs.figures(rows, "s") == {}


def test_controls_are_no_methods():
    assert trade_offs.figures([*FIVE[:3], replace(FIVE[4], control=True)], "s") == {}


def test_epsilon_counts_where_it_covers_whole_clients():
    private = [replace(each, epsilon=2.0**k, covers=("weights by client",)) for k, each in enumerate(FIVE)]
    assert list(trade_offs.figures(private, "s")) == ["bytes", "epsilon"]
    looser = [replace(each, row=f"loose {each.row}", delta=0.1) for each in private[:4]]
    assert set(trade_offs.figures([*private, *looser], "s")["epsilon"].args[0]) == set("01234")
    entries = [replace(each, covers=("R",)) for each in private]
    assert list(trade_offs.figures(entries, "s")) == ["bytes"]


def test_few_costs_that_lie_apart_are_the_marks_of_their_axis():
    def marks(*costs):
        rows = [row(str(k), 40.0 + k, bytes_up=cost * 1e6, bytes_down=0.0) for k, cost in enumerate(costs)]
        axes = trade_offs.figures(rows, "s")["bytes"]().axes[0]
        return [tick.get_text() for tick in axes.get_xticklabels()]

    assert marks(1, 1, 8, 8) == ["1", "8"]
    assert "8.1" not in marks(1, 1, 8, 8.1)


def test_attacks_are_a_cost(tmp_path):
    attacked = [
        replace(each, cells={**each.cells, "membership/v1 auc": Cell(0.5 + k / 100, None, 1)})
        for k, each in enumerate(FIVE)
    ]
    drawn = trade_offs.figures(attacked, "scenario")
    assert list(drawn) == ["bytes", "membership"]
    texts = [text for axes in drawn["membership"]().axes for text in axes.texts]
    assert [text.get_text() for text in texts] == list("01234")
    for name in ("a", "b"):
        plots.save(drawn["bytes"], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
