"""What a visit leaves for the round's line."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VisitReport:
    """What ranks tell each other of a visit: bytes by entry, the memory's file, mean loss, images, seconds, notes."""

    client: int
    up: dict[str, int]
    file: str | None
    loss: float | None
    images: int
    seconds: float
    notes: dict[str, float]


def mean_loss(reports: Sequence[VisitReport]) -> float | None:
    """Over the visits that trained; None where none did."""
    losses = [report.loss for report in reports if report.loss is not None]
    return sum(losses) / len(losses) if losses else None


def summaries(notes: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Least, mean and most of each number that visits have noted."""
    found: dict[str, list[float]] = defaultdict(list)
    for own in notes:
        for name, value in own.items():
            found[name].append(value)
    return {
        name: {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}
        for name, values in found.items()
    }
