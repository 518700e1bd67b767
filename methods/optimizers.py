"""Optimisers of self-supervised learning that torch lacks, and parameter groups of theirs and torch's.

LARS. You, Gitman, Ginsburg: Large Batch Training of Convolutional Networks (2017).

| symbol | name | equation |
|---|---|---|
| gamma | `lr` | Algorithm 1 |
| m | `momentum` | Algorithm 1 |
| beta | `weight_decay` | Algorithm 1 |
| eta | `trust` | eq. 6 |

Decisions
- The norm below the weights' is that of the gradient with its weight decay, norm(g + beta w), as in the codes of SimCLR
  and BYOL; the paper adds the two norms.
- The learning rate is outside momentum, as in torch.optim.SGD. Under one rate a visit it is the paper's update.
- Parameters of fewer than two dimensions (of normalisation layers, and biases) take a plain step, as in both codes.
  These leave them out of weight decay as well: `optimizer.decay_norms_and_biases=false`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from methods.validation import check_number


class LARS(torch.optim.Optimizer):
    """SGD with momentum in which the step of each layer is in proportion to the norm of its weights.

    Args:
        params: parameters, or groups of them.
        lr: learning rate. momentum: of the scaled gradients. weight_decay: L2 penalty.
        trust: norm of a layer's step over that of its weights, at rate 1 and without momentum.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        check_number("optimizer.lr", lr, at_least=0)
        check_number("optimizer.momentum", momentum, at_least=0, below=1)
        check_number("optimizer.weight_decay", weight_decay, at_least=0)
        check_number("optimizer.trust", trust, above=0)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what `closure` does, the loss, if there is one. No value of a tensor is waited for."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)
        return loss

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        step = weight.grad.add(weight, alpha=group["weight_decay"])  # type: ignore[union-attr]
        if weight.ndim > 1:
            size, change = weight.norm(), step.norm()
            ratio = group["trust"] * size / change
            step = step * torch.where((size > 0) & (change > 0), ratio, 1.0)
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        moving = state["momentum_buffer"].mul_(group["momentum"]).add_(step)
        weight.sub_(moving * group["lr"])  # the rate may be a tensor, where steps are recorded


def decay_matrices_only(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Groups for an optimiser with weight decay: parameters of two or more dimensions, and without decay the others."""
    every = list(parameters)
    return [
        {"params": [parameter for parameter in every if parameter.ndim > 1]},
        {"params": [parameter for parameter in every if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
