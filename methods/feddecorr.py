"""FedDecorr. Shi, Liang, Zhang, Tan, Bai: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning (ICLR 2023).

| symbol | name | equation |
|---|---|---|
| L_FedDecorr | `methods.maths.decorrelation`, `variant` | section 5 |
| beta | `weight`, 0.1 | section 5 |

Decisions
- `variant: code | paper`. The released code has the mean squared off-diagonal entry of X^T X, divided by the batch size
  B once; the paper the squared Frobenius norm of the correlation matrix over d^2, some B times smaller. beta = 0.1 is
  the code's.
- `on: h | z`. The paper regularises the input of the classifier, so representations h are the default, averaged over
  the views; other papers' codes regularise embeddings z.
- In the code's form the value grows with the batch, so beta depends on `training.batch_size`.
"""

from typing import Any

import torch
from torch import Tensor

from methods.base import AddOn, Batch, MethodParts, Objective, Outputs, check_number, choose
from methods.fedavg import FedAvg
from methods.maths import decorrelation


class Decorrelation(AddOn):
    """Penalty on correlations between the features of a batch.

    Args:
        weight: beta; 0: no penalty.
        on: "h", representations, or "z", embeddings.
        variant: "code" or "paper".
    """

    name = "feddecorr"

    def __init__(self, *, weight: float = 0.1, on: str = "h", variant: str = "code") -> None:
        super().__init__()
        self.weight = check_number("method.weight", weight, at_least=0)
        self.on = choose("method.on", on, "h", "z")
        self.variant = choose("method.variant", variant, "code", "paper")

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The mean over the views, times beta."""
        views = out.representations if self.on == "h" else out.embeddings
        return self.weight * torch.stack([decorrelation(rows, self.variant) for rows in views]).mean()


class FedDecorr(FedAvg):
    """FedAvg with decorrelated representations.

    Args:
        weight, on, variant: see `Decorrelation`.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        weight: float = 0.1,
        on: str = "h",
        variant: str = "code",
        addons: tuple[AddOn, ...] = (),
        **kwargs: Any,
    ) -> None:
        term = Decorrelation(weight=weight, on=on, variant=variant)
        super().__init__(objective, addons=(*addons, term), **kwargs)
