"""FedProx. Li et al.: Federated Optimization in Heterogeneous Networks (MLSys 2020).

| symbol | name | equation |
|---|---|---|
| mu | `mu` | eq. 2 |
| mu/2 ||w - w^t||^2 | `Proximal` | eq. 2 |

Decisions
- The squared norm has the factor 1/2 and covers the trainable parameters that travel; targets and BatchNorm statistics
  are excluded. FLESD's code has no factor 1/2, so its mu is half of ours.
"""

from typing import Any

import torch
from torch import Tensor

from methods import trees
from methods.base import AddOn, Batch, MethodError, MethodParts, Objective, Outputs, Tree, Visit, check_number
from methods.fedavg import FedAvg


class SquaredDistance(torch.autograd.Function):
    """sum_i ||w_i - a_i||^2 and its gradient 2 (w_i - a_i), each a few kernels for all tensors.

    Called as `SquaredDistance.apply(anchors, *weights)`; anchors have no gradient.
    """

    @staticmethod
    def forward(ctx: Any, anchors: list[Tensor], *weights: Tensor) -> Tensor:
        """The sum of squares, 0-d."""
        differences = torch._foreach_sub(weights, anchors)
        ctx.save_for_backward(*differences)
        return torch.stack(torch._foreach_norm(differences)).square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the weights; `gradient`: that of the sum."""
        return None, *torch._foreach_mul(ctx.saved_tensors, 2 * gradient)


class Proximal(AddOn):
    """Proximal term: mu/2 times the squared distance of the trainable weights to the received ones.

    Args:
        mu: strength; 0 is FedAvg.
    """

    name = "proximal"

    def __init__(self, *, mu: float = 0.01) -> None:
        super().__init__()
        self.mu = check_number("method.mu", mu, at_least=0)
        self.anchor: Tree = {}

    def receive(self, visit: Visit, method: MethodParts) -> None:
        """Sets the anchor: a copy of the trainable weights at the start of the visit."""
        self.anchor = trees.clone(method.trainable())
        if not self.anchor:
            raise MethodError(f"the proximal term needs weights that travel: {type(method).__name__} has none")

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The penalty, a scalar."""
        weights = dict(trees.leaves(method.trainable()))
        anchors = dict(trees.leaves(self.anchor))
        return self.mu / 2 * SquaredDistance.apply([anchors[path] for path in weights], *weights.values())


class FedProx(FedAvg):
    """FedAvg with the proximal term.

    Args:
        mu: strength; 0 is FedAvg.
    """

    def __init__(
        self, objective: Objective, *, mu: float = 0.01, addons: tuple[AddOn, ...] = (), **kwargs: Any
    ) -> None:
        super().__init__(objective, addons=(*addons, Proximal(mu=mu)), **kwargs)
