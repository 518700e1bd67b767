"""Scores of runs that leave several encoders, by one rule wherever they are shown: the mean, with the worst beside it.

Clients may have encoders of their own (`local`, `method.stays=[encoder]`), or a method leaves one an architecture. The
`scores` of a record then have the worst encoder's accuracy as `accuracy` and the mean as `accuracy_mean`. Boards,
tables and figures show the mean as `accuracy`, which compares with that of a single encoder, and the worst as
`accuracy_worst`.
"""

from collections.abc import Mapping
from statistics import fmean

from leaderboards.schema import Record

WORST = "_worst"
"""End of the name of the worst encoder's accuracy, as it is shown."""
MEAN = "_mean"
"""End of the name of the mean accuracy, in a record."""
BY_CLIENT = "clients/"
"""Beginning of the ids of protocols whose accuracies without a mean beside them are over clients, not encoders."""

Scores = dict[str, dict[str, float]]
"""Protocol id -> metric -> value; accuracies in percent."""


def count(record: Record) -> int:
    """How many encoders a run has left; 0 without scores."""
    return len(record.get("encoders", {}))


def mean_of(encoders: int) -> str:
    """What an accuracy is, in words; empty for one encoder.

    >>> mean_of(10)
    'mean of 10 encoders'
    """
    return f"mean of {encoders} encoders" if encoders > 1 else ""


def shown(record: Record) -> Scores:
    """A record's scores as they are shown; of one encoder, as they are.

    Where the record has an accuracy of the worst encoder, and neither a mean nor that of each, it is shown as the worst
    alone. Accuracies by client, each by the client's own encoder, are over clients already.
    """
    encoders: Mapping[str, Scores] = record.get("encoders", {})
    return {
        protocol: _shown(protocol, metrics, [scores.get(protocol, {}) for scores in encoders.values()])
        for protocol, metrics in record.get("scores", {}).items()
    }


def _shown(protocol: str, metrics: Mapping[str, float], each: list[dict[str, float]]) -> dict[str, float]:
    """A protocol's scores. each: those of every encoder."""
    scores: dict[str, float] = {}
    for metric, value in metrics.items():
        measured = [values[metric] for values in each if metric in values]
        if metric.endswith(MEAN) and metric.removesuffix(MEAN) in metrics:
            continue
        if (mean := metrics.get(f"{metric}{MEAN}")) is not None:
            scores |= {metric: mean, f"{metric}{WORST}": value}
        elif len(each) < 2 or not metric.startswith("accuracy") or protocol.startswith(BY_CLIENT):
            scores[metric] = value
        elif len(measured) == len(each):
            scores |= {metric: fmean(measured), f"{metric}{WORST}": min(measured)}
        else:
            scores[f"{metric}{WORST}"] = value
    return scores
