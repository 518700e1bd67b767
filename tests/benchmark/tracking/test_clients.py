"""Accuracy by client: seeds pooled, rows side by side, who is served worst first."""

from benchmark.tracking.clients import by_client, side_by_side
from leaderboards.rank import Cell


def record(**clients):
    scores = {"accuracy": 1.0, "spread": 2.0} | {f"accuracy of {name}": value for name, value in clients.items()}
    return {"scores": {"clients/v2": scores, "linear/v1": {"accuracy": 0.0}}}


def test_seeds_are_pooled_and_the_worst_client_is_first():
    pooled = by_client([record(a=60.0, b=50.0), record(a=40.0, b=48.0, c=70.0), {"scores": {}}, {}])
    assert list(pooled.items()) == [("b", Cell.of([50.0, 48.0])), ("a", Cell.of([60.0, 40.0])), ("c", Cell.of([70.0]))]
    assert by_client([]) == {}


def test_rows_are_side_by_side_in_the_order_of_the_worst_of_any():
    rows = {"ssd": [record(a=60.0, b=50.0)], "fedavg": [record(a=20.0, c=70.0)], "none": [{}]}
    table = side_by_side(rows)
    assert list(table) == ["a", "b", "c"]
    assert table["a"] == {"ssd": Cell(60.0, None, 1), "fedavg": Cell(20.0, None, 1), "none": None}
    assert table["b"]["fedavg"] is None
