"""Accuracy by client, of one run or of a row's seeds together, worst first."""

from collections import defaultdict
from collections.abc import Iterable

from eval.clients import OF
from leaderboards.rank import Cell
from leaderboards.schema import Record

PROTOCOL = "clients/v2"
"""The protocol whose accuracies are taken; it gives them for up to `eval.clients.SHOWN` clients."""


def by_client(records: Iterable[Record]) -> dict[str, Cell]:
    """Name of a client -> its accuracy in percent over the runs that have it, the worst mean first.

    records: of a row, one a seed, or of one run; those that were not scored by `PROTOCOL` count for nothing.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for metric, value in record.get("scores", {}).get(PROTOCOL, {}).items():
            if metric.startswith(OF):
                values[metric.removeprefix(OF)].append(value)
    cells = {client: Cell.of(sample) for client, sample in values.items()}
    return dict(sorted(cells.items(), key=lambda item: (item[1].mean, item[0])))
