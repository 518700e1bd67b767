"""Clients visited once more from a run's last model, to see how far they drift from it; nothing of it is kept."""

from typing import Any

from benchmark.config import ConfigError
from benchmark.evaluation import Visited
from benchmark.memory import Kept
from benchmark.rounds import Federation
from benchmark.strategy import gathered
from methods import trees


class _Collector:
    """The weights that clients reply, by id; of several phases the last one's."""

    def __init__(self) -> None:
        self.weights: dict[int, trees.Tree] = {}

    def on_visit_end(self, federation: Federation, done: Any) -> None:
        """A copy on the CPU: a reply may be the resident model itself."""
        if done.visit.phase.where == "clients" and "weights" in done.message:
            self.weights[done.visit.client.id] = trees.to(trees.clone(done.message["weights"]), "cpu")


def drifts(federation: Federation) -> bool:
    """Whether clients reply weights of which one global model is made: only then can they have drifted from it."""
    if not federation.round or not any("weights" in phase.uplink for _, phase in federation.plan(federation.round - 1)):
        return False
    return list(federation.method.export(federation.server, Kept(federation.memory))) == ["global"]


def revisit(federation: Federation) -> Visited:
    """The last round played again, with its cohort, draws and rates, but from the model it ended with.

    The federation is put back to its checkpoint. Every rank has to call this.

    Raises:
        ConfigError: see `drifts`.
    """
    if not drifts(federation):
        name = type(federation.method).__name__
        raise ConfigError(f"drift/v1: {name} has no global model made of clients' weights to compare these with")
    collector, callbacks = _Collector(), federation.callbacks
    federation.callbacks = [collector]
    try:
        federation.play(federation.round - 1)
        made = federation.method.export(federation.server, Kept(federation.memory))["global"]
        found = Visited((), trees.to(trees.clone(made), "cpu"))
    finally:
        federation.callbacks = callbacks
        federation.start()
    local = {
        client: tree for part in gathered(federation.fabric, lambda: collector.weights) for client, tree in part.items()
    }
    return found._replace(local=[local[client] for client in sorted(local)])
