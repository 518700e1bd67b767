"""What a row adds: against Student's test and Holm's steps by hand, and simulated boards."""

import numpy as np
import pytest
from scipy import stats

from leaderboards.paired import NEGLIGIBLE, paired

BOARDS = 1000


def pairs(*samples):
    return {("row", str(k)): sample for k, sample in enumerate(samples)}


def test_one_pair_is_students_paired_test_with_its_two_one_sided_ones():
    sample = [0.3, 0.1, 0.35, 0.2]
    (found,) = paired(pairs(sample)).values()
    test = stats.ttest_1samp(sample, 0)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(test.confidence_interval(0.95))
    assert found.within == pytest.approx(max(map(abs, test.confidence_interval(0.90))))
    equivalent = max(
        stats.ttest_1samp(sample, -NEGLIGIBLE, alternative="greater").pvalue,
        stats.ttest_1samp(sample, NEGLIGIBLE, alternative="less").pvalue,
    )
    assert equivalent < 0.05
    assert found.negligible
    assert paired({}) == {}


def test_two_pairs_have_their_own_spreads_and_holms_steps():
    small, large = [0.1, 0.2, 0.15], [5.0, 9.0, 7.0]
    found = [*paired(pairs(small, large)).values()]
    p = [stats.ttest_1samp(sample, 0).pvalue for sample in (small, large)]
    assert [one.p for one in found] == pytest.approx([max(2 * min(p), value) for value in p])
    assert not paired(pairs(small, [0.1, 3.0, -3.0]))["row", "1"].negligible


def test_of_many_pairs_the_spreads_are_moderated_and_the_first_step_is_bonferronis():
    draw = np.random.default_rng(0)
    noise = [draw.normal(size=3).tolist() for _ in range(19)]
    lucky = [2.0, 2.1, 1.9]  # three values that lie close together by chance
    alone, found = paired(pairs(lucky))["row", "0"], paired(pairs(lucky, *noise))["row", "0"]
    assert alone.high - alone.low < 0.5 < 1 < found.high - found.low
    far = paired(pairs([30.0, 31.0, 29.0], *noise))
    assert far["row", "0"].p < 0.05 < min(one.p for pair, one in far.items() if pair != ("row", "0"))


@pytest.mark.parametrize("spreads", ["equal", "prior"])
@pytest.mark.parametrize(("count", "seeds"), [(3, 3), (6, 3), (13, 5)])
def test_where_nothing_is_added_a_board_says_so_on_19_of_20(count, seeds, spreads):
    draw = np.random.default_rng(2)
    sizes = np.ones(count) if spreads == "equal" else np.sqrt(3 / draw.chisquare(3, count))
    boards = draw.standard_normal((BOARDS, count, seeds)) * sizes[:, None]
    told = sum(any(one.p < 0.05 for one in paired(pairs(*board.tolist())).values()) for board in boards)
    assert told <= stats.binom.ppf(0.999, BOARDS, 0.05)


def test_a_change_at_the_margin_is_called_negligible_on_at_most_one_board_in_twenty():
    boards = NEGLIGIBLE + np.random.default_rng(3).standard_normal((BOARDS, 4, 5)) * 0.2
    called = sum(any(one.negligible for one in paired(pairs(*board.tolist())).values()) for board in boards)
    assert called <= stats.binom.ppf(0.999, BOARDS, 0.05)
    none = boards - NEGLIGIBLE
    assert sum(all(one.negligible for one in paired(pairs(*board.tolist())).values()) for board in none) > 0.5 * BOARDS
