"""What a visit will take, so that ranks end a phase together: measured where it was, else by its images."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter

from methods.base import Client, Phase


class VisitCosts:
    """Seconds of visits by phase and client, as they were last measured.

    They decide who visits whom, never what comes of it, so they are no part of a run's state: a resumed run measures
    anew.

    Args:
        images: (phase, client) -> images the visit will see.
    """

    def __init__(self, images: Callable[[Phase, Client], int]) -> None:
        self.images = images
        self.measured: dict[tuple[str, int], float] = {}
        self.totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # seconds and images of a phase so far

    def record_seconds(self, phase: Phase, client: Client, seconds: float) -> None:
        """A visit took so long."""
        self.measured[phase.name, client.id] = seconds
        self.totals[phase.name][0] += seconds
        self.totals[phase.name][1] += self.images(phase, client)

    def of(self, phase: Phase, client: Client) -> float:
        """Its last seconds; for a client not yet visited its images, at the pace of those that were."""
        if (known := self.measured.get((phase.name, client.id))) is not None:
            return known
        seconds, images = self.totals[phase.name]
        return self.images(phase, client) * (seconds / images if seconds and images else 1.0)


def assign_clients(
    members: Sequence[Client], rank: int, world: int, cost: Callable[[Client], float] = attrgetter("examples")
) -> list[Client]:
    """A rank's part of the members: the costliest first, each to the rank with the least so far; every rank agrees."""
    loads = [0.0] * world
    mine = []
    for client in sorted(members, key=lambda client: (-cost(client), client.id)):
        lightest = loads.index(min(loads))
        loads[lightest] += cost(client)
        if lightest == rank:
            mine.append(client)
    return mine
