"""Costs of visits, and the assignment of clients to ranks by these costs."""

import pytest

from benchmark.federation.scheduling import VisitCosts, assign_clients
from methods.base import Client, Phase

FIT, LOOK = Phase("fit"), Phase("look", work="observe")
ALL = [Client(k, examples) for k, examples in enumerate((40, 10, 10, 20))]


def shared(costs, ranks, phase=FIT):
    return [
        [client.id for client in assign_clients(ALL, rank, ranks, lambda member: costs.of(phase, member))]
        for rank in range(ranks)
    ]


def test_before_anything_is_measured_images_decide():
    costs = VisitCosts(lambda phase, client: client.examples)
    assert shared(costs, 2) == [[0], [3, 1, 2]]


def test_what_was_measured_decides_and_others_are_guessed_at_its_pace():
    costs = VisitCosts(lambda phase, client: client.examples)
    costs.record_seconds(FIT, ALL[1], 5.0)
    assert [costs.of(FIT, client) for client in ALL] == [20.0, 5.0, 5.0, 10.0]
    costs.record_seconds(FIT, ALL[0], 1.0)  # the measured time counts, not the number of images
    assert costs.of(FIT, ALL[0]) == 1.0
    assert costs.of(FIT, ALL[3]) == pytest.approx(20 * 6 / 50)
    costs.record_seconds(FIT, ALL[0], 30.0)
    assert shared(costs, 2) == [[0], [3, 1, 2]]
    assert costs.of(LOOK, ALL[0]) == 40  # another phase has costs of its own


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_everyone_is_visited_once(ranks):
    parts = shared(VisitCosts(lambda phase, client: client.examples), ranks)
    assert sorted(client for visited in parts for client in visited) == [0, 1, 2, 3]
