"""The comparison of rows: against numbers worked out by hand, other tests of the same thing, and simulated boards."""

import math
from collections.abc import Sequence
from itertools import combinations, islice

import numpy as np
import pytest
from scipy import stats

from leaderboards.significance import Fit, fit

BOARDS = 2000


def compared(**rows: Sequence[float | None]) -> Fit:
    return fit({row: {s: x for s, x in enumerate(sample) if x is not None} for row, sample in rows.items()})


def simulated(rows: int, seeds: int, *, spreads: Sequence[float] | None = None, missing: int = 0, start: int = 0):
    """Boards of rows with equal means, and large effects of seeds; the first `missing` rows lack the last seed."""
    noise = np.random.default_rng(start)
    for _ in range(BOARDS):
        values = noise.normal(size=(rows, seeds)) * np.reshape(spreads or [1.0] * rows, (-1, 1))
        values += 10 * noise.normal(size=seeds)
        yield {str(row): dict(enumerate(line[: seeds - (row < missing)].tolist())) for row, line in enumerate(values)}


def within(count: int, probability: float) -> bool:
    """Whether this many of BOARDS are to be expected; false of one correct test in a thousand."""
    low, high = stats.binom.interval(0.999, BOARDS, probability)
    return low <= count <= high


def claims(found: Fit) -> bool:
    return any(found.differ(*pair) for pair in combinations(found.effects, 2))


def test_a_board_by_hand():
    # row means 51, 49, 47; seed means 48, 49, 50; the errors of a are 0, -1, 1, of b 0, 1, -1, of c 0: s^2 = 4 / 4
    found = compared(a=[50, 50, 53], b=[48, 50, 49], c=[46, 47, 48])
    assert found.effects == pytest.approx({"a": 51, "b": 49, "c": 47})
    assert (found.df, found.spread) == (4, pytest.approx(1.0))
    assert found.residuals["a"] == pytest.approx([0, -1, 1])
    q = 5.0402  # a printed table's upper 5 % point for 3 means and 4 degrees of freedom
    assert found.margins["a"]["c"] == pytest.approx(q / math.sqrt(3), abs=1e-4)
    assert found.smallest_margin == pytest.approx(found.margins["b"]["a"])
    assert (found.better("c"), found.worse("a"), found.better("b"), found.worse("b")) == (("a",), ("c",), (), ())
    assert found.difference("c", "a") == pytest.approx(-4)
    # neither what a seed adds to all rows nor a seed that one row has alone changes anything
    other = compared(a=[50, 70, 33, 90], b=[48, 70, 29], c=[46, 67, 28])
    assert other.margins["a"] == pytest.approx(found.margins["a"])
    assert other.difference("a", "b") == pytest.approx(found.difference("a", "b"))


def test_two_rows_are_compared_by_the_paired_t_test():
    noise = np.random.default_rng(3)
    for seeds in (3, 4, 9):
        first, other = noise.normal(size=(2, seeds)) + np.array([[0.8], [0]])
        found = compared(first=first.tolist(), other=other.tolist())
        paired = stats.ttest_rel(first, other)
        assert found.df == seeds - 1
        interval = paired.confidence_interval(0.95)
        assert found.margins["first"]["other"] == pytest.approx((interval.high - interval.low) / 2, rel=1e-6)
        assert found.differ("first", "other") == (paired.pvalue < 0.05)


def test_missing_seeds_widen_the_margin_and_the_seeds_effects_are_taken_out():
    # every value is a row's 50, 49 or 45 and a seed's 0, 3, -2 or 7: the plain means would say that c is as good as b
    found = compared(a=[50, 53, 48, 57], b=[49, 52, 47, None], c=[None, 48, 43, 52])
    assert found.difference("a", "b") == pytest.approx(1)
    assert found.difference("a", "c") == pytest.approx(5)
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert found.better("c") == ("a", "b")  # without any error every difference counts
    noisy = compared(a=[50, 53, 49, 57], b=[49, 53, 47, None], c=[None, 48, 43, 52.5], d=[41, 41, 41, 41])
    assert noisy.margins["a"]["d"] < noisy.margins["a"]["b"] < noisy.margins["b"]["c"]
    # a has 4 seeds, d 4: the variance is 1/4 + 1/4; s and q are the board's own
    q = stats.studentized_range.ppf(0.95, 4, noisy.df)
    assert noisy.margins["a"]["d"] == pytest.approx(q * noisy.spread / 2)


def test_rows_that_no_seed_connects_do_not_differ():
    apart = {row: {start + k: 50.0 + k**1.5 for k in range(3)} for row, start in (("a", 0), ("b", 9))}
    assert fit(apart) is None  # all degrees of freedom went into rows and seeds
    found = fit({**apart, "c": {0: 40.0, 1: 41.0, 2: 42.0}, "d": {9: 10.0, 10: 11.0, 11: 12.0}})
    assert found.margins["a"]["b"] == math.inf
    assert (found.worse("a"), found.better("c"), found.worse("c")) == (("c",), ("a",), ())


def test_fewer_than_two_rows_of_three_seeds_are_not_compared():
    assert compared() is compared(a=[1, 2, 3]) is compared(a=[1, 2, 3], b=[1, 2]) is None
    assert list(compared(a=[1, 2, 3], b=[1, 2], c=[5, 6, 7.5]).effects) == ["a", "c"]


@pytest.mark.parametrize(("rows", "seeds"), [pytest.param(60, 3, marks=pytest.mark.long), (20, 5), (4, 3)])
def test_equal_rows_give_a_false_statement_on_one_board_in_twenty(rows, seeds):
    assert within(sum(claims(fit(values)) for values in simulated(rows, seeds)), 0.05)


def test_with_missing_seeds_false_statements_are_no_more_frequent():
    count = sum(claims(fit(values)) for values in simulated(12, 5, missing=5))
    assert count <= stats.binom.ppf(0.999, BOARDS, 0.05)


@pytest.mark.parametrize("rows", [2, 10, pytest.param(60, marks=pytest.mark.long)])
def test_rows_two_deviations_apart_are_told_apart_as_often_as_the_formula_says(rows):
    """|t| > q / sqrt(2), with t noncentral: five seeds, a difference of 2 sigma."""
    seeds, df = 5, (rows - 1) * 4
    critical = stats.studentized_range.ppf(0.95, rows, df) / math.sqrt(2)
    shift = 2 / math.sqrt(2 / seeds)
    power = stats.nct.sf(critical, df, shift) + stats.nct.cdf(-critical, df, shift)
    boards = (
        {**values, "0": {seed: x + 2 for seed, x in values["0"].items()}} for values in simulated(rows, 5, start=1)
    )
    assert within(sum(fit(values).differ("0", "1") for values in boards), power)


@pytest.mark.parametrize(
    ("rows", "seeds", "missing"), [pytest.param(60, 3, 0, marks=pytest.mark.long), (6, 3, 0), (20, 5, 8)]
)
def test_equal_spreads_are_called_uneven_on_no_more_than_one_board_in_twenty(rows, seeds, missing):
    """Of two tests at 2.5 % that agree in part."""
    count = sum(bool(fit(values).uneven) for values in simulated(rows, seeds, missing=missing, start=2))
    assert stats.binom.ppf(0.001, BOARDS, 0.025) <= count <= stats.binom.ppf(0.999, BOARDS, 0.05)


def test_a_row_with_more_spread_is_named():
    uneven = [
        names for values in simulated(20, 3, spreads=[8.0, *[1.0] * 19], start=3) if (names := fit(values).uneven)
    ]
    assert len(uneven) > 0.7 * BOARDS  # three values may lie close together by chance
    assert sum("0" in names for names in uneven) > 0.98 * len(uneven)
    assert compared(a=[1, 9, 2], b=[5, 5, 5]).uneven == ()  # errors of two rows mirror each other
    assert compared(a=[1, 2, 3], b=[2, 3, 4], c=[7, 8, 9]).uneven == ()


def test_one_seed_of_a_long_board_that_went_wrong_is_seen():
    """Levene's statistic of all rows alone hardly moves: by it, fewer than half of these boards."""
    boards = ({**values, "0": {**values["0"], 0: values["0"][0] - 7}} for values in simulated(56, 3, start=4))
    assert sum(fit(values).uneven == ("0",) for values in islice(boards, 500)) > 0.9 * 500


def test_rows_whose_errors_mirror_each_other_are_named_together():
    """Nothing tells which of the two varies; rounding used to decide."""
    wide, narrow = np.array([1.0, -1.0, 1.0, -1.0]), np.array([0.3, 0.3, -0.3, -0.3])
    samples = {"a": 53 + wide, "b": 52 - wide, "c": 51 + narrow, "d": 50 - narrow}
    assert compared(**{row: sample.tolist() for row, sample in samples.items()}).uneven == ("a", "b")
