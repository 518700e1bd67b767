"""Builds a run's privacy accountant, and the noise on its clients' updates, from the config's section `privacy`."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.instantiate import check
from benchmark.errors import ConfigError
from benchmark.experiment import factory
from benchmark.federation.accountant import ACCOUNTANTS, DELTA, PrivacyAccountant, Release, noise_multiplier
from benchmark.federation.clipping import CLIPPINGS, SPREAD, Clipping
from benchmark.federation.update_privacy import MECHANISMS, UpdatePrivacy, refuse_uncovered
from benchmark.federation.updates import combined_entries
from benchmark.rng import Streams, cohort_size
from methods.base import Client, FederatedMethod

OPTIONAL = dict.fromkeys(("epsilon", "clip", "noise_multiplier"), float | None) | {"mechanism": str | None}
"""Keys of the section without a default, and their types."""
DEFAULTS = {"delta": DELTA, "accountant": "rdp", "clipping": "flat", "quantile": 0.5, "sampling": "fixed"}
"""Keys of the section with a default."""
CHOICES = {
    "mechanism": (None, *MECHANISMS),
    "accountant": ACCOUNTANTS,
    "clipping": CLIPPINGS,
    "sampling": ("fixed", "poisson"),
}
"""Keys of the section and what they may be."""


def accountant(config: DictConfig, method: FederatedMethod, clients: Sequence[Client]) -> PrivacyAccountant:
    """The clients' privacy accountant; refuses a budget where nothing is released with noise."""
    given = _settings(config)
    made = PrivacyAccountant(
        method,
        clients,
        delta=given["delta"],
        budget=given["epsilon"],
        by=given["accountant"],
        updates=_updates(config, given, method, clients),
    )
    phases = {phase.name: phase for round in range(config.federation.rounds) for phase in method.plan(round)}
    releases = [made.planned(phase, clients[:1]) for phase in phases.values()]  # `planned` also checks them
    if made.budget is not None and not any(releases):
        raise ConfigError(
            f"privacy.epsilon={made.budget:g}: {type(method).__name__} releases nothing with noise as it is set, so "
            "there is nothing to keep to a budget: give it some (FedSC: method.sigma; Orchestra: method.epsilon; "
            "methods that average updates: privacy.mechanism), or leave the budget out"
        )
    return made


def _settings(config: DictConfig) -> dict[str, Any]:
    """The section with its defaults."""
    given = {**DEFAULTS, **dict.fromkeys(OPTIONAL), **config.privacy}
    check(given, {key: type(value) for key, value in DEFAULTS.items()} | OPTIONAL, "privacy", "the accountant")
    for key in ("delta", "quantile"):
        if not 0 < given[key] < 1:
            raise ConfigError(f"privacy.{key}={given[key]}: give a number in (0, 1), e.g. {DEFAULTS[key]}")
    if given["epsilon"] is not None and not given["epsilon"] > 0:
        raise ConfigError(f"privacy.epsilon={given['epsilon']}: give a number above 0, or leave it out for no budget")
    for key, allowed in CHOICES.items():
        if given[key] not in allowed:
            raise ConfigError(f"privacy.{key}={given[key]!r}: choose {' or '.join(filter(None, allowed))}")
    return given


def _updates(
    config: DictConfig, given: dict[str, Any], method: FederatedMethod, clients: Sequence[Client]
) -> UpdatePrivacy | None:
    """Clipping and noise of the clients' updates, or None; refuses a method whose updates they do not cover."""
    mechanism, clip, multiplier = given["mechanism"], given["clip"], given["noise_multiplier"]
    if mechanism is None:
        if useless := [
            key for key in ("clip", "noise_multiplier", "clipping", "quantile", "sampling") if key in config.privacy
        ]:
            keys = " and ".join(f"privacy.{key}" for key in useless)
            raise ConfigError(f"{keys} need{'s' * (len(useless) == 1)} privacy.mechanism=central or local")
        return None
    if clip is None or not 0 < clip < math.inf:
        raise ConfigError(f"privacy.clip={clip}: give the largest norm of a client's update, a number above 0")
    if multiplier is None and given["epsilon"] is None:
        raise ConfigError(
            "privacy.mechanism: give the noise's deviation over privacy.clip as privacy.noise_multiplier, or "
            "privacy.epsilon, for which it is solved"
        )
    if multiplier is not None and not 0 <= multiplier < math.inf:
        raise ConfigError(
            f"privacy.noise_multiplier={multiplier}: give the noise's deviation over privacy.clip, at least 0"
        )
    for key, name in (("sampling", "poisson"), ("clipping", "adaptive")):
        if mechanism == "local" and given[key] == name:
            raise ConfigError(
                f"privacy.{key}={name} trusts the server, which privacy.mechanism=local does not: leave it out"
            )
    rounds = config.federation.rounds
    phases = (phase for round in range(rounds) for phase in method.plan(round))
    if any(method.noise(phase, client) for phase in phases for client in clients[:1]):
        raise ConfigError(
            f"privacy.mechanism={mechanism}: {type(method).__name__} releases entries with noise of its own, which "
            "hides single images, while this noise hides whole clients: choose one of them"
        )
    refuse_uncovered(method, rounds)
    if multiplier is None:
        multiplier = _solved(config, given, method, len(clients))
    attendance = factory.attendance(config)
    cohort = (
        attendance.expected(len(clients)) if attendance.poisson else cohort_size(len(clients), attendance.participation)
    )
    if given["clipping"] == "adaptive" and multiplier >= 2 * SPREAD * cohort:
        raise ConfigError(
            f"privacy.clipping=adaptive: rounds of {cohort:g} clients allow a privacy.noise_multiplier below "
            f"{2 * SPREAD * cohort:g}, and it is {multiplier:.3g}: draw more clients, or leave it out"
        )
    clipping = Clipping(given["clipping"], clip, given["quantile"], cohort)
    sampling = attendance.participation if attendance.poisson else None
    return UpdatePrivacy(mechanism, clipping, multiplier, Streams(config.seed), sampling)


def _solved(config: DictConfig, given: dict[str, Any], method: FederatedMethod, clients: int) -> float:
    """The least noise multiplier with which no client spends more than the budget in the planned rounds."""
    attendance, streams = factory.attendance(config), Streams(config.seed)
    sensitivity = 1 if given["mechanism"] == "central" else 2
    sampling = attendance.participation if attendance.poisson else 1.0
    releases: Counter[int] = Counter()
    for round in range(config.federation.rounds):
        drawn = range(clients) if attendance.poisson else attendance.drawn(streams, round, clients)
        for phase in method.plan(round):
            if combined_entries(phase):
                releases.update(range(clients) if phase.cohort == "all" else drawn)
    most = max(releases.values())
    return noise_multiplier(
        given["epsilon"],
        given["delta"],
        lambda multiplier: Release(multiplier / sensitivity, sampling),
        most,
        given["accountant"],
    )
