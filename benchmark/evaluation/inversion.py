"""One step of a client, watched by the server that gets its reply; nothing of it is kept."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.errors import ConfigError
from benchmark.evaluation.drift import Watch, refuse, weights_phases
from benchmark.execution.base import LocalTrainingConfig, VisitResult
from benchmark.execution.sequential import SequentialExecutor
from benchmark.federation.loop import FederatedLoop
from benchmark.federation.scheduling import VisitCosts
from benchmark.federation.updates import trains_clients
from datamodules.federated import FederatedDataModule
from datamodules.views import plain
from eval.features import EvalError
from eval.inversion import ObservedStep
from methods import trees
from methods.base import Batch, FederatedMethod, Tree, Visit


def step_unavailable(loop: FederatedLoop) -> str | None:
    """Why no gradient follows from a client's reply, in one line; None: it does."""
    if not any(map(trains_clients, weights_phases(loop))) or loop.method.has_personal_encoders:
        return f"clients of {type(loop.method).__name__} send no weights of a global encoder"
    if loop.uplink.secure_aggregation is not None:
        return "under privacy.secure_aggregation the server sees no reply of a single client"
    if not isinstance(loop.method.configure_optimizers(), torch.optim.SGD):
        return "clients do not train by torch.optim.SGD, of which one step shows the gradient"
    return None


class _Start:
    """A client's step before it was made.

    method: a copy, in the state from which the step starts. rate: the step's length over the gradient's. decay: weight
    decay by path of a parameter.
    """

    def __init__(self, method: FederatedMethod, visit: Visit, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
        trained = {path: groups[id(leaf)] for path, leaf in trees.leaves(method.trainable()) if id(leaf) in groups}
        rates = {group["lr"] * (1 + group["momentum"] * group["nesterov"]) for group in trained.values()}
        if len(rates) != 1:
            raise ConfigError("inversion/v1: the optimiser has several learning rates: it cannot be inverted")
        self.decay = {path: group["weight_decay"] for path, group in trained.items()}
        self.method, self.phase, self.client = deepcopy(method), visit.phase, visit.client.id
        self.batch, self.rate = batch, rates.pop()

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


class _WatchedExecutor(SequentialExecutor):
    """Visits clients for a step each, and keeps the start of the first one."""

    start: _Start | None = None

    def _local_step(self, visit: Visit, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
        take_step = super()._local_step(visit, optimizer)

        def watched(batch: Any) -> None:
            if self.start is None and visit.phase.where == "clients":
                self.start = _Start(self.method, visit, batch, optimizer)
            take_step(batch)

        return watched


def observe_step(loop: FederatedLoop, data: FederatedDataModule, images: int) -> Callable[[], ObservedStep]:
    """One step on `images` images from the final model, of the client of the last round's cohort with the lowest id.

    The server is given all but the images: the client's own parts and the step's random numbers too. The run's state
    is not changed. Every rank has to call this; the first one, which visits that client, may call what it returns.

    Raises:
        ConfigError: see `step_unavailable`, or no round is done.
        EvalError: by the function: no client has trained, its reply is not of its first step, or views differ in size.
    """
    refuse(loop, "inversion/v1", step_unavailable(loop))
    training, resident = LocalTrainingConfig(1, 1, images), loop.executor.reference
    assert isinstance(resident, SequentialExecutor)
    executor = _WatchedExecutor(loop.fabric, loop.method, data, training, loop.streams, resident)
    replies: list[tuple[Tree, int]] = []  # of the watched client: weights by each, and its steps

    def see(loop: FederatedLoop, result: VisitResult) -> None:
        start, visit = executor.start, result.visit
        if start is not None and (start.phase, start.client) == (visit.phase, visit.client.id):
            weights = loop.method.local_weights(result.message, loop.server)
            if weights is not None and not replies:  # the first alone is read
                replies.append((trees.clone(weights), visit.steps))

    with loop.scratch_copy([Watch(see)]) as scratch:
        scratch.executor, scratch.costs = executor, VisitCosts(executor.images)  # equal costs: the lowest id goes first
        scratch.run_round(loop.round - 1)
    return partial(_observed, executor.start, replies, data, loop.uplink.updates is not None)


def _observed(
    start: _Start | None, replies: Sequence[tuple[Tree, int]], data: FederatedDataModule, clipped: bool
) -> ObservedStep:
    """What the server sees of the step. Raises EvalError: see `observe_step`."""
    if start is None or not replies:
        raise EvalError("no client of the last round's cohort trains and replies with weights")
    after, steps = replies[0]
    if steps != 1 or len({view.shape for view in start.batch.views}) > 1:
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
