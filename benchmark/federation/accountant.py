"""Privacy accounting: (epsilon, delta) of all that clients released through Gaussian mechanisms.

An entry that a method releases with noise (`FederatedMethod.noise`) costs its client privacy each time the client takes
part; what an absent client sent earlier costs nothing again. Releases compose by Renyi differential privacy (Mironov
2017) with Opacus' accountant, without amplification by sampling: a client's participation is not secret. Neighbouring
data sets differ in one image of a client. Under `UpdatePrivacy` they differ in a whole client, as its docstring says.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from benchmark.federation.update_privacy import UpdatePrivacy
from methods.base import Client, FederatedMethod, MethodError, Phase

DELTA = 1e-5
"""Default delta; it should be well below one over a client's number of images."""

ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64)) + [2**power for power in range(6, 17)]
"""Orders of the Renyi divergences, of which the tightest bound is taken: the more noise, the higher the best order."""


class PrivacyAccountant:
    """The releases of every client of a run.

    Args:
        method: gives the noise of its entries.
        delta: of (epsilon, delta). budget: epsilon that no client may exceed; None: no limit.
        updates: the noise on clients' updates; None: none.
    """

    def __init__(
        self, method: FederatedMethod, *, delta: float, budget: float | None, updates: UpdatePrivacy | None = None
    ) -> None:
        self.method, self.delta, self.budget, self.updates = method, delta, budget, updates
        self.releases: dict[int, Counter[float]] = {}
        self.covers: set[str] = set()

    def empty(self) -> "PrivacyAccountant":
        """The same account before any release."""
        return PrivacyAccountant(self.method, delta=self.delta, budget=self.budget, updates=self.updates)

    def planned(self, phase: Phase, members: Iterable[Client]) -> dict[int, Mapping[str, float]]:
        """Client -> what it will release with noise in a phase: entry -> noise multiplier.

        Raises:
            MethodError: the method names an entry that the phase does not send, or a multiplier that is not positive.
        """
        noise = {client.id: self.method.noise(phase, client) for client in members}
        for entries in noise.values():
            for entry, multiplier in entries.items():
                if entry not in phase.uplink:
                    raise MethodError(
                        f"noise() names {entry!r}, which phase {phase.name!r} does not send: it sends "
                        f"{', '.join(phase.uplink) or 'nothing'}"
                    )
                if not 0 < multiplier < math.inf:
                    raise MethodError(f"noise() gives {entry!r} a multiplier of {multiplier}: give a number above 0")
        updates = {} if self.updates is None else self.updates.releases(phase)
        noise = {client: {**entries, **updates} for client, entries in noise.items()}
        return {client: entries for client, entries in noise.items() if entries}

    def record_releases(self, phase: Phase, members: Iterable[Client]) -> set[int]:
        """Adds the releases of a phase; returns the ids of the clients that released anything."""
        planned = self.planned(phase, members)
        for client, entries in planned.items():
            self.covers |= set(entries)
            self.releases.setdefault(client, Counter()).update(entries.values())
        return set(planned)

    def epsilon(self, client: int, planned: Counter[float] | None = None) -> float:
        """Epsilon that a client has spent so far, or will have spent after further planned releases."""
        counted = self.releases.get(client, Counter()) + (planned or Counter())
        return epsilon(tuple(sorted(counted.items())), self.delta)

    def over_budget_reason(self, phases: Sequence[tuple[Phase, Sequence[Client]]]) -> str | None:
        """Reason a round of these phases would exceed some client's budget, else None."""
        if self.budget is None:
            return None
        planned: dict[int, Counter[float]] = {}
        for phase, members in phases:
            for client, entries in self.planned(phase, members).items():
                planned.setdefault(client, Counter()).update(entries.values())
        spent = {client: self.epsilon(client, planned[client]) for client in sorted(planned)}
        most = max(spent, key=lambda client: spent[client], default=None)
        if most is None or spent[most] <= self.budget:
            return None
        return f"client {most} would spend epsilon {spent[most]:.4g} of its budget of {self.budget:g}"

    def state(self) -> dict[str, Any]:
        """Releases as plain lists, for the checkpoint."""
        spent = [
            [client, multiplier, n] for client, counted in self.releases.items() for multiplier, n in counted.items()
        ]
        return {"releases": spent, "covers": sorted(self.covers)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self.covers, self.releases = set(state["covers"]), {}
        for client, multiplier, n in state["releases"]:
            self.releases.setdefault(client, Counter())[multiplier] = n


@lru_cache(maxsize=4096)
def epsilon(released: tuple[tuple[float, int], ...], delta: float) -> float:
    """Epsilon of (noise multiplier, number of releases) through Gaussian mechanisms at this delta; 0 for none."""
    if not released:
        return 0.0
    from opacus.accountants import RDPAccountant  # seconds, and only runs with noise need it

    accountant = RDPAccountant()
    accountant.history = [(multiplier, 1.0, count) for multiplier, count in released]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # ORDERS are wide; what is left is an upper bound
        return float(accountant.get_epsilon(delta, alphas=ORDERS))
