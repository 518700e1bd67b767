"""Client drift: the clients of the last round trained once more from the final model; nothing of it is kept."""

from collections import ChainMap

from benchmark.distributed.collectives import run_and_gather
from benchmark.errors import ConfigError
from benchmark.evaluation.evaluator import LocalModels
from benchmark.execution.base import VisitResult
from benchmark.federation.loop import Callback, FederatedLoop
from methods import trees
from methods.base import FederatedMethod, Phase
from methods.core.recalibration import has_batch_norm


class _Collector(Callback):
    """Weights that clients ended with, by id; of several phases those of the last."""

    def __init__(self) -> None:
        self.weights: dict[int, trees.Tree] = {}

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Copies the weights to the CPU: a reply may be the resident model itself."""
        if result.visit.phase.where != "clients":
            return
        weights = loop.method.local_weights(result.message, loop.server)
        if weights is not None:
            self.weights[result.visit.client.id] = trees.to(trees.clone(weights), "cpu")


def weights_phases(loop: FederatedLoop) -> list[Phase]:
    """The phases of the last round from whose replies the clients' weights follow."""
    replaced = type(loop.method).local_weights is not FederatedMethod.local_weights
    phases = [phase for phase in loop.plan(max(loop.rounds - 1, 0)) if phase.where == "clients"]
    return [phase for phase in phases if replaced or "weights" in phase.uplink]


def supports_drift(loop: FederatedLoop) -> bool:
    """Whether clients upload full models that can be compared with the aggregate.

    A model without BatchNorm's statistics, which stay local or are measured by the server, is not full.
    """
    method = loop.method
    return bool(weights_phases(loop)) and (method.batch_norm == "average" or not has_batch_norm(method))


def has_drift(loop: FederatedLoop) -> bool:
    """Whether a round is done, clients upload full models, and one global model is made of them."""
    return loop.round > 0 and supports_drift(loop) and list(loop.export()) == ["global"]


def drift_unavailable(loop: FederatedLoop) -> str:
    """Why there is no drift to measure, in one line."""
    return f"drift/v1: {type(loop.method).__name__} has no global model of whole networks that clients sent"


def revisit_clients(loop: FederatedLoop) -> LocalModels:
    """The models of the last round's clients, trained once more from the final model, and the aggregate of them.

    Cohort, draws and learning rates are those of the last round. The loop is not changed. Every rank has to call this.

    Raises ConfigError: see `has_drift`.
    """
    if not has_drift(loop):
        raise ConfigError(drift_unavailable(loop))
    collector = _Collector()
    with loop.scratch_copy([collector]) as scratch:
        scratch.run_round(loop.round - 1)
        global_model = trees.to(trees.clone(scratch.export()["global"]), "cpu")
    local = ChainMap(*run_and_gather(loop.fabric, lambda: collector.weights))  # those of all ranks
    return LocalModels([local[client] for client in sorted(local)], global_model)
