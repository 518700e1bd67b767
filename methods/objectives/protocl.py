"""ProtoCL. Li, Zhou, Xiong, Hoi: Prototypical Contrastive Learning of Unsupervised Representations (ICLR 2021).

| symbol | name | equation |
|---|---|---|
| v', f_theta' | the key networks' unit rows of the images as they are | section 3.2 |
| c^m, k_m | `prototypes`, `clusters` | E-step, `methods.maths.k_means` |
| phi | `concentration`, Z log(Z + alpha) below the summed distances, alpha = 10 | eq. 12 |
| L_ProtoNCE | `methods.objectives.moco` + the mean of `methods.maths.prototype_nce` over granularities | eq. 11 |

Decisions
- The E-step comes before each local epoch, over the client's own images, as in the authors' code: k-means for each
  number of `clusters`, 20 iterations from one start (theirs: five starts of faiss). A client has at most half as many
  clusters as images.
- All other prototypes are negatives. The code samples some, and counts the positives of a batch's other images among
  them, which makes a prototype its own negative where two images share it.
- The first `warmup` rounds are MoCo's, as clusters of an untrained network mean little; the paper has 20 epochs of 200.
- A relative width is at least `NARROWEST`; the code has no bound, and copies of an image make a cluster of none.
- Cluster numbers, queue and warm-up of FedX's FedProtoCL are not published; these defaults are ours.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from methods.base import Batch, MethodError, Outputs, Visit
from methods.maths import k_means, prototype_nce
from methods.networks import Encoder
from methods.objectives.moco import MoCo

ALPHA = 10
"""Keeps small clusters from being called dense (eq. 12)."""

NARROWEST = 1e-2
"""Of relative widths: many copies of one image make a cluster of no width, and a loss without bound."""


class ProtoCL(MoCo):
    """MoCo, and each query is drawn to the prototype of its image's cluster.

    Args:
        encoder, queue_size, momentum, temperature, symmetric, keep_queue, projector: see `MoCo`.
        clusters: numbers of prototypes, one a granularity.
        warmup: rounds without prototypes.
    """

    prototypes: Tensor
    concentration: Tensor

    def __init__(
        self, encoder: Encoder, *, clusters: Sequence[int] = (50, 100, 200), warmup: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(encoder, **kwargs)
        if not clusters or min(clusters) < 1:
            raise MethodError(f"objective.clusters={list(clusters)}: give whole numbers of at least 1")
        self.clusters, self.warmup, self.active = tuple(clusters), warmup, False
        self.register_buffer("prototypes", torch.zeros(sum(clusters), self.width))
        self.register_buffer("concentration", torch.full((sum(clusters),), math.inf))
        self.assigned = torch.zeros(len(clusters), 0, dtype=torch.long)

    def receive(self, visit: Visit) -> None:
        """Room for the cluster of each image of the client, at each granularity."""
        self.active = visit.round >= self.warmup
        room = 1 << (visit.client.examples - 1).bit_length()  # few sizes, as a recorded step is made for one
        self.assigned = torch.zeros(len(self.clusters), room, dtype=torch.long, device=self.prototypes.device)

    def start_epoch(self, look: Callable[[], Iterator[Batch]], stream: torch.Generator) -> None:
        """The E-step: prototypes, concentrations and every image's clusters."""
        if not self.active:
            return
        rows = torch.cat([self.keys(batch.views[0]) for batch in look()])
        parts = zip(
            self.clusters, self.prototypes.split(self.clusters), self.concentration.split(self.clusters), strict=True
        )
        for m, (wanted, prototypes, concentration) in enumerate(parts):
            k = max(1, min(wanted, len(rows) // 2))
            centres, nearest = k_means(rows, k, stream)
            prototypes[:k] = normalize(centres, dim=1)
            concentration[:k] = self.temperature * relative_concentration(rows, centres, nearest)
            self.assigned[m, : len(nearest)] = nearest

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """MoCo's loss, plus the mean prototype term once the warm-up is over."""
        total = super().loss(out, batch)
        if not self.active:
            return total
        queries = out.z if self.symmetric else out.z[:1]
        terms = [
            prototype_nce(q, prototypes, concentration, nearest[batch.index])
            for prototypes, concentration, nearest in zip(
                self.prototypes.split(self.clusters),
                self.concentration.split(self.clusters),
                self.assigned,
                strict=True,
            )
            for q in queries
        ]
        return total + torch.stack(terms).sum() / len(self.clusters)


def relative_concentration(rows: Tensor, centres: Tensor, nearest: Tensor) -> Tensor:
    """How wide each cluster is, `[k]`, relative to their mean (eq. 12, scaled as in the paper's section 3.3).

    Args:
        rows: `[n, d]`. centres: `[k, d]`. nearest: `[n]`, each row's cluster.

    Clusters of one row are as wide as the widest, and the widths are clipped to their 10th and 90th percentile, at
    least `NARROWEST`.
    """
    distance = (rows - centres[nearest]).norm(dim=1)
    members = one_hot(nearest, len(centres)).to(distance.dtype)  # sums by products come out the same on every device
    counts, summed = members.sum(dim=0), members.T @ distance
    width = summed / counts.clamp(min=1) / torch.log(counts + ALPHA)
    several = counts > 1
    width = torch.where(several, width, torch.where(several, width, 0.0).max())
    low, high = width.quantile(torch.tensor([0.1, 0.9], device=width.device, dtype=width.dtype))
    width = width.clamp(low, high)
    mean = width.mean()
    return torch.where(mean > 0, width / mean.clamp(min=1e-12), torch.ones_like(width)).clamp(min=NARROWEST)
