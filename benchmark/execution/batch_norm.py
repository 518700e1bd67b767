"""Policies for BatchNorm's running statistics: averaged with the weights, local to the clients, or recalibrated.

The policy governs running statistics only, never affine parameters. "average" and "local" decide whether the entry
"weights" holds them; "recalibrate" is this extra phase at the end of a round, run with the method's own networks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from methods import trees
from methods.base import Batch, FederatedMethod, Mail, Mean, Message, MethodError, Phase, Replies, Tree, Turn, Visit


class Recalibration:
    """Clients measure the statistics of the new weights on views of their images; the server pools them.

    The pooled mean is the mean of the clients' means; the pooled variance is the mean of their second moments minus its
    square, both weighted by examples.

    Args:
        method: of the networks; it exports one encoder.
    """

    # shuffled: statistics of batches of one class miss the variance between classes
    phase = Phase(
        "recalibrate", work="observe", views=("augment",), uplink={"statistics": Mean("examples")}, shuffled=True
    )

    def __init__(self, method: FederatedMethod) -> None:
        self.method = method
        self.momenta: list[float | None] = []

    def hook(self, name: str, phase: Phase) -> Callable[..., Any]:
        """The hook of that name defined here, else the method's default."""
        return getattr(self, name, None) or getattr(self.method, name)

    def send(self, server: Tree, turn: Turn) -> Mail:
        """The exported weights."""
        return Mail(common={"weights": self.exported(server)})

    def start_visit(self, visit: Visit, stored: Tree) -> None:
        """Loads the weights and sets BatchNorm to average over the batches of this visit."""
        self.method.load(visit.message["weights"])
        self.momenta = [layer.momentum for layer in self._layers()]
        for layer in self._layers():
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over batches instead of a moving one
            layer.train()

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """No draws: those of the method are for its own views."""
        return {}

    def observe(self, batch: Batch) -> Message:
        """A forward pass, for its effect on the running statistics."""
        if len(batch.views[0]) > 1:  # one image has no variance
            self.method.objective.embed(batch.views[0])
        return {}

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """Means and second moments of every layer that saw a batch."""
        statistics: Tree = {}
        for part in self.method.travelling:
            for name, layer in self.method.part(part).named_modules():
                if isinstance(layer, _BatchNorm) and layer.num_batches_tracked:
                    mean, variance = layer.running_mean, layer.running_var
                    assert mean is not None
                    assert variance is not None
                    trees.put(statistics, (part, f"{name}.running_mean"), mean)
                    trees.put(statistics, (part, f"{name}.running_var"), variance + mean.square())
        for layer, momentum in zip(self._layers(), self.momenta, strict=True):
            layer.momentum = momentum
        return {"statistics": statistics}, visit.memory

    def update(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The server Tree with the pooled statistics among its weights."""
        pooled: Tree = {}
        for path, value in trees.leaves(replies["statistics"]):
            if path[-1].endswith("running_var"):
                part, name = path
                mean = replies["statistics"][part][name.replace("running_var", "running_mean")]
                value = (value - mean.square()).clamp(min=0)  # rounding may leave a tiny variance below zero
            trees.put(pooled, path, value)
        return self.method.adopt(server, {"global": trees.overlay(self.exported(server), pooled)})

    def check(self, server: Tree) -> None:
        """Raises MethodError where there is not exactly one encoder, or nothing to measure."""
        self.exported(server)
        if not self.method.statistics():
            raise MethodError("federation.batch_norm=recalibrate: no network here has BatchNorm: leave it out")

    def exported(self, server: Tree) -> Tree:
        """The weights to recalibrate; MethodError where there is not exactly one encoder."""
        exported = self.method.export(server, {})
        if set(exported) != {"global"}:
            raise MethodError(
                f"federation.batch_norm=recalibrate needs a method with one global encoder; "
                f"{type(self.method).__name__} exports {', '.join(exported) or 'none'}: choose average or local"
            )
        return exported["global"]

    def _layers(self) -> list[Any]:
        return [layer for layer in self.method.modules() if isinstance(layer, _BatchNorm)]


def has_batch_norm(module: torch.nn.Module) -> bool:
    """Whether any layer has running statistics."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())
