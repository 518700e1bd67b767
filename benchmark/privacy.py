"""What clients have spent of their privacy: (epsilon, delta) of all they released through Gaussian mechanisms.

An entry that a method releases with noise (`FederatedMethod.noise`) costs its client something each time it takes part;
what absent clients sent earlier costs nothing again. Releases compose by Renyi differential privacy (Mironov 2017), as
Opacus' accountant has it, without amplification: a client's participation is not secret. Neighbours are two sets of
images that differ in one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from methods.base import Client, FederatedMethod, Phase

DELTA = 1e-5
"""Of (epsilon, delta) unless another is given; it should be well below one over a client's images."""

ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64)) + [2**power for power in range(6, 17)]
"""Of the Renyi divergences among which the tightest bound is looked for: the more noise, the higher the best one."""

Releases = tuple[tuple[float, int], ...]
"""(noise multiplier, number of releases), sorted."""


class Account:
    """The releases of every client of a run.

    Args:
        method: says which entries carry how much noise.
        delta: of (epsilon, delta). budget: the epsilon that no client may exceed; None: any.
    """

    def __init__(self, method: FederatedMethod, *, delta: float, budget: float | None) -> None:
        self.method, self.delta, self.budget = method, delta, budget
        self.releases: dict[int, Counter[float]] = {}
        self.covers: set[str] = set()

    def planned(self, phase: Phase, members: Iterable[Client]) -> dict[int, Mapping[str, float]]:
        """Client -> what it is going to release with noise in a phase: entry -> multiplier."""
        noise = {client.id: self.method.noise(phase, client) for client in members}
        return {client: entries for client, entries in noise.items() if entries}

    def note(self, phase: Phase, members: Iterable[Client]) -> set[int]:
        """Takes a phase's releases to account; returns whose."""
        planned = self.planned(phase, members)
        for client, entries in planned.items():
            self.covers |= set(entries)
            self.releases.setdefault(client, Counter()).update(entries.values())
        return set(planned)

    def epsilon(self, client: int) -> float:
        """What a client has spent so far."""
        return epsilon(releases(self.releases.get(client, Counter())), self.delta)

    def refusal(self, phases: Sequence[tuple[Phase, Sequence[Client]]]) -> str | None:
        """Why a round of these phases may not be played: a client would exceed the budget by it; None: it may."""
        if self.budget is None:
            return None
        ahead: dict[int, Counter[float]] = {}
        for phase, members in phases:
            for client, entries in self.planned(phase, members).items():
                ahead.setdefault(client, Counter()).update(entries.values())
        for client in sorted(ahead):
            then = epsilon(releases(self.releases.get(client, Counter()) + ahead[client]), self.delta)
            if then > self.budget:
                return f"client {client} would spend epsilon {then:.4g} of its budget of {self.budget:g}"
        return None

    def state(self) -> dict[str, Any]:
        """Plain lists, for the checkpoint."""
        spent = [[client, multiplier, n] for client, own in self.releases.items() for multiplier, n in own.items()]
        return {"releases": spent, "covers": sorted(self.covers)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.covers, self.releases = set(state["covers"]), {}
        for client, multiplier, n in state["releases"]:
            self.releases.setdefault(client, Counter())[multiplier] = n


def releases(counted: Mapping[float, int]) -> Releases:
    """Counted multipliers in an order of their own, so that equal ones are looked up once."""
    return tuple(sorted(counted.items()))


@lru_cache(maxsize=4096)
def epsilon(released: Releases, delta: float) -> float:
    """Epsilon of some releases through Gaussian mechanisms at this delta; 0 for none."""
    if not released:
        return 0.0
    from opacus.accountants import RDPAccountant  # seconds, and only runs with noise need it

    accountant = RDPAccountant()
    accountant.history = [(multiplier, 1.0, number) for multiplier, number in released]
    return float(accountant.get_epsilon(delta, alphas=ORDERS))
