"""The suite's measures as `torchmetrics.Metric`: for `validation_step` of any LightningModule, on any number of ranks.

Each gathers what all ranks have seen before it computes, so that its value does not depend on how many there are.
Lightning resets a logged metric at the end of every epoch; a bank of kNN is therefore shown again each time.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from eval.features import EvalError, accuracy
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn_predict


class KNNAccuracy(Metric):
    """Percent of queries that the bank's weighted vote gets right; see `eval.knn.knn_predict`.

    Args:
        num_classes: classes there are.
        k: neighbours; all of the bank where it has fewer. temperature: of the vote, above 0.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    bank_x: list[Tensor]
    bank_y: list[Tensor]
    query_x: list[Tensor]
    query_y: list[Tensor]

    def __init__(self, num_classes: int, k: int = 200, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.k, self.temperature = num_classes, k, temperature
        for state in ("bank_x", "bank_y", "query_x", "query_y"):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(self, x: Tensor, y: Tensor, bank: bool = False) -> None:
        """Takes in rows `[B, d]` and labels `[B]` int64: of the bank, or queries."""
        (self.bank_x if bank else self.query_x).append(x.detach().float())
        (self.bank_y if bank else self.query_y).append(y)

    def compute(self) -> Tensor:
        """Percent, over all queries of all ranks.

        Raises:
            EvalError: no rank has seen a bank, or none a query.
        """
        for rows, what in ((self.bank_x, "bank=True"), (self.query_x, "bank=False")):
            if not len(rows):
                raise EvalError(f"kNN accuracy was asked before update(x, y, {what}): give it rows of both kinds")
        bank, labels = dim_zero_cat(self.bank_x), dim_zero_cat(self.bank_y)
        x, y = dim_zero_cat(self.query_x), dim_zero_cat(self.query_y)
        predicted = knn_predict(bank, labels, x, self.num_classes, min(self.k, len(bank)), self.temperature)
        return torch.tensor(accuracy(predicted, y), device=x.device)


class _OfRows(Metric):
    """A measure of all rows at once."""

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False
    rows: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        """Takes in rows `[B, d]`."""
        self.rows.append(x.detach().float())


class EffectiveRank(_OfRows):
    """Exponential of the entropy of the normalised singular values; see `eval.geometry.effective_rank`."""

    def compute(self) -> Tensor:
        """Dimensions, of all rows of all ranks."""
        rows = dim_zero_cat(self.rows)
        return torch.tensor(effective_rank(rows), device=rows.device)


class Uniformity(_OfRows):
    """Log of the mean Gaussian potential of distinct L2-normalised rows; see `eval.geometry.uniformity_parts`.

    Args:
        t: of the potential `exp(-t ||u - v||^2)`.
    """

    higher_is_better = False

    def __init__(self, t: float = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.t = t

    def compute(self) -> Tensor:
        """Nats in [-4t, 0], of all rows of all ranks; lower is more uniform."""
        rows = dim_zero_cat(self.rows)
        nobody = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return torch.tensor(uniformity_parts(rows, nobody, self.t)["total"], device=rows.device)


class Alignment(Metric):
    """Mean squared distance of the L2-normalised rows of two views of the same images, in [0, 4]."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, a: Tensor, b: Tensor) -> None:
        """Takes in two views `[B, d]`, row by row of the same images."""
        distance = torch.nn.functional.normalize(a, dim=1) - torch.nn.functional.normalize(b, dim=1)
        self.total += distance.detach().square().sum(dtype=torch.float64)
        self.count += len(a)

    def compute(self) -> Tensor:
        """Over all images of all ranks; nan before there was one."""
        return self.total / self.count
