"""Accuracy by client: seeds pooled, who is served worst first."""

from benchmark.tracking.clients import by_client
from leaderboards.rank import Cell


def record(**clients):
    scores = {"accuracy": 1.0, "spread": 2.0} | {f"accuracy of {name}": value for name, value in clients.items()}
    return {"scores": {"clients/v2": scores, "linear/v1": {"accuracy": 0.0}}}


def test_seeds_are_pooled_and_the_worst_client_is_first():
    pooled = by_client([record(a=60.0, b=50.0), record(a=40.0, b=48.0, c=70.0), {"scores": {}}, {}])
    assert list(pooled.items()) == [("b", Cell.of([50.0, 48.0])), ("a", Cell.of([60.0, 40.0])), ("c", Cell.of([70.0]))]
    assert by_client([]) == {}


def test_the_newer_protocol_counts_where_it_has_every_client_and_the_older_does_not():
    def of(listed, clients, unseen=0):
        each = {f"accuracy of {name}": float(k) for k, name in enumerate("abc"[:listed])}
        return {"accuracy": 1.0, "clients": clients, **({"clients_unseen": unseen} if unseen else {}), **each}

    for scores, expected in (
        ({"by-client/v1": of(3, 2, 1)}, "abc"),
        ({"by-client/v1": of(3, 2, 2)}, ""),  # the worst ones alone
        ({"by-client/v1": of(3, 3), "clients/v2": of(2, 2)}, "ab"),
        ({"by-client/v1": of(3, 3), "clients/v2": of(0, 30)}, "abc"),
    ):
        assert list(by_client([{"scores": scores}])) == list(expected)
