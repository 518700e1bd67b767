"""Builds what the config's section `privacy` asks for: accountant, noise on clients' updates, secure aggregation."""

import math
from collections import Counter
from collections.abc import Sequence

from omegaconf import DictConfig

from benchmark.configuration.instantiate import arguments, locate
from benchmark.configuration.schema import KEYS
from benchmark.errors import ConfigError
from benchmark.experiment import factory
from benchmark.federation.accountant import PrivacyAccountant, Release, check_installed, noise_multiplier
from benchmark.federation.clipping import SPREAD, Clipping
from benchmark.federation.secure_aggregation import SecureAggregation
from benchmark.federation.update_privacy import UpdatePrivacy
from benchmark.federation.updates import combined_entries, refuse_single
from benchmark.rng import Streams, cohort_size
from methods.base import Client, FederatedMethod

NEEDS_MECHANISM = ("clip", "clipping", "quantile", "noise_multiplier", "sampling")
"""Keys of the section that change nothing without privacy.mechanism."""


def accountant(config: DictConfig, method: FederatedMethod, clients: Sequence[Client]) -> PrivacyAccountant:
    """The clients' privacy accountant; refuses a budget where nothing is released with noise."""
    given = config.privacy
    made = PrivacyAccountant(
        method,
        clients,
        delta=given.delta,
        budget=given.epsilon,
        by=given.accountant,
        updates=_updates(config, method, clients),
    )
    phases = {phase.name: phase for round in range(config.federation.rounds) for phase in method.plan(round)}
    releases = [made.planned(phase, clients[:1]) for phase in phases.values()]  # `planned` also checks them
    if any(releases):
        check_installed()
    elif made.budget is not None:
        raise ConfigError(
            f"privacy.epsilon={made.budget:g}: {type(method).__name__} releases nothing with noise as it is set, so "
            "there is nothing to keep to a budget: give it some (FedSC: method.sigma; Orchestra: method.epsilon; "
            "methods that average updates: privacy.mechanism), or leave the budget out"
        )
    return made


def secure_aggregation(
    config: DictConfig, method: FederatedMethod, clients: Sequence[Client]
) -> SecureAggregation | None:
    """Masks on what the clients' replies are averaged or summed from, or None."""
    if not config.privacy.secure_aggregation:
        if config.privacy.range != KEYS["privacy.range"].default:
            raise ConfigError("privacy.range needs privacy.secure_aggregation=true")
        return None
    if config.compression.name != "none":
        raise ConfigError(
            f"privacy.secure_aggregation and compression.name={config.compression.name}: masked numbers have 32 bits "
            "and one step for all clients, so compression would save nothing: choose one of them"
        )
    refuse_single(method, config.federation.rounds, "privacy.secure_aggregation")
    phases = [phase for round in range(max(1, config.federation.rounds)) for phase in method.plan(round)]
    size = min(phase.batch_size or config.training.batch_size for phase in phases)
    examples = max(client.examples for client in clients)
    weights = {"examples": examples, "batches": math.ceil(examples / size), "clients": 1}
    return SecureAggregation(config.privacy.range, weights, method.dtype, Streams(config.seed))


def _updates(config: DictConfig, method: FederatedMethod, clients: Sequence[Client]) -> UpdatePrivacy | None:
    """Clipping and noise of the clients' updates, or None; refuses a method whose updates they do not cover."""
    given, name = config.privacy, type(method).__name__
    if given.mechanism == "none":
        if useless := [key for key in NEEDS_MECHANISM if given[key] != KEYS[f"privacy.{key}"].default]:
            keys = " and ".join(f"privacy.{key}" for key in useless)
            raise ConfigError(f"{keys} need{'s' * (len(useless) == 1)} privacy.mechanism=central or local")
        return None
    _check_noise(config)
    if given.clipping != "adaptive" and given.quantile != KEYS["privacy.quantile"].default:
        raise ConfigError("privacy.quantile needs privacy.clipping=adaptive")
    phases = (phase for round in range(config.federation.rounds) for phase in method.plan(round))
    if any(method.noise(phase, client) for phase in phases for client in clients[:1]):
        raise ConfigError(
            f"privacy.mechanism={given.mechanism}: {name} releases entries with noise of its own, which hides single "
            "images, while this noise hides whole clients: choose one of them"
        )
    refuse_single(method, config.federation.rounds, "privacy.mechanism")
    if (weighting := config.method.get("weighting", "clients")) != "clients":
        raise ConfigError(
            f"method.weighting={weighting}: under privacy.mechanism all clients count alike: "
            "set method.weighting=clients"
        )
    if method.batch_norm != "local" and (parts := [*method.statistics()]):
        raise ConfigError(
            f"privacy.mechanism: BatchNorm's running statistics ({', '.join(parts)}) would be useless with noise: "
            f"{_without_batch_norm(config, parts)}, or set federation.batch_norm=local, whose evaluated encoder "
            "epsilon does not cover"
        )
    multiplier = given.noise_multiplier
    if multiplier is None:
        multiplier = _solved(config, method, len(clients))
    participation = factory.participation(config)
    cohort: float = cohort_size(len(clients), participation.share)
    if participation.poisson:
        cohort = participation.expected(len(clients))
    if given.clipping == "adaptive" and multiplier >= 2 * SPREAD * cohort:
        raise ConfigError(
            f"privacy.clipping=adaptive: rounds of {cohort:g} clients allow a privacy.noise_multiplier below "
            f"{2 * SPREAD * cohort:g}, and it is {multiplier:.3g}: draw more clients, or leave it out"
        )
    clipping = Clipping(given.clipping, given.clip, given.quantile, cohort)
    sampling = participation.share if participation.poisson else None
    return UpdatePrivacy(given.mechanism, clipping, multiplier, Streams(config.seed), sampling)


def _without_batch_norm(config: DictConfig, parts: Sequence[str]) -> str:
    """What to set so that these parts have no BatchNorm."""
    encoder, heads = (arguments(locate(config[section], section)) for section in ("encoder", "objective"))
    words = []
    if "encoder" in parts:
        words.append("set encoder.norm=group" if "norm" in encoder else "choose an encoder without BatchNorm")
    if any(part.removeprefix("target_") != "encoder" for part in parts):
        settings = []
        for key in ("head_norm", "last_norm"):
            section = "objective" if key in config.objective else "heads"
            if key in heads and config[section].get(key, heads[key].default):
                settings.append(f"{section}.{key}=false")
        words.append(f"set {' '.join(settings)}" if settings else "choose an objective whose heads have none")
    return " and ".join(words)


def _check_noise(config: DictConfig) -> None:
    """Refuses settings of noise on updates that are not possible or contradict each other."""
    given = config.privacy
    if given.clip is None:
        raise ConfigError(f"privacy.clip=None: give {KEYS['privacy.clip'].within}")
    if given.noise_multiplier is None and given.epsilon is None:
        raise ConfigError(
            "privacy.mechanism: give the noise's deviation over privacy.clip as privacy.noise_multiplier, or "
            "privacy.epsilon, for which it is solved"
        )
    for key, name in (("sampling", "poisson"), ("clipping", "adaptive")):
        if given.mechanism == "local" and given[key] == name:
            raise ConfigError(
                f"privacy.{key}={name} trusts the server, which privacy.mechanism=local does not: leave it out"
            )


def _solved(config: DictConfig, method: FederatedMethod, clients: int) -> float:
    """The least noise multiplier with which no client spends more than the budget in the planned rounds."""
    participation, streams = factory.participation(config), Streams(config.seed)
    given = config.privacy
    sensitivity = 1 if given.mechanism == "central" else 2
    sampling = participation.share if participation.poisson else 1.0
    releases: Counter[int] = Counter()
    for round in range(config.federation.rounds):
        drawn = range(clients) if participation.poisson else participation.drawn(streams, round, clients)
        for phase in method.plan(round):
            if combined_entries(phase):
                releases.update(range(clients) if phase.cohort == "all" else drawn)
    if not releases:
        raise ConfigError(
            f"privacy.epsilon={given.epsilon}: nothing is sent in {config.federation.rounds} rounds: leave it out"
        )
    return noise_multiplier(
        given.epsilon,
        given.delta,
        lambda multiplier: Release(multiplier / sensitivity, sampling),
        max(releases.values()),
        given.accountant,
    )
