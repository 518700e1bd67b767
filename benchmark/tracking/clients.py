"""Accuracy by client, of one run or of a row's seeds together, worst first."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.disk import replacing
from eval.official import OF
from leaderboards.rank import Cell
from leaderboards.schema import Record

SERVED = ("clients", "accuracy", "unseen", "images")
"""Arrays of `by-client/v1`, `[K]`; images: test images of the client."""
PROTOCOLS = ("clients/v2", "by-client/v1")
"""The protocols whose accuracies are taken, of a record those of the first that has them for all its clients."""


def by_client(records: Iterable[Record]) -> dict[str, Cell]:
    """Name of a client -> its accuracy in percent over the runs that have it, the worst mean first.

    records: of a row, one a seed, or of one run; those that were not scored by one of `PROTOCOLS` count for nothing.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        scores = [record.get("scores", {}).get(protocol, {}) for protocol in PROTOCOLS]
        for metric, value in next((each for each in scores if has_all(each)), {}).items():
            if metric.startswith(OF):
                values[metric.removeprefix(OF)].append(value)
    cells = {client: Cell.of(sample) for client, sample in values.items()}
    return dict(sorted(cells.items(), key=lambda item: (item[1].mean, item[0])))


def has_all(metrics: Mapping[str, float]) -> bool:
    """Whether the metrics of a protocol have an accuracy of each client, not only of the worst ones, or of none."""
    listed = sum(metric.startswith(OF) for metric in metrics)
    return 0 < listed >= metrics.get("clients", 0) + metrics.get("clients_unseen", 0)


def write_served(file: Path, arrays: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> None:
    """Replaces the table of what every client gets, the worst first; nothing is written where nothing was measured.

    arrays: by encoder and protocol, as `eval.clients.served` saves them. names: of which its `clients` are positions.
    """
    rows = [
        (encoder, names[client], accuracy, int(unseen), images)
        for encoder, saved in sorted(arrays.items())
        if "by-client" in saved
        for client, accuracy, unseen, images in sorted(
            zip(*(saved["by-client"][key].tolist() for key in SERVED), strict=True),
            key=lambda row: (row[1], names[row[0]]),
        )
    ]
    if rows:
        with replacing(file) as beside, beside.open("w", encoding="utf-8", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(("encoder", "client", "accuracy", "unseen", "images"))
            table.writerows(rows)
