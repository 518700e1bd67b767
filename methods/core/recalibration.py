"""BatchNorm's running statistics measured again, at the end of a round, on the new weights: `batch_norm=recalibrate`.

Clients measure the statistics of the new weights on views of their images, and the server pools them: the mean of the
clients' means, and the mean of their second moments minus its square, both weighted by examples. Affine parameters are
not touched.
"""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from methods import trees
from methods.core.freezing import keeps_statistics
from methods.core.parts import Parts
from methods.core.types import Batch, Mail, Mean, Message, Phase, Replies, RoundContext, Visit
from methods.core.validation import MethodError
from methods.trees import Tree

RECALIBRATE = "recalibrate"
"""Name of the phase, and of the policy."""


class Recalibration(Parts):
    """The hooks of this phase, which every method has."""

    # shuffled: statistics of batches of one class miss the variance between classes
    recalibration = Phase(
        RECALIBRATE,
        work="observe",
        views=("augment",),
        uplink={"statistics": Mean("examples")},
        shuffled=True,
        measures=True,
    )

    def send_recalibrate(self, server: Tree, round_context: RoundContext) -> Mail:
        """The exported weights."""
        return Mail(common={"weights": self.recalibrated(server)})

    def receive_recalibrate(self, visit: Visit) -> None:
        """Loads the weights and sets BatchNorm to average over the batches of this visit."""
        self.load(visit.message["weights"])
        self.momenta = [layer.momentum for layer in self._batch_norms()]
        for layer in self._batch_norms():
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over batches instead of a moving one
            layer.train()

    def draw_recalibrate(self, batch: Batch, stream: torch.Generator) -> Tree:
        """No draws: those of the method are for its own views."""
        return {}

    def observe_recalibrate(self, batch: Batch) -> Message:
        """A forward pass, for its effect on the running statistics."""
        if len(batch.views[0]) > 1:  # one image has no variance
            self.objective.embed(batch.views[0])
        return {}

    def reply_recalibrate(self, visit: Visit) -> tuple[Message, Tree]:
        """Means and second moments of every layer that saw a batch."""
        statistics: Tree = {}
        measured = self._batch_norms()
        for part in self.travelling:
            for name, layer in self.part(part).named_modules():
                if layer in measured and layer.num_batches_tracked:
                    mean, variance = layer.running_mean, layer.running_var
                    assert mean is not None
                    assert variance is not None
                    trees.put(statistics, (part, f"{name}.running_mean"), mean)
                    trees.put(statistics, (part, f"{name}.running_var"), variance + mean.square())
        for layer, momentum in zip(self._batch_norms(), self.momenta, strict=True):
            layer.momentum = momentum
        return {"statistics": statistics}, visit.memory

    def update_recalibrate(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The server Tree with the pooled statistics among its weights."""
        pooled: Tree = {}
        for path, value in trees.leaves(replies["statistics"]):
            if path[-1].endswith("running_var"):
                part, name = path
                mean = replies["statistics"][part][name.replace("running_var", "running_mean")]
                value = (value - mean.square()).clamp(min=0)  # rounding may leave a tiny variance below zero
            trees.put(pooled, path, value)
        method: Any = self
        adopted: Tree = method.adopt(server, {"global": trees.overlay(self.recalibrated(server), pooled)})
        return adopted

    def check_recalibration(self, server: Tree) -> None:
        """Raises MethodError where there is not exactly one encoder, or nothing to measure."""
        self.recalibrated(server)
        if not self.statistics():
            raise MethodError("federation.batch_norm=recalibrate: no network here has BatchNorm: leave it out")

    def recalibrated(self, server: Tree) -> Tree:
        """The weights to recalibrate; MethodError where there is not exactly one encoder."""
        method: Any = self
        exported = method.export(server, {})
        if set(exported) != {"global"}:
            raise MethodError(
                f"federation.batch_norm=recalibrate needs a method with one global encoder; "
                f"{type(self).__name__} exports {', '.join(exported) or 'none'}: choose average or local"
            )
        weights: Tree = exported["global"]
        return weights

    def _batch_norms(self) -> list[Any]:
        return [layer for layer in self.modules() if isinstance(layer, _BatchNorm) and not keeps_statistics(layer)]


def has_batch_norm(module: torch.nn.Module) -> bool:
    """Whether any layer has running statistics."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())
