"""ProtoCL. Li, Zhou, Xiong, Hoi: Prototypical Contrastive Learning of Unsupervised Representations (ICLR 2021).

| symbol | name | equation |
|---|---|---|
| v', f_theta' | the key networks' unit rows of the images without augmentation | section 3.2 |
| c^m, k_m | `prototypes`, `clusters` | E-step, `methods.maths.k_means` |
| phi | `concentration`, Z log(Z + alpha) below the summed distances, alpha = 10 | eq. 12 |
| L_ProtoNCE | `methods.objectives.moco` + the mean of `methods.maths.prototype_nce` over granularities | eq. 11 |

Decisions
- The E-step precedes each local epoch, over the client's own images, as in the authors' code: k-means for each number
  in `clusters`, 20 iterations from one start (the code: five starts of faiss). A client has at most half as many
  clusters as images.
- All other prototypes are negatives. The code samples some, also from the positives of the batch's other images, so
  that a prototype is its own negative where two images share it.
- The first `warmup` rounds are MoCo's, since clusters by an untrained network have little meaning; the paper has 20 of
  200 epochs.
- A relative width is at least `NARROWEST`; the code has no bound, and a cluster of copies of one image has width 0.
- Numbers of clusters, queue and warm-up of FedX's FedProtoCL are not published; these defaults are ours.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import Batch, MethodError, Outputs, Visit
from methods.maths import k_means, one_hot, prototype_nce
from methods.networks import Encoder
from methods.objectives.moco import MoCo

ALPHA = 10
"""Smoothing term that keeps the widths of small clusters from being too large (eq. 12)."""

NARROWEST = 1e-2
"""Lower bound of relative widths: a cluster of copies of one image has width 0, for which the loss has no bound."""


class ProtoCL(MoCo):
    """MoCo plus a contrastive loss between each query and the prototypes of clusters.

    Args:
        encoder, queue_size, momentum, temperature, symmetric, keep_queue, projector: see `MoCo`.
        clusters: numbers of prototypes, one for each granularity.
        warmup: rounds without prototypes.

    clusters_of: `[granularities, images]`, the cluster of each of the client's images.
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
        self.clusters_of = torch.zeros(len(clusters), 0, dtype=torch.long)

    def receive(self, visit: Visit) -> None:
        """Allocates the cluster index of each image of the client, at each granularity."""
        self.active = visit.round >= self.warmup
        # a power of 2 that never shrinks: few shapes, so that steps are seldom recorded anew
        columns = max(self.clusters_of.shape[1], 1 << (visit.client.examples - 1).bit_length())
        self.clusters_of = torch.zeros(len(self.clusters), columns, dtype=torch.long, device=self.prototypes.device)

    def granularities(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Prototypes `[k, d]`, concentrations `[k]` and the images' clusters `[images]` of each granularity, live."""
        sizes = self.clusters
        return zip(self.prototypes.split(sizes), self.concentration.split(sizes), self.clusters_of, strict=True)

    def start_epoch(self, plain_batches: Callable[[], Iterator[Batch]], stream: torch.Generator) -> None:
        """E-step: computes prototypes, concentrations and the cluster of every image."""
        if not self.active:
            return
        rows = torch.cat([self.keys(batch.views[0]) for batch in plain_batches()])
        for prototypes, concentration, clusters in self.granularities():
            k = max(1, min(len(prototypes), len(rows) // 2))
            centres, nearest = k_means(rows, k, stream)
            prototypes[:k] = normalize(centres, dim=1)
            concentration[:k] = self.temperature * relative_concentration(rows, centres, nearest)
            clusters[: len(nearest)] = nearest

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """MoCo's loss, plus the mean prototype term once the warm-up is over."""
        total = super().loss(out, batch)
        if not self.active:
            return total
        queries = out.embeddings if self.symmetric else out.embeddings[:1]
        terms = [
            prototype_nce(q, prototypes, concentration, clusters[batch.index])
            for prototypes, concentration, clusters in self.granularities()
            for q in queries
        ]
        return total + torch.stack(terms).sum() / len(self.clusters)


def relative_concentration(rows: Tensor, centres: Tensor, nearest: Tensor) -> Tensor:
    """Width of each cluster, `[k]`, relative to the mean width (eq. 12, scaled as in the paper's section 3.3).

    Args:
        rows: `[n, d]`. centres: `[k, d]`. nearest: `[n]`, each row's cluster.

    Clusters of one row have the largest width. Widths are clipped to their 10th and 90th percentile; relative ones are
    at least `NARROWEST`.
    """
    distance = (rows - centres[nearest]).norm(dim=1)
    # sums by matrix products are deterministic on every device
    members = one_hot(nearest, len(centres), distance.dtype)
    counts, summed = members.sum(dim=0), members.T @ distance
    width = summed / counts.clamp(min=1) / torch.log(counts + ALPHA)
    several = counts > 1
    width = torch.where(several, width, torch.where(several, width, 0.0).max())
    low, high = width.quantile(torch.tensor([0.1, 0.9], device=width.device, dtype=width.dtype))
    width = width.clamp(low, high)
    mean = width.mean()
    return torch.where(mean > 0, width / mean.clamp(min=1e-12), torch.ones_like(width)).clamp(min=NARROWEST)
