"""A round's line: what its visits report, summed and averaged."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.federation.communication import CommunicationLedger


@dataclass(frozen=True)
class VisitReport:
    """What ranks exchange of a visit.

    bytes_up: of its reply, by entry. file: of the client's state, None without any. loss: mean over the steps, None
    without training. notes: numbers that the method attached to the visit.
    """

    client: int
    bytes_up: dict[str, int]
    file: str | None
    loss: float | None
    images: int
    seconds: float
    notes: dict[str, float]


def round_line(
    round: int,
    clients: Sequence[VisitReport],
    server: Sequence[VisitReport],
    ledger: CommunicationLedger,
    notes: Mapping[str, float],
) -> dict[str, Any]:
    """A round's line in `rounds.jsonl`, without seconds and scores.

    clients, server: reports by where they ran. notes: of the server's updates.
    """
    line: dict[str, Any] = {
        "round": round + 1,
        "loss": mean_loss(clients),
        "images": sum(report.images for report in clients),
        "client_seconds": sum(report.seconds for report in clients),
        "bytes_up": ledger.total("up", round),
        "bytes_down": ledger.total("down", round),
    }
    if server:
        line["server_loss"] = mean_loss(server)
        line["server_seconds"] = sum(report.seconds for report in server)
        line["server_images"] = sum(report.images for report in server)
    if summarised := summaries([*(report.notes for report in clients), notes]):
        line["notes"] = summarised
    return line


def mean_loss(reports: Sequence[VisitReport]) -> float | None:
    """Mean over the visits that trained, None where none did."""
    losses = [report.loss for report in reports if report.loss is not None]
    return sum(losses) / len(losses) if losses else None


def summaries(notes: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Minimum, mean and maximum of each number that visits have attached, by name: "min", "mean", "max"."""
    values: dict[str, list[float]] = defaultdict(list)
    for visit_notes in notes:
        for name, value in visit_notes.items():
            values[name].append(value)
    return {
        name: {"min": min(sample), "mean": sum(sample) / len(sample), "max": max(sample)}
        for name, sample in values.items()
    }
