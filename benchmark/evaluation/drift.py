"""Clients visited once more from a run's last model, to see how far they drift from it; nothing of it is kept."""

from typing import Any

from benchmark.configuration.schema import ConfigError
from benchmark.distributed.collectives import gathered
from benchmark.evaluation.evaluator import Visited
from benchmark.execution.batch_norm import has_batch_norm
from benchmark.federation.client_state import Kept
from benchmark.federation.loop import Federation
from methods import trees
from methods.base import FederatedMethod


class _Collector:
    """The weights that clients ended with, by id; of several phases the last one's."""

    def __init__(self) -> None:
        self.weights: dict[int, trees.Tree] = {}

    def on_visit_end(self, federation: Federation, done: Any) -> None:
        """A copy on the CPU: a reply may be the resident model itself."""
        if done.visit.phase.where != "clients":
            return
        weights = federation.method.local_weights(done.message, federation.server)
        if weights is not None:
            self.weights[done.visit.client.id] = trees.to(trees.clone(weights), "cpu")


def may_drift(federation: Federation) -> bool:
    """Whether clients will reply whole networks, which the model that is made of them can be held against.

    A network without BatchNorm's statistics, which stay at home or are measured by the server, is not whole.
    """
    method = federation.method
    tells = type(method).local_weights is not FederatedMethod.local_weights or any(
        phase.where == "clients" and "weights" in phase.uplink
        for _, phase in federation.plan(max(federation.rounds - 1, 0))
    )
    return tells and (method.batch_norm == "average" or not has_batch_norm(method))


def drifts(federation: Federation) -> bool:
    """Whether they have, and one global model was made of them."""
    if not federation.round or not may_drift(federation):
        return False
    return list(federation.method.export(federation.server, Kept(federation.memory))) == ["global"]


def without(federation: Federation) -> str:
    """Why there is no drift to measure, as one line."""
    return f"drift/v1: {type(federation.method).__name__} has no global model of whole networks that clients sent"


def revisit(federation: Federation) -> Visited:
    """The last round played again, with its cohort, draws and rates, but from the model it ended with.

    The federation is put back to its checkpoint, which is not touched. Every rank has to call this.

    Raises:
        ConfigError: see `drifts`.
    """
    if not drifts(federation):
        raise ConfigError(without(federation))
    collector, callbacks, memory = _Collector(), federation.callbacks, federation.memory
    federation.callbacks, federation.memory = [collector], memory.aside()
    try:
        federation.play(federation.round - 1)
        made = federation.method.export(federation.server, Kept(federation.memory))["global"]
        found = Visited((), trees.to(trees.clone(made), "cpu"))
    finally:
        aside, federation.callbacks, federation.memory = federation.memory, callbacks, memory
        federation.start()
        aside.clear()
    local = {
        client: tree for part in gathered(federation.fabric, lambda: collector.weights) for client, tree in part.items()
    }
    return found._replace(local=[local[client] for client in sorted(local)])
