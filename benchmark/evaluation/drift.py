"""Clients visited once more from a run's last model, to see how far they drift from it; nothing of it is kept."""

from typing import Any

from benchmark.distributed.collectives import run_and_gather
from benchmark.errors import ConfigError
from benchmark.evaluation.evaluator import LocalModels
from benchmark.execution.batch_norm import has_batch_norm
from benchmark.federation.client_state import LocalParts
from benchmark.federation.loop import FederatedLoop
from methods import trees
from methods.base import FederatedMethod


class _Collector:
    """The weights that clients ended with, by id; of several phases the last one's."""

    def __init__(self) -> None:
        self.weights: dict[int, trees.Tree] = {}

    def on_visit_end(self, loop: FederatedLoop, done: Any) -> None:
        """A copy on the CPU: a reply may be the resident model itself."""
        if done.visit.phase.where != "clients":
            return
        weights = loop.method.local_weights(done.message, loop.server)
        if weights is not None:
            self.weights[done.visit.client.id] = trees.to(trees.clone(weights), "cpu")


def supports_drift(loop: FederatedLoop) -> bool:
    """Whether clients will reply whole networks, which the model that is made of them can be held against.

    A network without BatchNorm's statistics, which stay at home or are measured by the server, is not whole.
    """
    method = loop.method
    tells = type(method).local_weights is not FederatedMethod.local_weights or any(
        phase.where == "clients" and "weights" in phase.uplink for _, phase in loop.plan(max(loop.rounds - 1, 0))
    )
    return tells and (method.batch_norm == "average" or not has_batch_norm(method))


def drifts(loop: FederatedLoop) -> bool:
    """Whether they have, and one global model was made of them."""
    if not loop.round or not supports_drift(loop):
        return False
    return list(loop.method.export(loop.server, LocalParts(loop.memory))) == ["global"]


def drift_unavailable(loop: FederatedLoop) -> str:
    """Why there is no drift to measure, as one line."""
    return f"drift/v1: {type(loop.method).__name__} has no global model of whole networks that clients sent"


def revisit(loop: FederatedLoop) -> LocalModels:
    """The last round played again, with its cohort, draws and rates, but from the model it ended with.

    The federation is put back to its checkpoint, which is not touched. Every rank has to call this.

    Raises:
        ConfigError: see `drifts`.
    """
    if not drifts(loop):
        raise ConfigError(drift_unavailable(loop))
    collector, callbacks, memory = _Collector(), loop.callbacks, loop.memory
    loop.callbacks, loop.memory = [collector], memory.aside()
    try:
        loop.run_round(loop.round - 1)
        made = loop.method.export(loop.server, LocalParts(loop.memory))["global"]
        found = LocalModels((), trees.to(trees.clone(made), "cpu"))
    finally:
        aside, loop.callbacks, loop.memory = loop.memory, callbacks, memory
        loop.start()
        aside.clear()
    local = {
        client: tree for part in run_and_gather(loop.fabric, lambda: collector.weights) for client, tree in part.items()
    }
    return found._replace(local=[local[client] for client in sorted(local)])
