import itertools
import math

import pytest
import torch

from benchmark.rng import Streams, cohort_size

KEY = {"seed": 3, "purpose": "views", "round": 1, "phase": "fit", "client": 2}
CHANGED = {"seed": 4, "purpose": "order", "round": 2, "phase": "assign", "client": 1}


def first_draw(seed, purpose, **rest):
    return Streams(seed).seed_for(purpose, **rest)


def test_what_a_seed_means_never_changes_and_every_part_of_the_key_counts():
    """Half of the hash that coreutils' `b2sum -l 64` gives for 3/1/fit/2/views and for 0/-1//-1/init."""
    assert first_draw(**KEY) == 0x2BC4C61EEA20A71E >> 1
    assert Streams(0).seed_for("init") == 0x559759B3A96715BC >> 1
    for name, value in CHANGED.items():
        assert first_draw(**{**KEY, name: value}) != first_draw(**KEY)


def test_neighbouring_streams_do_not_meet():
    """Keys joined without separators (round 1, client 11 and round 11, client 1) would share a stream."""
    keys = itertools.product(range(12), range(12), ("", "a", "b"), range(-1, 12), ("order", "views"))
    numbers = [Streams(s).seed_for(p, round=r, phase=f, client=c) for s, r, f, c, p in keys]
    assert len(set(numbers)) == len(numbers)


def test_neither_the_order_of_calls_nor_the_global_generator_matters_which_is_left_alone():
    streams, state = Streams(0), torch.get_rng_state()
    before = [torch.rand(3, generator=streams.generator("views", client=k)) for k in range(4)]
    streams.cohort(0, 10, 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(100)
    again = [torch.rand(3, generator=streams.generator("views", client=k)) for k in reversed(range(4))][::-1]
    assert all(torch.equal(first, second) for first, second in zip(before, again, strict=True))
    assert not torch.equal(before[0], before[1])


@pytest.mark.parametrize(
    ("clients", "participation", "size"),
    [(4, 0.5, 2), (10, 0.25, 3), (10, 0.24, 2), (100, 0.29, 29), (10, 0.001, 1), (7, 1.0, 7)],
)
def test_a_cohort_is_sorted_has_its_size_and_nobody_twice(clients, participation, size):
    for round in range(20):
        cohort = Streams(0).cohort(round, clients, participation)
        assert len(set(cohort)) == len(cohort) == size
        assert cohort == sorted(cohort)
        assert set(cohort) <= set(range(clients))


def test_cohorts_differ_by_round_and_seed_and_can_be_drawn_again():
    drawn = {(seed, round): tuple(Streams(seed).cohort(round, 30, 0.5)) for seed in range(5) for round in range(5)}
    assert len(set(drawn.values())) == 25
    assert drawn[3, 2] == tuple(Streams(3).cohort(2, 30, 0.5))


def test_every_client_is_drawn_equally_often():
    rounds, participation = 2000, 0.3
    counts = torch.zeros(10)
    for round in range(rounds):
        counts[Streams(0).cohort(round, 10, participation)] += 1
    assert (counts - rounds * participation).abs().max() < 4 * math.sqrt(rounds * participation * (1 - participation))


def test_halves_round_up():
    assert [cohort_size(10, share) for share in (0.04, 0.14, 0.15, 0.25, 0.249)] == [1, 1, 2, 3, 2]
