import numpy as np
import pytest
from scipy.stats import kendalltau

from leaderboards.pages import twins as page
from leaderboards.rank import board
from leaderboards.twins import agreement, kendall, moved, natural_twins, tau_interval, worst_served
from tests.leaderboards.test_schema import record

BOARDS = {
    "faces": {"data.name": "faces", "partition.name": "folders"},
    "faces-iid": {"data.name": "faces", "partition.name": "folders", "partition.twin": "iid"},
    "faces-dirichlet": {"data.name": "faces", "partition.name": "folders", "partition.twin": 0.1},
    "other-iid": {"data.name": "other", "partition.name": "folders", "partition.twin": "iid"},
    "dealt": {"data.name": "faces", "partition.name": "iid"},
}


def made(scenario: str, means: list[float], noise: float = 0.1, **scores: list[float]) -> list:
    """Three seeds of rows a, b, ... around these means, with errors by row and seed; scores: of by-client/v1."""
    rng = np.random.default_rng(7)
    found = []
    for k, mean in enumerate(means):
        for seed, error in enumerate(rng.standard_normal(3) * noise):
            each = record("abcdefghij"[k], seed, mean + error, scenario=scenario, settings=BOARDS[scenario])
            if scores:
                each["scores"]["by-client/v1"] = {key: values[k] for key, values in scores.items()}
            found.append(each)
    return found


def compared(records: list):
    """The natural board beside its twin at random."""
    return agreement(board(records, "faces"), board(records, "faces-iid"))


def test_a_natural_board_has_the_twins_of_its_data_alone() -> None:
    records = [record(scenario=name, settings=settings) for name, settings in BOARDS.items()]
    assert natural_twins(records) == {"faces": ["faces-dirichlet", "faces-iid"]}
    assert natural_twins(records[1:]) == {}


@pytest.mark.parametrize("seed", range(5))
def test_tau_is_scipys(seed) -> None:
    first, second = np.random.default_rng(seed).standard_normal((2, 9))
    assert kendall(first, second) == pytest.approx(kendalltau(first, second).statistic)


def test_the_interval_of_tau_covers_its_share_of_draws() -> None:
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], (2000, 30))
    taus = kendall(draws[..., 0], draws[..., 1])
    truth = 2 / np.pi * np.arcsin(0.7)
    covered = [low <= truth <= high for low, high in (tau_interval(float(tau), 30) for tau in taus)]
    assert 0.92 < np.mean(covered) < 0.98
    assert tau_interval(1.0, 9) == (1.0, 1.0)


ORDER = [50.0, 52.0, 54.0, 56.0, 58.0, 60.0]


def test_boards_in_one_order_agree_and_a_turned_pair_is_named_with_the_row_first_that_is_better_here() -> None:
    turned = [52.0, 50.0, *ORDER[2:]]
    same = compared(made("faces", ORDER) + made("faces-iid", ORDER))
    other = compared(made("faces", ORDER) + made("faces-iid", turned))
    assert (same.tau, same.reversed, same.alike) == (1, (), 15)
    assert (other.tau, other.reversed, other.alike) == (pytest.approx(13 / 15), (("b", "a"),), 14)
    assert same.same == (1, 1)  # differences of twenty spreads
    assert other.places["a"] == (6, 5)
    assert moved(other.places)[:2] == [("b", 5, 6), ("a", 6, 5)]


def test_spreads_as_large_as_differences_lower_what_one_order_would_show() -> None:
    wide = compared(made("faces", ORDER, 3.0) + made("faces-iid", ORDER, 3.0))
    assert wide.same[1] < wide.same[0] < 0.95


def test_fewer_than_five_shared_rows_are_not_compared() -> None:
    assert compared(made("faces", ORDER) + made("faces-iid", ORDER[:4])) is None
    assert compared(made("faces", ORDER)) is None


def test_the_worst_served_may_be_of_another_order_than_the_mean_client() -> None:
    scores = {"accuracy": ORDER, "accuracy_worst_tenth": [*ORDER[:4], 30.0, 20.0]}
    tau, interval, rows = worst_served(board(made("faces", ORDER, **scores), "faces"))
    assert (tau, rows) == (pytest.approx(kendalltau(*scores.values()).statistic), 6)
    assert interval[0] < tau < interval[1]
    assert worst_served(board(made("faces", ORDER), "faces")) is None


def test_the_page_has_agreement_the_turned_pair_and_every_place(tmp_path) -> None:
    (tmp_path / page.PAGE).write_text("# A question\n\n<!-- twins: x -->\n\n<!-- end of twins -->\n")
    page.write(made("faces", ORDER) + made("faces-iid", [52.0, 50.0, *ORDER[2:]]), tmp_path)
    text = (tmp_path / page.PAGE).read_text()
    assert "| faces | faces-iid | 6 | 0.87 (" in text
    assert "`b` is better than `a` on faces, and worse on faces-iid." in text
    assert "| a | 6 | 5 |" in text
    assert (tmp_path / "natural-faces.svg").read_text().startswith("<?xml")
    page.write([], tmp_path)
    assert "No board and its twin have been recorded yet." in (tmp_path / page.PAGE).read_text()
