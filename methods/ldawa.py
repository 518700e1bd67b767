"""L-DAWA. Rehman, Gao, de Gusmao, Alibeigi, Shen, Lane: Layer-wise Divergence Aware Weight Aggregation in Federated
Self-Supervised Visual Representation Learning (ICCV 2023).

| symbol | name | equation |
|---|---|---|
| delta_k^l = cos(w_k^l, w_g^l) | `layer_weights` | angular divergence |
| w_g^l <- 1/|S| sum_k delta_k^l w_k^l | `Mean(by, over="clients")` | aggregation |

Decisions
- A layer is a tensor, as in the released code. The cosine is to the global model at the start of the round, at most 1.
  The sum is divided by the number of clients, not by the sum of cosines, so weights shrink where clients disagree.
- Running statistics take the plain mean. The code also scales them, as one-dimensional tensors, although its comment
  says that they are kept; a variance times a cosine is not a variance. `statistics: scaled` is the code.
- Tensors of zeros and scalars have no angle and take the plain mean, as in the code.
- The first `start` rounds are FedAvg's, weighted by examples. The code switches when more than two earlier rounds are
  saved, which is in the fourth round: 3.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from methods import trees
from methods.base import Activity, Mean, Message, Objective, Tree, Visit, check_number, choose
from methods.fedavg import FedAvg


def layer_weights(weights: Tree, reference: Tree, trained: Tree) -> Tree:
    """Cosine of each tensor with the reference's, 0-d, at most 1; a Tree with the paths of `weights`.

    It is 1 for tensors absent from `trained` (running statistics), for scalars, and where either tensor is all zeros.
    """
    ones = trees.map(lambda layer: torch.ones((), device=layer.device), weights)
    return trees.overlay(ones, trees.map(_cosine, trees.select(weights, trained), reference))


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two tensors of one shape, clamped to at most 1; 1 for scalars and where one of them is all zeros."""
    if a.dim() == 0:
        return torch.ones((), device=a.device)
    a, b = a.detach().double().flatten(), b.detach().double().flatten()
    length = a.norm() * b.norm()
    return torch.where(length > 0, a @ b / length.clamp(min=1e-300), torch.ones_like(length)).clamp(max=1.0)


class LDAWA(FedAvg):
    """Mean of the clients' layers, each weighted by its cosine with the global layer.

    Args:
        start: number of first rounds with FedAvg's mean.
        statistics: "mean", or "scaled": running statistics are weighted by their cosines too.
    """

    activity: ClassVar = {
        "cosines_apart": Activity("distance of a layer's weights from 1, mean over layers and clients")
    }

    whole_layers = "weighs each tensor by its cosine, and an adapter's factors have none that is its layer's"

    def __init__(self, objective: Objective, *, start: int = 3, statistics: str = "mean", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.scales_statistics = choose("method.statistics", statistics, "mean", "scaled") == "scaled"
        self.start = check_number("method.start", start, at_least=0)
        self.cosine_mean = Mean(self.by_angle, over="clients")

    def averaging(self, round: int) -> Mean:
        """FedAvg's mean in the first rounds, then the mean by cosines."""
        return self.cosine_mean if round >= self.start else super().averaging(round)

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The weights; notes how far their cosines are from the equal weights of a plain mean."""
        message, memory = super().reply(visit)
        trained = self.trainable()
        cosines = layer_weights(trained, visit.message["weights"], trained if visit.round >= self.start else {})
        visit.notes["cosines_apart"] = torch.stack([(1 - cosine).abs() for _, cosine in trees.leaves(cosines)]).mean()
        return message, memory

    def by_angle(self, server: Tree, message: Message) -> Tree:
        """Weights of one client's tensors in the mean."""
        weights = message["weights"]
        return layer_weights(weights, server["weights"], weights if self.scales_statistics else self.trainable())
