"""Which rank visits which client: the expected cost of visits, and their balanced assignment."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter

from methods.base import Client, Phase


class VisitCosts:
    """Seconds of visits by phase and client, as last measured.

    They decide which rank visits a client, not the result of the visit, so they are not saved: a resumed run measures
    again.

    Args:
        images: (phase, client) -> images the visit will see.
    """

    def __init__(self, images: Callable[[Phase, Client], int]) -> None:
        self.images = images
        self.measured: dict[tuple[str, int], float] = {}
        self.totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # seconds and images of a phase so far

    def record_seconds(self, phase: Phase, client: Client, seconds: float) -> None:
        """Records how long a visit took."""
        self.measured[phase.name, client.id] = seconds
        self.totals[phase.name][0] += seconds
        self.totals[phase.name][1] += self.images(phase, client)

    def of(self, phase: Phase, client: Client) -> float:
        """Seconds of the client's last visit; before its first one, an estimate by its images."""
        if (measured := self.measured.get((phase.name, client.id))) is not None:
            return measured
        seconds, images = self.totals[phase.name]
        return self.images(phase, client) * (seconds / images if seconds and images else 1.0)


def assign_clients(
    members: Sequence[Client], rank: int, world: int, cost: Callable[[Client], float] = attrgetter("examples")
) -> list[Client]:
    """Clients of one rank: the costliest first, each goes to the rank with the lowest load; all ranks agree."""
    loads = [0.0] * world
    assigned = []
    for client in sorted(members, key=lambda client: (-cost(client), client.id)):
        lightest = loads.index(min(loads))
        loads[lightest] += cost(client)
        if lightest == rank:
            assigned.append(client)
    return assigned
