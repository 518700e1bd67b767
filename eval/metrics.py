"""The suite's measures as `torchmetrics.Metric`: for `validation_step` of any LightningModule, on any number of ranks.

Each gathers what all ranks have seen before it computes, so that its value does not depend on how many there are.
Lightning resets a logged metric at the end of every epoch; a bank of kNN is therefore shown again each time.
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


class _Gathered(Metric):
    """Lists of rows, of which a rank may have none: torchmetrics can only gather tensors of one width and type."""

    is_differentiable = False
    full_state_update = False

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        mine = {name: rows[0][:0] for name in self._defaults if (rows := getattr(self, name))}
        each: list[dict[str, Tensor]] = [{} for _ in range(distributed.get_world_size(process_group))]
        distributed.all_gather_object(each, {name: empty.cpu() for name, empty in mine.items()}, process_group)
        for name, empty in ((name, empty) for one in each for name, empty in one.items()):
            if not getattr(self, name):
                getattr(self, name).append(empty.to(self.device))
        super()._sync_dist(dist_sync_fn, process_group)

    def gathered(self, name: str, asked: str) -> Tensor:
        """The rows of a list, together.

        Raises:
            EvalError: there are none, on any rank.
        """
        if not len(rows := getattr(self, name)):
            raise EvalError(f"{type(self).__name__} was asked before {asked}: give it rows first")
        return dim_zero_cat(rows)


def _rows(x: Tensor) -> Tensor:
    """Rows as they are gathered.

    Raises:
        EvalError: they are no rows, or not finite.
    """
    if x.ndim != 2 or not x.isfinite().all():
        raise EvalError(f"rows of shape {list(x.shape)} were given: give [B, d] of finite numbers")
    return x.detach().float()


class KNNAccuracy(_Gathered):
    """Percent of queries that the bank's weighted vote gets right; see `eval.knn.knn_predict`.

    Args:
        num_classes: classes there are.
        k: neighbours; all of the bank where it has fewer. temperature: of the vote, above 0.
    """

    higher_is_better = True
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
        x = _rows(x)
        if y.shape != x.shape[:1] or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes):
            known = f"0..{self.num_classes - 1}"
            raise EvalError(f"labels of shape {list(y.shape)} for {len(x)} rows: give one in {known} each")
        (self.bank_x if bank else self.query_x).append(x)
        (self.bank_y if bank else self.query_y).append(y)

    def compute(self) -> Tensor:
        """Percent, over all queries of all ranks.

        Raises:
            EvalError: no rank has seen a bank, or none a query.
        """
        bank, labels = (self.gathered(name, "update(x, y, bank=True)") for name in ("bank_x", "bank_y"))
        x, y = (self.gathered(name, "update(x, y, bank=False)") for name in ("query_x", "query_y"))
        predicted = knn_predict(bank, labels, x, self.num_classes, min(self.k, len(bank)), self.temperature)
        return torch.tensor(accuracy(predicted, y), device=x.device)


class _OfRows(_Gathered):
    """A measure of all rows at once."""

    higher_is_better: bool | None = None
    rows: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        """Takes in rows `[B, d]`."""
        self.rows.append(_rows(x))


class EffectiveRank(_OfRows):
    """Exponential of the entropy of the normalised singular values; see `eval.geometry.effective_rank`."""

    def compute(self) -> Tensor:
        """Dimensions, of all rows of all ranks."""
        rows = self.gathered("rows", "update(x)")
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
        rows = self.gathered("rows", "update(x)")
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
        if a.shape != b.shape:
            raise EvalError(f"views of shapes {list(a.shape)} and {list(b.shape)}: give two of the same images")
        distance = torch.nn.functional.normalize(_rows(a), dim=1) - torch.nn.functional.normalize(_rows(b), dim=1)
        self.total += distance.square().sum(dtype=torch.float64)
        self.count += len(a)

    def compute(self) -> Tensor:
        """Over all images of all ranks; nan before there was one."""
        return self.total / self.count
