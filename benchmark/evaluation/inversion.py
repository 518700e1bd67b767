"""One step of a client, watched by the server that gets its reply; nothing of it is kept."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.errors import ConfigError
from benchmark.evaluation.drift import weights_phases
from benchmark.execution.base import LocalTrainingConfig, VisitResult
from benchmark.execution.sequential import SequentialExecutor
from benchmark.federation.loop import Callback, FederatedLoop
from benchmark.federation.scheduling import VisitCosts
from benchmark.federation.updates import trains_clients
from datamodules.federated import FederatedDataModule
from datamodules.views import plain
from eval.features import EvalError
from eval.inversion import ObservedStep
from methods import trees
from methods.base import Batch, FederatedMethod, Phase, Tree, Visit


def step_unavailable(loop: FederatedLoop) -> str | None:
    """Why no gradient follows from a client's reply, in one line; None: it does."""
    if not any(map(trains_clients, weights_phases(loop))) or loop.method.has_personal_encoders:
        return f"inversion/v1: clients of {type(loop.method).__name__} send no weights of a global encoder"
    if loop.uplink.secure_aggregation is not None:
        return "inversion/v1: under privacy.secure_aggregation the server sees no reply of a single client"
    if not isinstance(loop.method.configure_optimizers(), torch.optim.SGD):
        return "inversion/v1: clients do not train by torch.optim.SGD, of which one step shows the gradient"
    return None


@dataclass(frozen=True)
class _Start:
    """A client's step before it was made.

    method: a copy, in the state from which the step starts. rate: the step's length over the gradient's. decay: weight
    decay by path of a parameter.
    """

    method: FederatedMethod
    phase: Phase
    client: int
    batch: Batch
    rate: float
    decay: dict[tuple, float]

    @classmethod
    def of(cls, method: FederatedMethod, visit: Visit, batch: Batch, optimizer: torch.optim.Optimizer) -> "_Start":
        groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
        trained = {path: groups[id(leaf)] for path, leaf in trees.leaves(method.trainable()) if id(leaf) in groups}
        rates = {group["lr"] * (1 + group["momentum"] * group["nesterov"]) for group in trained.values()}
        if len(rates) != 1:
            raise ConfigError("inversion/v1: the optimiser has several learning rates: it cannot be inverted")
        decay = {path: group["weight_decay"] for path, group in trained.items()}
        return cls(deepcopy(method), visit.phase, visit.client.id, batch, rates.pop(), decay)

    def parameters(self, after: Tree) -> dict[tuple, Tensor]:
        """Path -> parameter of those that were trained and that the reply shows. after: weights by the reply."""
        shown = dict(trees.leaves(after))
        return {path: leaf for path, leaf in trees.leaves(self.method.trainable()) if path in shown.keys() & self.decay}

    def observed(self, after: Tree, clipped: bool) -> list[Tensor]:
        """The gradient by tensor, from the weights before the step and those by the reply.

        clipped: whether a clip may have scaled it together with the weight decay, which then stays in it.
        """
        shown = dict(trees.leaves(after))
        with torch.no_grad():
            return [
                (before - shown[path]) / self.rate - (0.0 if clipped else self.decay[path]) * before
                for path, before in self.parameters(after).items()
            ]

    def gradients(self, after: Tree, clipped: bool) -> Callable[[Tensor], Sequence[Tensor]]:
        """The gradient by tensor of the step on other inputs. clipped: whether with the weight decay."""
        parameters, method, phase = self.parameters(after), self.method, self.phase

        def of_views(inputs: Tensor) -> Sequence[Tensor]:
            views = inputs.split(len(self.batch.index))
            with sdpa_kernel(SDPBackend.MATH):  # other kernels of attention have no second derivative
                loss = method.hook("training_step", phase)(cast(Any, self.batch)._replace(views=views), 0)["loss"]
                found = torch.autograd.grad(loss, list(parameters.values()), create_graph=True, materialize_grads=True)
            gradients = dict(zip(parameters, found, strict=True))
            if not method.is_default("adjust_gradients", phase):
                tree: Tree = {}
                for path, gradient in gradients.items():
                    trees.put(tree, path, gradient)
                gradients |= trees.leaves(method.hook("adjust_gradients", phase)(tree))
            return [gradients[path] + self.decay[path] * leaf * clipped for path, leaf in parameters.items()]

        return of_views


class _Watch(SequentialExecutor):
    """Visits clients for a step each, and keeps the start of the first one."""

    start: _Start | None = None

    def _local_step(self, visit: Visit, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
        take_step = super()._local_step(visit, optimizer)

        def watched(batch: Any) -> None:
            if self.start is None and visit.phase.where == "clients":
                self.start = _Start.of(self.method, visit, batch, optimizer)
            take_step(batch)

        return watched


class _Reply(Callback):
    """The weights by the first client's reply, as the server gets it, and the number of its steps."""

    def __init__(self, executor: _Watch) -> None:
        self.executor = executor
        self.weights: Tree | None = None
        self.steps = 0

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Copies the weights: a reply may be the resident model itself."""
        start, visit = self.executor.start, result.visit
        if self.weights is None and start is not None and (start.phase, start.client) == (visit.phase, visit.client.id):
            weights = loop.method.local_weights(result.message, loop.server)
            self.weights, self.steps = None if weights is None else trees.clone(weights), visit.steps


def observe_step(loop: FederatedLoop, data: FederatedDataModule, images: int) -> Callable[[], ObservedStep]:
    """One step on `images` images from the final model, of the client of the last round's cohort with the lowest id.

    The server is given all but the images: the client's own parts and the step's random numbers too. The run's state
    is not changed. Every rank has to call this; the first one, which visits that client, may call what it returns.

    Raises:
        ConfigError: see `step_unavailable`, or no round is done.
        EvalError: by the function: no client has trained, its reply is not of its first step, or views differ in size.
    """
    if (reason := step_unavailable(loop)) is not None or not loop.round:
        raise ConfigError(reason or "inversion/v1: no round is done: set federation.rounds to at least 1")
    training, resident = LocalTrainingConfig(1, 1, images), loop.executor.reference
    assert isinstance(resident, SequentialExecutor)
    executor = _Watch(loop.fabric, loop.method, data, training, loop.streams, resident)
    reply = _Reply(executor)
    with loop.scratch_copy([reply]) as scratch:
        scratch.executor, scratch.costs = executor, VisitCosts(executor.images)  # equal costs: the lowest id goes first
        scratch.run_round(loop.round - 1)
    return partial(_observed, executor.start, reply, data, loop.uplink.updates is not None)


def _observed(start: _Start | None, reply: _Reply, data: FederatedDataModule, clipped: bool) -> ObservedStep:
    """What the server sees of the step. Raises EvalError: see `observe_step`."""
    if start is None or (after := reply.weights) is None:
        raise EvalError("no client of the last round's cohort trains and replies with weights")
    if reply.steps != 1 or len({view.shape for view in start.batch.views}) > 1:
        raise EvalError("a client makes more than one step before it replies, or its views differ in size")
    views = torch.cat(start.batch.views)
    average = torch.from_numpy(data.source.train.images.mean(axis=0, keepdims=True).round().astype("uint8"))
    low, blind, high = (
        plain(image.to(views.device), data.recipe).to(views)
        for image in (torch.zeros_like(average), average, torch.full_like(average, 255))
    )
    return ObservedStep(
        views=views,
        low=low[..., :1, :1],
        high=high[..., :1, :1],
        blind=blind,
        observed=start.observed(after, clipped),
        gradients=start.gradients(after, clipped),
    )
