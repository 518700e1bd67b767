"""Privacy accounting: (epsilon, delta) of all that clients released through Gaussian mechanisms.

An entry that a method releases with noise (`FederatedMethod.noise`) costs its client privacy each time the client takes
part; what an absent client sent earlier costs nothing again. Neighbouring data sets differ in one image of a client.
Under `UpdatePrivacy` they differ in a whole client, as its docstring says. Where a cohort is a Poisson sample, every
client is charged in every round, for a release that it takes part in with the probability of being drawn (amplification
by sampling); otherwise a client's participation is not secret. `dp-accounting` composes the releases, by Renyi
differential privacy (Mironov 2017) or by privacy loss distributions (Doroshenko et al. 2022), which are tighter.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from benchmark.errors import ConfigError
from benchmark.federation.update_privacy import UpdatePrivacy
from methods.base import Client, FederatedMethod, MethodError, Phase

ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64)) + [2**power for power in range(6, 17)]
"""Orders of the Renyi divergences, of which the tightest bound is taken: the more noise, the higher the best order."""


LARGE = 100.0
"""Epsilon above which privacy loss distributions would need too much memory; the bound by Renyi divergences stands."""


class Release(NamedTuple):
    """A release by the Gaussian mechanism: noise over sensitivity, and the probability of taking part in it."""

    multiplier: float
    sampling: float = 1.0


class PrivacyAccountant:
    """The releases of every client of a run.

    Args:
        method: gives the noise of its entries.
        clients: all of the federation.
        delta: of (epsilon, delta). budget: epsilon that no client may exceed; None: no limit.
        by: how releases compose: "rdp", by Renyi differential privacy, or "pld", by privacy loss distributions.
        updates: the noise on clients' updates; None: none.
    """

    def __init__(
        self,
        method: FederatedMethod,
        clients: Sequence[Client],
        *,
        delta: float,
        budget: float | None,
        by: str = "rdp",
        updates: UpdatePrivacy | None = None,
    ) -> None:
        self.method, self.clients, self.delta, self.budget, self.by = method, clients, delta, budget, by
        self.updates = updates
        self.releases: dict[int, Counter[Release]] = {}
        self.covers: set[str] = set()

    def empty(self) -> "PrivacyAccountant":
        """The same account before any release."""
        return PrivacyAccountant(
            self.method, self.clients, delta=self.delta, budget=self.budget, by=self.by, updates=self.updates
        )

    def planned(self, phase: Phase, members: Iterable[Client]) -> dict[int, dict[str, Release]]:
        """Client -> what it will release with noise in a phase, by entry.

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
        planned = {
            client: {entry: Release(multiplier) for entry, multiplier in entries.items()}
            for client, entries in noise.items()
        }
        if self.updates is not None and (released := self.updates.multipliers(phase)):
            sampling = 1.0 if phase.cohort == "all" else self.updates.sampling or 1.0
            updates = {entry: Release(multiplier, sampling) for entry, multiplier in released.items()}
            for client in planned if self.updates.sampling is None else (client.id for client in self.clients):
                planned[client] = {**planned.get(client, {}), **updates}
        return {client: entries for client, entries in planned.items() if entries}

    def record_releases(self, phase: Phase, members: Iterable[Client]) -> set[int]:
        """Adds the releases of a phase; returns the ids of the clients that released anything."""
        planned = self.planned(phase, members)
        for client, entries in planned.items():
            self.covers |= set(entries)
            self.releases.setdefault(client, Counter()).update(entries.values())
        return set(planned)

    def epsilon(self, client: int, planned: Counter[Release] | None = None) -> float:
        """Epsilon that a client has spent so far, or will have spent after further planned releases."""
        counted = self.releases.get(client, Counter()) + (planned or Counter())
        return epsilon(tuple(sorted(counted.items())), self.delta, self.by)

    def over_budget_reason(self, phases: Sequence[tuple[Phase, Sequence[Client]]]) -> str | None:
        """Reason a round of these phases would exceed some client's budget, else None."""
        if self.budget is None:
            return None
        planned: dict[int, Counter[Release]] = {}
        for phase, members in phases:
            for client, entries in self.planned(phase, members).items():
                planned.setdefault(client, Counter()).update(entries.values())
        spent = {client: self.epsilon(client, planned[client]) for client in sorted(planned)}
        highest = max(spent, key=lambda client: spent[client], default=None)
        if highest is None or spent[highest] <= self.budget:
            return None
        return f"client {highest} would spend epsilon {spent[highest]:.4g} of its budget of {self.budget:g}"

    def state(self) -> dict[str, Any]:
        """Releases as plain lists, and the present clip, for the checkpoint."""
        spent = [[client, *release, n] for client, counted in self.releases.items() for release, n in counted.items()]
        clip = {} if self.updates is None else {"clip": self.updates.clipping.norm}
        return {"releases": spent, "covers": sorted(self.covers), **clip}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self.covers, self.releases = set(state["covers"]), {}
        for client, *release, n in state["releases"]:  # those of earlier versions have no sampling
            self.releases.setdefault(client, Counter())[Release(*release)] = n
        if self.updates is not None and "clip" in state:
            self.updates.clipping.norm = state["clip"]


@lru_cache(maxsize=4096)
def epsilon(released: tuple[tuple[Release, int], ...], delta: float, by: str = "rdp") -> float:
    """Epsilon at this delta of releases, each with its number; 0 for none. by: "rdp" or "pld"."""
    if not released:
        return 0.0
    if by == "pld" and (bound := epsilon(released, delta)) > LARGE:
        return bound
    accountant = _accountant(by)
    for release, count in released:
        accountant.compose(_event(release), count)
    return float(accountant.get_epsilon(delta))


def noise_multiplier(target: float, delta: float, release: Callable[[float], Release], count: int, by: str) -> float:
    """The least noise multiplier, to 1e-6, at which `count` releases cost at most epsilon `target`.

    release: noise multiplier -> what is released at a time.
    """
    check_installed()
    from dp_accounting import ExplicitBracketInterval, SelfComposedDpEvent, calibrate_dp_mechanism

    def solved(by: str, *bracket: Any) -> float:
        return calibrate_dp_mechanism(
            lambda: _accountant(by),
            lambda multiplier: SelfComposedDpEvent(_event(release(multiplier)), count),
            target,
            delta,
            *bracket,
        )

    highest = solved("rdp")  # fast, and an upper bound for the other
    return highest if by == "rdp" or target > LARGE else solved(by, ExplicitBracketInterval(highest / 2, highest))


def check_installed() -> None:
    """Raises ConfigError: dp-accounting, which an extra of the suite installs, is not there."""
    if find_spec("dp_accounting") is None:
        raise ConfigError("epsilon needs dp-accounting: pip install 'fulcrum-ful[dp]'")


def _accountant(by: str) -> Any:
    """An empty account of dp-accounting."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that do not converge are left out: the bound holds
    if by == "pld":
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant()
    from dp_accounting.rdp import RdpAccountant  # imported where noise is: it takes a fifth of a second

    return RdpAccountant(orders=ORDERS)


def _event(release: Release) -> Any:
    """A release, for dp-accounting."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    gaussian = GaussianDpEvent(release.multiplier)
    return gaussian if release.sampling == 1 else PoissonSampledDpEvent(release.sampling, gaussian)
