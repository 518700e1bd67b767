"""Who takes part in a round: shares are as stated, every draw repeats, and what is lost is sent and counted alone."""

import re
from dataclasses import replace

import pytest
import torch

from benchmark.configuration.compose import compose
from benchmark.errors import ConfigError
from benchmark.federation.participation import SPREAD, Participation
from benchmark.rng import Streams
from tests import run_helpers
from tests.run_helpers import TINY

STREAMS = Streams(3)
EQUAL = [50] * 1000


def test_by_default_it_is_the_plain_draw_and_all_reply():
    for share in (0.1, 1.0):
        everyone = Participation(share)
        drawn = everyone.drawn(STREAMS, 4, 1000)
        assert drawn == STREAMS.cohort(4, 1000, share)
        assert everyone.replying(STREAMS, 4, drawn) == drawn


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_only_clients_that_are_there_are_drawn(share):
    half = Participation(share, availability=0.5)
    drawn, again = ([half.drawn(STREAMS, round, 1000) for round in range(20)] for _ in range(2))
    assert drawn == again
    assert drawn[0] != drawn[1]
    for cohort in drawn:  # all that are there: 500 of 1000, by a standard deviation of 16
        assert len(cohort) == 200 if share < 0.5 else abs(len(cohort) - 500) < 64
        assert cohort == sorted(set(cohort))


@pytest.mark.parametrize(("share", "there"), [(0.2, 1.0), (0.4, 0.5)])
def test_a_poisson_sample_draws_every_client_by_itself(share, there):
    sampled = Participation(share, there, poisson=True)
    sizes = torch.tensor([len(sampled.drawn(STREAMS, round, 50)) for round in range(2000)], dtype=torch.float64)
    assert sizes.mean().item() == pytest.approx(10, abs=0.25)
    assert sizes.var().item() == pytest.approx(50 * 0.2 * 0.8, rel=0.1)
    assert (sampled.expected(50), replace(sampled, dropout=0.25).expected(50)) == (10, 7.5)
    assert Participation(share=1e-9, poisson=True).drawn(STREAMS, 0, 50) == []


def test_so_many_never_reply():
    drawn = list(range(0, 1000, 2))
    replying = [Participation(dropout=0.3).replying(STREAMS, round, drawn) for round in range(20)]
    assert all(set(some) < set(drawn) for some in replying)
    mean = sum(map(len, replying)) / 20
    assert abs(mean - 0.7 * 500) < 4 * (500 * 0.3 * 0.7 / 20) ** 0.5
    assert replying[0] != replying[1]


def test_one_is_there_and_one_replies():
    nearly_nobody = Participation(availability=1e-9, dropout=1 - 1e-9)
    (drawn,) = nearly_nobody.drawn(STREAMS, 0, 10)
    assert nearly_nobody.replying(STREAMS, 0, [drawn]) == [drawn]
    assert len(nearly_nobody.replying(STREAMS, 0, range(10))) == 1
    assert len(Participation(deadline=1e-9).replying(STREAMS, 0, range(10), range(10))) == 1


def test_slow_and_large_clients_miss_the_deadline():
    late = Participation(deadline=2).late(STREAMS, EQUAL)
    # of equal clients those slower than half the median: a log-normal's lower tail
    share = float(torch.distributions.Normal(0, SPREAD).cdf(torch.log(torch.tensor(0.5))))
    assert abs(len(late) - 1000 * share) < 4 * (1000 * share) ** 0.5
    assert late == Participation(deadline=2).late(STREAMS, EQUAL)
    assert Participation(deadline=4).late(STREAMS, EQUAL) < late
    assert len(Participation(deadline=1).late(STREAMS, [50] * 1001)) == 500  # the median client is in time
    large = [5000 if k in (1, 7) else 50 for k in range(1000)]
    assert {1, 7} <= Participation(deadline=8).late(STREAMS, large)
    assert set(Participation(deadline=2).replying(STREAMS, 0, range(1000), late)) == set(range(1000)) - late


@pytest.mark.parametrize(
    "line",
    [
        *(f"availability={value}: give a probability in (0, 1]" for value in ("0.0", "1.1")),
        *(f"dropout={value}: give a probability in [0, 1)" for value in ("1.0", "-0.1")),
        "deadline=0.0: give a number above 0",
    ],
)
def test_other_values_are_refused(line):
    with pytest.raises(ConfigError, match=re.escape(line)):
        compose(TINY, "fedavg", [f"federation.{line.partition(':')[0]}"])


@pytest.mark.parametrize("method", ["fedavg", "fedsc"])
def test_messages_go_to_all_that_are_drawn_and_replies_come_from_those_that_stay(method):
    """FedSC asks all clients for their matrix in the first round, also those that never reply to what follows."""
    words = ("federation.availability=0.8", "federation.dropout=0.5")
    loop, plain = (run_helpers.trained(method, *given).loop for given in (words, ()))
    cohorts = [loop.cohort(round) for round in range(loop.rounds)]
    staying = [loop.replying(round, cohort) for round, cohort in enumerate(cohorts)]
    assert list(map(len, staying)) != list(map(len, cohorts))
    assert loop.ledger.visits == {round: len(cohort) for round, cohort in enumerate(cohorts)}
    for (round, phase, direction, entry), size in loop.ledger.lines.items():
        members = visited = 4  # all clients
        if (phase, round) != ("correlate", 0):
            first = phase == ("fit" if method == "fedavg" or round == 0 else "correlate")
            members, visited = 2, len((cohorts if direction == "down" and first else staying)[round])
        assert size * members == visited * plain.ledger.lines[round, phase, direction, entry]
