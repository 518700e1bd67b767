"""The suite's metrics as `torchmetrics.Metric`: for `validation_step` of any LightningModule, on any number of ranks.

Each is of the rows of all ranks, so that its value does not depend on their number.
Lightning resets a logged metric at the end of every epoch; the bank of kNN therefore has to be given again each time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

from eval.features import EvalError, accuracy
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn_predict


class _RowMetric(Metric):
    """Metric over lists of rows, gathered from all ranks; torchmetrics alone cannot gather from a rank without rows."""

    is_differentiable = False
    full_state_update = False
    lists: tuple[str, ...] = ("rows",)
    rows: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.lists:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        """Add rows `[B, d]`."""
        self.rows.append(_checked(x))

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        templates = {name: rows[0][:0].cpu() for name in self._defaults if (rows := getattr(self, name))}
        by_rank: list[dict[str, Tensor]] = [{} for _ in range(distributed.get_world_size(process_group))]
        distributed.all_gather_object(by_rank, templates, process_group)
        for name, template in (item for templates in by_rank for item in templates.items()):
            if not getattr(self, name):
                getattr(self, name).append(template.to(self.device))
        super()._sync_dist(dist_sync_fn, process_group)

    def concatenated(self, name: str = "rows", update: str = "update(x)") -> Tensor:
        """All rows of a list, in one tensor; update: the call that adds rows to it.

        Raises EvalError: there are none on any rank.
        """
        if not len(rows := getattr(self, name)):
            raise EvalError(f"{type(self).__name__} was computed before {update}: give it rows first")
        return dim_zero_cat(rows)


def _checked(x: Tensor) -> Tensor:
    """Rows in the form that ranks exchange: float32, detached.

    Raises EvalError: the shape is not `[B, d]`, or a value is not finite.
    """
    if x.ndim != 2 or not x.isfinite().all():
        raise EvalError(f"rows of shape {list(x.shape)} were given: give [B, d] of finite numbers")
    return x.detach().float()


class KNNAccuracy(_RowMetric):
    """Percent of queries whose weighted kNN vote is their label; see `eval.knn.knn_predict`.

    Args:
        num_classes: number of classes.
        k: neighbours; at most the whole bank. temperature: of the vote, above 0.
    """

    higher_is_better = True
    lists = ("bank_x", "bank_y", "query_x", "query_y")
    bank_x: list[Tensor]
    bank_y: list[Tensor]
    query_x: list[Tensor]
    query_y: list[Tensor]

    def __init__(self, num_classes: int, k: int = 200, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.k, self.temperature = num_classes, k, temperature

    def update(self, x: Tensor, y: Tensor, bank: bool = False) -> None:  # type: ignore[override] # labelled rows
        """Add rows `[B, d]` and labels `[B]`, whole numbers, to the queries, or with `bank` to the bank.

        Raises EvalError: rows are not finite, or labels are not one in range for each.
        """
        x = _checked(x)
        whole = not y.is_floating_point()
        if y.shape != x.shape[:1] or not whole or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes):
            allowed = f"0..{self.num_classes - 1}"
            raise EvalError(f"labels {y.dtype} of shape {list(y.shape)} for {len(x)} rows: give one in {allowed} each")
        (self.bank_x if bank else self.query_x).append(x)
        (self.bank_y if bank else self.query_y).append(y)

    def compute(self) -> Tensor:
        """Percent, over all queries of all ranks.

        Raises EvalError: no rank has a bank row, or none has a query.
        """
        bank, labels = (self.concatenated(name, "update(x, y, bank=True)") for name in ("bank_x", "bank_y"))
        x, y = (self.concatenated(name, "update(x, y, bank=False)") for name in ("query_x", "query_y"))
        predicted = knn_predict(bank, labels, x, self.num_classes, min(self.k, len(bank)), self.temperature)
        return torch.tensor(accuracy(predicted, y), device=x.device)


class EffectiveRank(_RowMetric):
    """Exponential of the entropy of the normalised singular values; see `eval.geometry.effective_rank`."""

    higher_is_better: bool | None = None

    def compute(self) -> Tensor:
        """Dimensions, of all rows of all ranks."""
        rows = self.concatenated()
        return torch.tensor(effective_rank(rows), device=rows.device)


class Uniformity(_RowMetric):
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
        rows = self.concatenated()
        one_client = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return torch.tensor(uniformity_parts(rows, one_client, self.t)["total"], device=rows.device)


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
        """Add two views `[B, d]`, row by row of the same images. EvalError: of other shapes, or not finite."""
        if a.shape != b.shape:
            raise EvalError(f"views of shapes {list(a.shape)} and {list(b.shape)}: give two of the same images")
        distance = torch.nn.functional.normalize(_checked(a), dim=1) - torch.nn.functional.normalize(_checked(b), dim=1)
        self.total += distance.square().sum(dtype=torch.float64)
        self.count += len(a)

    def compute(self) -> Tensor:
        """Mean over all images of all ranks; nan before the first image."""
        return self.total / self.count
