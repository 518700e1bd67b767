"""Clients visited once more from the final model, of which nothing is kept: how that is watched, and client drift."""

from collections import ChainMap
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmark.distributed.collectives import run_and_gather
from benchmark.errors import ConfigError
from benchmark.evaluation.evaluator import Evaluator
from benchmark.execution.base import VisitResult
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from eval.inputs import ModelComparison
from methods import trees
from methods.base import FederatedMethod, Phase, Tree
from methods.core.recalibration import has_batch_norm


class LocalModels(NamedTuple):
    """Weights of clients' models after one more visit, and of the global model that the server made of them."""

    local: Sequence[Tree]
    global_model: Tree


class Watch(Callback):
    """Calls a function with each visit's result, whose reply may be the resident model itself."""

    def __init__(self, see: Callable[[FederatedLoop, VisitResult], None]) -> None:
        self.see = see

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Passes the result on."""
        self.see(loop, result)


def weights_phases(loop: FederatedLoop) -> list[Phase]:
    """The phases of the last round from whose replies the clients' weights follow."""
    replaced = type(loop.method).local_weights is not FederatedMethod.local_weights
    phases = [phase for phase in loop.plan(max(loop.rounds - 1, 0)) if phase.where == "clients"]
    return [phase for phase in phases if replaced or "weights" in phase.uplink]


def drift_unavailable(loop: FederatedLoop) -> str | None:
    """Why there are no full models to compare with one aggregate of them, in one line; None: there are.

    A model without BatchNorm's statistics, which stay local or are measured by the server, is not full.
    """
    method = loop.method
    full = method.batch_norm == "average" or not has_batch_norm(method)
    if full and weights_phases(loop) and (not loop.round or list(loop.export()) == ["global"]):
        return None
    return f"{type(method).__name__} has no global model of whole networks that clients sent"


def revisit_clients(loop: FederatedLoop) -> LocalModels:
    """The models of the last round's clients, trained once more from the final model, and the aggregate of them.

    Cohort, draws and learning rates are those of the last round. The loop is not changed. Every rank has to call this.

    Raises ConfigError: see `drift_unavailable`, or no round is done.
    """
    refuse(loop, "drift/v1", drift_unavailable(loop))
    found: dict[int, Tree] = {}  # of several phases that of the last

    def see(loop: FederatedLoop, result: VisitResult) -> None:
        if result.visit.phase.where == "clients":
            weights = loop.method.local_weights(result.message, loop.server)
            if weights is not None:
                found[result.visit.client.id] = trees.to(trees.clone(weights), "cpu")

    with loop.scratch_copy([Watch(see)]) as scratch:
        scratch.run_round(loop.round - 1)
        global_model = trees.to(trees.clone(scratch.export()["global"]), "cpu")
    local = ChainMap(*run_and_gather(loop.fabric, lambda: found))  # those of all ranks
    return LocalModels([local[client] for client in sorted(local)], global_model)


def refuse(loop: FederatedLoop, protocol: str, unavailable: str | None) -> None:
    """ConfigError where clients cannot be visited once more, for a reason, or because no round is done."""
    if unavailable is not None or not loop.round:
        raise ConfigError(f"{protocol}: {unavailable or 'no round is done: set federation.rounds to at least 1'}")


def observe_drift(loop: FederatedLoop, evaluator: Evaluator) -> Callable[[int], ModelComparison]:
    """A function of a number of test images: their features by clients' models and by the global model.

    Every rank has to call this; any may call what it returns. Raises ConfigError: see `revisit_clients`.
    """
    return partial(_compare, evaluator, revisit_clients(loop))


def _compare(evaluator: Evaluator, models: LocalModels, images: int) -> ModelComparison:
    test = evaluator.images.test
    chosen = evaluator.sample(len(test.labels), images, "drift")

    def features(weights: Tree) -> Tensor:
        return evaluator.extract(evaluator.encoder(weights, recalibrated=False), test.images[chosen])

    labels = torch.from_numpy(test.labels[chosen]).to(evaluator.device)
    return ModelComparison([features(weights) for weights in models.local], features(models.global_model), labels)
