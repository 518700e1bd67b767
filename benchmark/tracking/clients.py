"""Accuracy by client: of one run, of a row's seeds together, and of several rows side by side, worst first."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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


def side_by_side(rows: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, Cell | None]]:
    """Name of a client -> row -> its accuracy, None where the row lacks it; first the client that any row serves worst.

    rows: name of a row -> the records of its seeds.
    """
    scored = {row: by_client(records) for row, records in rows.items()}
    lowest: dict[str, float] = {}
    for cells in scored.values():
        for client, cell in cells.items():
            lowest[client] = min(cell.mean, lowest.get(client, cell.mean))
    order = sorted(lowest, key=lambda client: (lowest[client], client))
    return {client: {row: cells.get(client) for row, cells in scored.items()} for client in order}
