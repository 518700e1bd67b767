"""Barlow Twins. Zbontar, Jing, Misra, LeCun, Deny: Self-Supervised Learning via Redundancy Reduction (ICML 2021).

| symbol | name | equation |
|---|---|---|
| C | cross-correlation of the views' features over the batch | eq. 2 |
| lambda | `redundancy_weight`, 5e-3 | eq. 1 |
| L | `methods.maths.barlow_twins` | eq. 1 |

Decisions
- The default of lambda is the paper's 0.005; the authors' command has 0.0051.
- Features are standardised by their biased variance plus 1e-5, as by the BatchNorm of the authors' code; eq. 2 has no
  constant. With it a feature that is constant in the batch has correlation 0 instead of 0 / 0.
- The loss is a sum over features, so its gradient grows with the embedding's width. The authors' optimiser (LARS) does
  not see that for most weights; SGD does, and needs a smaller rate for a wide projector. Their first release scaled the
  loss by 0.024 at 8,192 features. Here the learning rate does it.
- The paper's projector has three layers of 8,192 features, and its accuracy falls with narrower ones. Here the scenario
  sets the projector.
- The views pass one after the other in the authors' code: `training.views: separate`.
"""

from typing import Any

from torch import Tensor

from methods.base import Batch, Outputs, Projected, check_number
from methods.maths import barlow_twins
from methods.networks import Encoder


class BarlowTwins(Projected):
    """Equal features of an image's two views, and no correlation between different features.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        redundancy_weight: weight of the correlations between different features.
    """

    contrastive = True
    needs_two = True

    def __init__(self, encoder: Encoder, *, redundancy_weight: float = 5e-3, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.redundancy_weight = check_number("objective.redundancy_weight", redundancy_weight, at_least=0)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The distance of the views' cross-correlation from the identity."""
        z_a, z_b = out.embeddings
        return barlow_twins(z_a, z_b, self.redundancy_weight)
