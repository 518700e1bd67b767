"""The comparison of rows: against numbers worked out by hand, other tests of the same thing, and simulated boards."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from leaderboards.significance import Fit, critical_value, fit, largest

BOARDS = 2000


def compared(**rows: Sequence[float | None]) -> Fit:
    return fit({row: {s: x for s, x in enumerate(sample) if x is not None} for row, sample in rows.items()})


def simulated(rows: int, seeds: int, *, spreads: Iterable[float] | None = None, missing: int = 0, start: int = 0):
    """Boards of rows with equal means, and large effects of seeds; the first `missing` rows lack the last seed."""
    noise = np.random.default_rng(start)
    for _ in range(BOARDS):
        values = noise.normal(size=(rows, seeds)) * np.reshape(
            [*(spreads if spreads is not None else [1.0] * rows)], (-1, 1)
        )
        values += 10 * noise.normal(size=seeds)
        yield {str(row): dict(enumerate(line[: seeds - (row < missing)].tolist())) for row, line in enumerate(values)}


def test_a_board_by_hand():
    # row means 51, 49, 47; seed means 48, 49, 50; the errors of a are 0, -1, 1, of b 0, 1, -1, of c 0, on 4 / 3 degrees
    # of freedom each: the variances 1.5, 1.5 and 0 are too unlike for one
    found = compared(a=[50, 50, 53], b=[48, 50, 49], c=[46, 47, 48])
    assert found.effects == pytest.approx({"a": 51, "b": 49, "c": 47})
    assert found.spreads["a"] == pytest.approx(found.spreads["b"])
    assert found.spreads["c"] < found.spreads["a"]
    assert found.margins["a"]["c"] < found.margins["a"]["b"] == found.margin_range[2]
    assert found.difference("c", "a") == pytest.approx(-4)
    # neither what a seed adds to all rows nor a seed that one row has alone changes anything
    other = compared(a=[50, 70, 33, 90], b=[48, 70, 29], c=[46, 67, 28])
    assert other.spreads == pytest.approx(found.spreads)
    assert other.difference("a", "b") == pytest.approx(found.difference("a", "b"))


def test_better_and_worse_rows_are_those_beyond_the_margin():
    found = compared(a=[60, 60.1, 59.9], b=[50, 50, 50.2], c=[49.9, 50.2, 50])
    assert (found.better("c"), found.worse("a"), found.better("b"), found.worse("b")) == (
        ("a",), ("b", "c"), ("a",), (),
    )  # fmt: skip


def test_a_margin_is_the_critical_value_times_the_deviation_of_the_difference():
    """By hand from the moderated spreads: of rows with the same n seeds, (variance + variance) / n."""
    (values,) = islice(simulated(8, 5, spreads=range(1, 9)), 1)
    found = fit(values)
    deviation = math.sqrt((found.spreads["2"] ** 2 + found.spreads["6"] ** 2) / 5)
    assert found.margins["2"]["6"] == pytest.approx(critical_value(found.design, found.prior_df) * deviation)


def test_two_rows_are_compared_by_the_paired_t_test():
    noise = np.random.default_rng(3)
    for seeds in (3, 4, 9):
        first, other = noise.normal(size=(2, seeds)) + np.array([[0.8], [0]])
        found = compared(first=first.tolist(), other=other.tolist())
        paired = stats.ttest_rel(first, other)
        interval = paired.confidence_interval(0.95)
        assert found.margins["first"]["other"] == pytest.approx((interval.high - interval.low) / 2, rel=1e-6)
        assert found.differ("first", "other") == (paired.pvalue < 0.05)


def test_missing_seeds_widen_the_margin_and_the_seeds_effects_are_taken_out():
    # every value is a row's 50, 49 or 45 and a seed's 0, 3, -2 or 7: the plain means would say that c is as good as b
    found = compared(a=[50, 53, 48, 57], b=[49, 52, 47, None], c=[None, 48, 43, 52])
    assert found.difference("a", "b") == pytest.approx(1)
    assert found.difference("a", "c") == pytest.approx(5)
    assert found.better("c") == ("a", "b")  # without any error every difference counts
    noise = np.random.default_rng(2).normal(size=(20, 4)).tolist()
    wide = compared(
        **{f"r{k}": line for k, line in enumerate(noise)} | {"e": [*noise[0][:3], None], "f": [None, *noise[0][1:]]}
    )
    assert math.isinf(wide.prior_df)  # one variance for all
    assert wide.margins["r1"]["r2"] < wide.margins["r1"]["e"] < wide.margins["e"]["f"]


def test_rows_that_no_seed_connects_do_not_differ():
    apart = {row: {start + k: 50.0 + k**1.5 for k in range(3)} for row, start in (("a", 0), ("b", 9))}
    assert fit(apart) is None  # all degrees of freedom went into rows and seeds
    found = fit({**apart, "c": {0: 40.0, 1: 41.0, 2: 42.0}, "d": {9: 10.0, 10: 11.0, 11: 12.0}})
    assert found.margins["a"]["b"] == math.inf
    assert (found.worse("a"), found.better("c"), found.worse("c")) == (("c",), ("a",), ())


def test_fewer_than_two_rows_of_three_seeds_are_not_compared():
    assert compared() is compared(a=[1, 2, 3]) is compared(a=[1, 2, 3], b=[1, 2]) is None
    assert list(compared(a=[1, 2, 3], b=[1, 2], c=[5, 6, 7.5]).effects) == ["a", "c"]


def false(rows: int, seeds: int, **how) -> int:
    """Boards on which rows of equal means are told apart."""
    boards = [[x for line in board.values() for x in line.values()] for board in simulated(rows, seeds, **how)]
    design = tuple(tuple(range(seeds - (row < how.get("missing", 0)))) for row in range(rows))
    ratios, priors = largest(design, np.array(boards).T)
    return sum(ratio > critical_value(design, prior) for ratio, prior in zip(ratios, priors.tolist(), strict=True))


MOST = stats.binom.ppf(0.999, BOARDS, 0.05)
"""More false boards show a rate above 5 %; so many or fewer are found by all but one correct test in a thousand."""


@pytest.mark.parametrize(
    ("rows", "seeds"), [(2, 3), (3, 3), (4, 5), (20, 5), pytest.param(60, 3, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("spreads", ["equal", "prior"])
def test_equal_rows_give_a_false_statement_on_at_most_one_board_in_twenty(rows, seeds, spreads):
    drawn = np.sqrt(4 / np.random.default_rng(1).chisquare(4, rows))
    assert false(rows, seeds, spreads=np.ones(rows) if spreads == "equal" else drawn) <= MOST


@pytest.mark.parametrize(("rows", "least", "most"), [(3, 0.05, 0.08), (5, 0.05, 0.08), (20, 0, 0.05)])
def test_one_row_that_varies_eight_times_as_much_may_be_told_apart_too_often_on_a_board_of_few_rows(rows, least, most):
    """The page on ranks says so; no committed board is one of these (`error_rates`)."""
    count = false(rows, 3, spreads=[8.0, *[1.0] * (rows - 1)])
    assert stats.binom.ppf(0.001, BOARDS, least) <= count <= stats.binom.ppf(0.999, BOARDS, most)


def test_with_missing_seeds_false_statements_are_no_more_frequent():
    assert false(12, 5, missing=5) <= MOST


def test_one_row_that_varies_widens_its_own_margins_and_hardly_those_of_others():
    """Under one spread for all, masked reconstruction on `digits` widened everybody's margin by a half."""
    calm, broken = (
        [fit(values) for values in islice(simulated(20, 3, spreads=[spread, *[1.0] * 19], start=3), 40)]
        for spread in (1, 20)
    )
    others, own = (np.median([found.margins[row]["2"] for found in broken]) for row in ("1", "0"))
    assert others < 1.6 * np.median([found.margins["1"]["2"] for found in calm])  # one spread for all: 4.6 times
    assert own > 4 * others


def test_rows_far_apart_are_told_apart():
    """Five seeds and ten rows: a difference of eight deviations is seen on nine of ten boards, one of one on hardly
    any."""
    boards = [
        {
            **values,
            "0": {seed: x + 8 for seed, x in values["0"].items()},
            "1": {seed: x + 7 for seed, x in values["1"].items()},
        }
        for values in islice(simulated(10, 5, start=1), 300)
    ]
    assert sum(fit(values).differ("0", "2") for values in boards) > 0.9 * 300
    assert sum(fit(values).differ("0", "1") for values in boards) < 0.1 * 300
