"""LeJEPA. Balestriero, LeCun: LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics (2025).

| symbol | name | equation |
|---|---|---|
| lambda | `weight` | LeJEPA's objective |
| SIGReg | `methods.maths.sketched_gaussianity`: the mean of Epps and Pulley's statistic over `directions` | SIGReg |
| prediction | mean squared distance of each view's embedding from the views' mean | the authors' code |

Decisions
- The statistic is that of the authors' minimal code: 17 knots on [0, 3], the trapezoidal rule, doubled for the negative
  half, a Gaussian window, times the number of images.
- lambda is the paper's 0.05; the minimal code has 0.02. Two views; the paper's eight further local ones are left out.
- Directions are drawn anew for each step, outside of it, from the client's stream.
"""

from typing import Any

import torch
from torch import Tensor

from methods.base import Batch, Outputs, Projected, Tree, check_number
from methods.maths import sketched_gaussianity, upcast
from methods.networks import Encoder


class LeJEPA(Projected):
    """Equal embeddings of an image's views, which are normal with mean 0 and covariance 1 over the batch.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        weight: lambda, of the Gaussian term; 1 - lambda is that of the prediction, in [0, 1].
        directions: random directions in which embeddings are compared with a normal distribution.
    """

    contrastive = True
    needs_two = True

    def __init__(self, encoder: Encoder, *, weight: float = 0.05, directions: int = 256, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.weight = check_number("objective.weight", weight, at_least=0, at_most=1)
        self.directions = int(check_number("objective.directions", directions, at_least=1))

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Unit vectors `[width, directions]`."""
        drawn = torch.randn(self.width, self.directions, generator=stream)
        return {"directions": (drawn / drawn.norm(dim=0)).to(batch.index.device, non_blocking=True)}

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The weighted sum of the two terms, both means over views."""
        assert batch.draws is not None
        z, directions = torch.stack([upcast(each) for each in out.embeddings]), batch.draws["objective"]["directions"]
        prediction = (z - z.mean(dim=0)).square().mean()
        gaussian = torch.stack([sketched_gaussianity(each, directions) for each in z]).mean()
        return self.weight * gaussian + (1 - self.weight) * prediction
