"""VICReg. Bardes, Ponce, LeCun: Variance-Invariance-Covariance Regularization for Self-Supervised Learning (ICLR 2022).

| symbol | name | equation |
|---|---|---|
| v, gamma, epsilon | variance term, `gamma`, `epsilon` | eqs. 1-2 |
| c | covariance term | eqs. 3-4 |
| s | invariance term | eq. 5 |
| lambda, mu, nu | `invariance_weight`, `variance_weight`, `covariance_weight`: 25, 25, 1 | eq. 6 |
| l | `methods.maths.vicreg` | eq. 6 |

Decisions
- `variant: code | paper`. The authors' code divides the invariance by the number of features and takes the mean of the
  two views' variance terms; eqs. 5 and 6 have neither. The weights 25, 25, 1 are the code's too, it produced the
  published numbers, and it is the default. At 128 features the paper's invariance is 128 times as large, and needs a
  smaller learning rate.
- The default of gamma and epsilon is the paper's and the code's: 1 and 1e-4.
- The paper's expander has three layers of 8,192 features. Here the scenario sets the projector.
- The views pass one after the other in the authors' code: `training.views: separate`.
- Both views pass one encoder; two encoders of different kinds, which the paper also has, are not included.
"""

from typing import Any

from torch import Tensor

from methods.base import Batch, Outputs, Projected, check_number, choose
from methods.maths import vicreg
from methods.networks import Encoder


class VICReg(Projected):
    """Equal embeddings of an image's two views, features that vary over the batch, and no covariance between them.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        invariance_weight, variance_weight, covariance_weight: weights of the three terms.
        gamma: deviation that every feature should have. epsilon: added to the variances below their root.
        variant: "code" or "paper".
    """

    contrastive = True
    needs_two = True

    def __init__(
        self,
        encoder: Encoder,
        *,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        gamma: float = 1.0,
        epsilon: float = 1e-4,
        variant: str = "code",
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.invariance_weight = check_number("objective.invariance_weight", invariance_weight, at_least=0)
        self.variance_weight = check_number("objective.variance_weight", variance_weight, at_least=0)
        self.covariance_weight = check_number("objective.covariance_weight", covariance_weight, at_least=0)
        self.gamma = check_number("objective.gamma", gamma, above=0)
        self.epsilon = check_number("objective.epsilon", epsilon, above=0)
        self.variant = choose("objective.variant", variant, "code", "paper")

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The weighted sum of the three terms."""
        z_a, z_b = out.embeddings
        weights = (self.invariance_weight, self.variance_weight, self.covariance_weight)
        return vicreg(z_a, z_b, *weights, gamma=self.gamma, epsilon=self.epsilon, variant=self.variant)
