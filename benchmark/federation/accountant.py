"""What clients have spent of their privacy: (epsilon, delta) of all they released through Gaussian mechanisms.

An entry that a method releases with noise (`FederatedMethod.noise`) costs its client something each time it takes part;
what absent clients sent earlier costs nothing again. Releases compose by Renyi differential privacy (Mironov 2017), as
Opacus' accountant has it, without amplification: a client's participation is not secret. Neighbours are two sets of
images that differ in one.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from methods.base import Client, FederatedMethod, MethodError, Phase

DELTA = 1e-5
"""Of (epsilon, delta) unless another is given; it should be well below one over a client's images."""

ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64)) + [2**power for power in range(6, 17)]
"""Of the Renyi divergences among which the tightest bound is looked for: the more noise, the higher the best one."""

Releases = tuple[tuple[float, int], ...]
"""(noise multiplier, number of releases), sorted."""


class PrivacyAccountant:
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
        """Client -> what it is going to release with noise in a phase: entry -> multiplier.

        Raises:
            MethodError: the method speaks of an entry that the phase does not send, or of no noise at all.
        """
        noise = {client.id: self.method.noise(phase, client) for client in members}
        for entries in noise.values():
            for entry, multiplier in entries.items():
                if entry not in phase.uplink:
                    raise MethodError(
                        f"noise() speaks of {entry!r}, which phase {phase.name!r} does not send: it sends "
                        f"{', '.join(phase.uplink) or 'nothing'}"
                    )
                if not 0 < multiplier < math.inf:
                    raise MethodError(f"noise() gives {entry!r} a multiplier of {multiplier}: give a number above 0")
        return {client: entries for client, entries in noise.items() if entries}

    def record_releases(self, phase: Phase, members: Iterable[Client]) -> set[int]:
        """Takes a phase's releases to account; returns whose."""
        planned = self.planned(phase, members)
        for client, entries in planned.items():
            self.covers |= set(entries)
            self.releases.setdefault(client, Counter()).update(entries.values())
        return set(planned)

    def epsilon(self, client: int) -> float:
        """What a client has spent so far."""
        return epsilon(releases(self.releases.get(client, Counter())), self.delta)

    def over_budget_reason(self, phases: Sequence[tuple[Phase, Sequence[Client]]]) -> str | None:
        """Why a round of these phases may not be played: a client would exceed the budget by it; None: it may."""
        if self.budget is None:
            return None
        ahead: dict[int, Counter[float]] = {}
        for phase, members in phases:
            for client, entries in self.planned(phase, members).items():
                ahead.setdefault(client, Counter()).update(entries.values())
        then = {
            client: epsilon(releases(self.releases.get(client, Counter()) + ahead[client]), self.delta)
            for client in sorted(ahead)
        }
        most = max(then, key=lambda client: then[client], default=None)
        if most is None or then[most] <= self.budget:
            return None
        return f"client {most} would spend epsilon {then[most]:.4g} of its budget of {self.budget:g}"

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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # ORDERS are wide; what is left is an upper bound
        return float(accountant.get_epsilon(delta, alphas=ORDERS))
