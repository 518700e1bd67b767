import pytest

from leaderboards.pages import board, curves, plots
from tests.leaderboards.test_schema import record as a_record

ROWS = ("fedavg-align_uniform", "ssd")


def seen(values, **others):
    return [{"round": float(r + 1), "uniformity_between": v, "uniformity_within": v, "monitor": 50.0} | others
            for r, v in enumerate(values)]  # fmt: skip


@pytest.fixture
def records():
    return [
        {**a_record(row, seed, 50.0, scenario="cifar10-mini"), "curve": seen([-1.0 - seed, -2.0])}
        for row in ROWS
        for seed in (0, 1)
    ]


def test_mean_and_spread_over_seeds():
    both = [seen([-1.0, -2.0, -3.0]), seen([-2.0, -2.0])]
    points = curves.mean_and_spread(both, "uniformity_between")
    assert points == [(1, -1.5, pytest.approx(0.5**0.5)), (2, -2.0, 0.0)]  # a round that one has not seen is left out
    assert curves.mean_and_spread(both[:1], "uniformity_between")[2] == (3, -3.0, 0.0)


def test_a_place_may_be_the_bytes_or_seconds_until_then():
    one = [{**point, "bytes": 10.0 * point["round"], "seconds": 1.0} for point in seen([-1.0, -2.0])]
    other = [{**point, "bytes": 30.0 * point["round"], "seconds": 3.0} for point in seen([-1.0, -2.0])]
    assert curves.mean_and_spread([one, other], "monitor", "bytes") == [(20.0, 50.0, 0.0), (40.0, 50.0, 0.0)]
    assert curves.mean_and_spread([one, other], "monitor", "seconds") == [(2.0, 50.0, 0.0), (2.0, 50.0, 0.0)]


def test_bytes_are_drawn_in_gigabytes_over_orders_of_magnitude(records, tmp_path, monkeypatch):
    asked = {"file": "b", "title": "t", "scenario": "cifar10-mini", "against": "bytes", "rows": [*ROWS],
             "metrics": {"monitor": "kNN"}}  # fmt: skip
    monkeypatch.setitem(curves.COMPARED, "figures", [asked])
    for record in records:
        record["curve"] = [{**point, "bytes": 2e9 * point["round"]} for point in record["curve"]]
    (draw,) = curves.curves(records).values()
    plots.save(draw, tmp_path / "b.svg")
    assert "mathdefault" not in (tmp_path / "b.svg").read_text()
    (axes,) = draw().axes
    assert list(axes.lines[0].get_xdata()) == [2.0, 4.0]
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "GB up and down, all clients")


def test_a_figure_is_drawn_where_two_rows_have_curves(records, tmp_path):
    assert list(curves.curves(records)) == ["ssd-uniformity"]
    board.write(records, tmp_path)
    first = (tmp_path / "figures" / "ssd-uniformity.svg").read_bytes()
    board.write(records, tmp_path)
    assert (tmp_path / "figures" / "ssd-uniformity.svg").read_bytes() == first
    assert "figures/ssd-uniformity.svg" in (tmp_path / "README.md").read_text()


def test_records_without_curves_have_no_figure(records):
    for record in records:
        if record["row"] == "ssd":
            del record["curve"]
    assert curves.curves(records) == {}


@pytest.mark.parametrize(
    ("left_out", "words"),
    [((), "mean and spread of 2 seeds"), ((0,), "mean and spread of 1 to 2 seeds"), ((0, 2), "one seed")],
)
def test_its_title_says_how_many_seeds_are_behind_it(records, left_out, words):
    kept = [record for k, record in enumerate(records) if k not in left_out]
    (draw,) = curves.curves(kept).values()
    assert words in draw().get_suptitle()
