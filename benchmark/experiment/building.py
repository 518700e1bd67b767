"""The federated loop of a config, for a run, the table of what leaves a client, and a comparison with authors' code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmark.execution.base import Executor
from benchmark.experiment import factory, privacy
from benchmark.experiment.adapters import factors
from benchmark.federation.loop import FederatedLoop
from benchmark.federation.low_rank import ProductAverage, check_product
from benchmark.federation.participation import Participation
from benchmark.federation.uplink import Uplink
from methods.base import Client, FederatedMethod


def build_loop(
    config: DictConfig,
    work: Executor,
    clients: Sequence[Client],
    folder: Path,
    *,
    config_hash: str = "",
    everybody: bool = False,
    environment: Callable[[Executor], dict[str, Any]] = lambda executor: {},
) -> FederatedLoop:
    """The rounds of a config by an executor.

    folder: of the checkpoint. config_hash: what a checkpoint has to be of. everybody: all clients are drawn, and reply.
    environment: see `FederatedLoop`.
    """
    resident: Any = work.reference
    built = resident.method
    accountant = privacy.accountant(config, built, clients)
    return FederatedLoop(
        resident.fabric,
        built,
        work,
        clients,
        resident.streams,
        rounds=config.federation.rounds,
        participation=Participation() if everybody else factory.participation(config),
        folder=folder,
        config_hash=config_hash,
        accountant=accountant,
        uplink=Uplink(
            accountant.updates,
            factory.compression(config, built),
            privacy.secure_aggregation(config, built, clients),
            _products(config, built),
        ),
        execution_environment=environment,
    )


def _products(config: DictConfig, built: FederatedMethod) -> ProductAverage | None:
    """The mean of the products of an adapter's factors; refuses a run in which it would be none."""
    if not (layers := factors(built.objective.encoder)):
        return None
    given = {
        "privacy.mechanism": config.privacy.mechanism != "none",
        "privacy.secure_aggregation": config.privacy.secure_aggregation,
        "compression.name": config.compression.name != "none",
        "server_optimizer": bool(config.server_optimizer),
    }
    check_product(built, config.federation.rounds, [key for key, changes in given.items() if changes])
    return ProductAverage(layers)
