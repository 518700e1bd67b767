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

from methods.core.validation import check_number


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
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                self._update(weights, group)
        return loss

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """The step of a group's weights; lists of tensors take a kernel each on a GPU."""
        gradients: Any = [weight.grad for weight in weights]
        steps = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        if layers := [index for index, weight in enumerate(weights) if weight.ndim > 1]:
            sizes = torch.stack(torch._foreach_norm([weights[index] for index in layers]))
            changes = torch.stack(torch._foreach_norm([steps[index] for index in layers]))
            ratios = torch.where((sizes > 0) & (changes > 0), group["trust"] * sizes / changes, 1.0)
            scaled = torch._foreach_mul([steps[index] for index in layers], list(ratios.unbind()))
            for index, step in zip(layers, scaled, strict=True):
                steps[index] = step
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        moving = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_mul_(moving, group["momentum"])
        torch._foreach_add_(moving, steps)
        # the rate may be a tensor, where steps are recorded
        torch._foreach_sub_(weights, torch._foreach_mul(moving, group["lr"]))


def decay_matrices_only(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Groups for an optimiser with weight decay: parameters of two or more dimensions, and without decay the others."""
    every = list(parameters)
    return [
        {"params": [parameter for parameter in every if parameter.ndim > 1]},
        {"params": [parameter for parameter in every if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
