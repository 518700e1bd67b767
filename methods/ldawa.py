"""L-DAWA. Rehman, Gao, de Gusmao, Alibeigi, Shen, Lane: Layer-wise Divergence Aware Weight Aggregation in Federated
Self-Supervised Visual Representation Learning (ICCV 2023).

| symbol | name | equation |
|---|---|---|
| delta_k^l = cos(w_k^l, w_g^l) | `layer_weights` | angular divergence |
| w_g^l <- 1/|S| sum_k delta_k^l w_k^l | `Mean(by, over="clients")` | aggregation |

Decisions
- A layer is a tensor, as in the released code; the cosine is to the global model the round began with, at most 1, and
  the sum is divided by the number of clients, not by the cosines': weights shrink where clients disagree.
- Running statistics are averaged plainly. The code scales them too, as one-dimensional tensors, though a comment says
  they are kept: a variance scaled by a cosine is none.
- A tensor of zeros and a scalar have no angle and are averaged plainly, as in the code.
- The first `start` rounds are FedAvg's, weighted by examples. The code turns once more than two earlier rounds are
  saved, which is in the fourth: 3.
"""

from typing import Any

import torch
from torch import Tensor

from methods import trees
from methods.base import Mean, Message, Objective, Tree, check_number
from methods.fedavg import FedAvg


def layer_weights(weights: Tree, reference: Tree, trained: Tree) -> Tree:
    """The cosine of each tensor to the reference's, 0-d, at most 1; a Tree like `weights`.

    It is 1 for tensors that `trained` lacks (running statistics), for scalars, and where either side is all zeros.
    """
    learnt, known = dict(trees.leaves(trained)), dict(trees.leaves(reference))
    result: Tree = {}
    for path, layer in trees.leaves(weights):
        angled = path in learnt and layer.dim() > 0
        trees.put(result, path, _cosine(layer, known[path]) if angled else torch.ones((), device=layer.device))
    return result


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """Of two tensors of one shape, at most 1 whatever the rounding; 1 where one of them is all zeros."""
    one, other = one.detach().double().flatten(), other.detach().double().flatten()
    length = one.norm() * other.norm()
    cosine = torch.where(length > 0, one @ other / length.clamp(min=1e-300), torch.ones_like(length))
    return cosine.clamp(max=1.0)


class LDAWA(FedAvg):
    """Each layer of a client counts by how little it has turned away from the global one.

    Args:
        start: rounds of plain FedAvg before it.
    """

    def __init__(self, objective: Objective, *, start: int = 3, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.start = check_number("method.start", start, at_least=0)
        self.turned = Mean(self.by_angle, over="clients")

    def averaging(self, round: int) -> Mean:
        """FedAvg's mean in the first rounds, then the one by angles."""
        return self.turned if round >= self.start else super().averaging(round)

    def by_angle(self, server: Tree, message: Message) -> Tree:
        """The weights of one client's tensors."""
        return layer_weights(message["weights"], server["weights"], self.trainable())
