"""Costs of visits, and the assignment of clients to ranks by these costs."""

import random

import pytest

from benchmark.federation.scheduling import VisitCosts, assign_clients
from methods.base import Client, Phase

FIT, LOOK = Phase("fit"), Phase("look", work="observe")


def members(*sizes):
    return [Client(k, size) for k, size in enumerate(sizes)]


ALL = members(40, 10, 10, 20)


def shared(clients, ranks, *cost):
    return [[client.id for client in assign_clients(clients, rank, ranks, *cost)] for rank in range(ranks)]


def test_what_was_measured_decides_and_others_are_guessed_at_its_pace():
    costs = VisitCosts(lambda phase, client: client.examples)
    cost = lambda member: costs.of(FIT, member)  # noqa: E731
    assert shared(ALL, 2, cost) == [[0], [3, 1, 2]]  # by their images, before anything is measured
    costs.record_seconds(FIT, ALL[1], 5.0)
    assert [costs.of(FIT, client) for client in ALL] == [20.0, 5.0, 5.0, 10.0]
    costs.record_seconds(FIT, ALL[0], 1.0)  # the measured time counts, not the number of images
    assert costs.of(FIT, ALL[0]) == 1.0
    assert costs.of(FIT, ALL[3]) == pytest.approx(20 * 6 / 50)
    assert shared(ALL, 2, cost) == [[1], [3, 2, 0]]
    assert costs.of(LOOK, ALL[0]) == 40  # another phase has costs of its own


def test_by_hand():
    # 7 | 5 | then 4 to 5, 3 to 7 (7 < 9), 1 to rank 1 (9 < 10)
    assert shared(members(1, 3, 4, 5, 7), 2) == [[4, 1], [3, 2, 0]]
    assert shared(members(9, 5, 4), 2) == [[0], [1, 2]]  # two short ones make up for a long one


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_everyone_once_the_loads_within_one_client_of_each_other_and_in_any_order_of_the_members(ranks):
    rng = random.Random(ranks)
    for count in (0, 1, 2, 7, 40):
        clients = members(*(rng.randint(1, 500) for _ in range(count)))
        parts = [assign_clients(clients, rank, ranks) for rank in range(ranks)]
        assert sorted(client.id for assigned in parts for client in assigned) == list(range(count))
        sizes = [[client.examples for client in assigned] for assigned in parts]
        assert max(map(sum, sizes)) - min(map(sum, sizes)) <= max((c.examples for c in clients), default=0)
        assert sizes == [sorted(each, reverse=True) for each in sizes]
        assert shared(rng.sample(clients, count), ranks) == [[client.id for client in part] for part in parts]
