"""Builds a run's privacy accountant, and the noise on its clients' updates, from the config's section `privacy`."""

import math
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.instantiate import check
from benchmark.errors import ConfigError
from benchmark.federation.accountant import DELTA, PrivacyAccountant
from benchmark.federation.update_privacy import MECHANISMS, UpdatePrivacy, refuse_uncovered
from benchmark.rng import Streams
from methods.base import Client, FederatedMethod

OPTIONAL = dict.fromkeys(("epsilon", "clip", "noise_multiplier"), float | None) | {"mechanism": str | None}
"""Keys of the section without a default, and their types."""


def accountant(config: DictConfig, method: FederatedMethod, clients: Sequence[Client]) -> PrivacyAccountant:
    """The clients' privacy accountant; refuses a budget where nothing is released with noise."""
    given = _settings(config)
    made = PrivacyAccountant(
        method, delta=given["delta"], budget=given["epsilon"], updates=_updates(config, given, method, clients)
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
    given = {"delta": DELTA, **dict.fromkeys(OPTIONAL), **config.privacy}
    check(given, {"delta": float, **OPTIONAL}, "privacy", "the accountant")
    if not 0 < given["delta"] < 1:
        raise ConfigError(f"privacy.delta={given['delta']}: give a number in (0, 1), e.g. {DELTA}")
    if given["epsilon"] is not None and not given["epsilon"] > 0:
        raise ConfigError(f"privacy.epsilon={given['epsilon']}: give a number above 0, or leave it out for no budget")
    return given


def _updates(
    config: DictConfig, given: dict[str, Any], method: FederatedMethod, clients: Sequence[Client]
) -> UpdatePrivacy | None:
    """Clipping and noise of the clients' updates, or None; refuses a method whose updates they do not cover."""
    mechanism, clip, multiplier = given["mechanism"], given["clip"], given["noise_multiplier"]
    if mechanism is None:
        if clip is not None or multiplier is not None:
            raise ConfigError("privacy.clip and privacy.noise_multiplier need privacy.mechanism=central or local")
        return None
    if mechanism not in MECHANISMS:
        raise ConfigError(f"privacy.mechanism={mechanism!r}: choose {' or '.join(MECHANISMS)}")
    if clip is None or not 0 < clip < math.inf:
        raise ConfigError(f"privacy.clip={clip}: give the largest norm of a client's update, a number above 0")
    if multiplier is None or not 0 <= multiplier < math.inf:
        raise ConfigError(
            f"privacy.noise_multiplier={multiplier}: give the noise's deviation over privacy.clip, at least 0"
        )
    rounds = config.federation.rounds
    phases = (phase for round in range(rounds) for phase in method.plan(round))
    if any(method.noise(phase, client) for phase in phases for client in clients[:1]):
        raise ConfigError(
            f"privacy.mechanism={mechanism}: {type(method).__name__} releases entries with noise of its own, which "
            "hides single images, while this noise hides whole clients: choose one of them"
        )
    refuse_uncovered(method, rounds)
    return UpdatePrivacy(mechanism, clip, multiplier, Streams(config.seed))
