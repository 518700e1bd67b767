"""Losses of prototypes, the means of a batch's clusters (Calibre; Snell et al. 2017, prototypical networks)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.maths.precision import full_precision, upcast
from methods.maths.solvers import one_hot

ABSENT = -1e9
"""Logit of a prototype that is absent: finite, so that rows which do not count have finite gradients."""


@full_precision
def prototype_contrast(first: Tensor, second: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """NT-Xent between two views' prototypes, the mean over both views of the valid ones; 0 without any.

    Args:
        first, second: `[k, d]`, the same cluster in each row; normalised inside.
        valid: `[k]`, clusters with rows in both views; the others are neither anchors nor negatives.

    >>> means = torch.eye(2)
    >>> prototype_contrast(means, means, torch.tensor([True, True]), temperature=0.5)  # log(1 + 2 exp(-2))
    tensor(0.2395)
    >>> prototype_contrast(means, means, torch.tensor([False, False]), temperature=0.5)
    tensor(0.)
    """
    k = len(valid)
    unit = F.normalize(upcast(torch.cat([first, second])), dim=1)
    both = torch.cat([valid, valid])
    itself = torch.eye(2 * k, dtype=torch.bool, device=unit.device)
    logits = (unit @ unit.T / temperature).masked_fill(itself | ~both, ABSENT)
    targets = torch.arange(2 * k, device=unit.device).roll(k)
    return _mean_over(F.cross_entropy(logits, targets, reduction="none"), both)


@full_precision
def prototype_classification(queries: Tensor, prototypes: Tensor, assigned: Tensor, valid: Tensor) -> Tensor:
    """Cross-entropy of the queries' clusters, by the squared distances of unit rows to the prototypes.

    Args:
        queries: `[B, d]`. prototypes: `[k, d]`. Both are normalised inside.
        assigned: `[B]`, each query's cluster.
        valid: `[k]`, clusters that have a prototype; queries of others are left out, and without any the loss is 0.

    >>> prototypes = torch.eye(2)
    >>> prototype_classification(prototypes, prototypes, torch.tensor([0, 1]), torch.ones(2, dtype=bool))
    tensor(0.1269)
    """
    q, p = (F.normalize(upcast(rows), dim=1) for rows in (queries, prototypes))
    logits = (2 * (q @ p.T) - 2).masked_fill(~valid, ABSENT)  # of unit rows ||q - p||^2 is 2 - 2 q.p
    return _mean_over(F.cross_entropy(logits, assigned, reduction="none"), valid[assigned])


@full_precision
def cluster_divergence(rows: Tensor, centres: Tensor, nearest: Tensor) -> Tensor:
    """Mean distance of a cluster's rows to its centre, 0-d: the mean over the clusters with rows.

    rows: `[n, d]`. centres: `[k, d]`. nearest: `[n]`, each row's cluster.

    >>> rows = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    >>> cluster_divergence(rows, torch.zeros(2, 2), torch.tensor([0, 0]))  # the second cluster has no rows
    tensor(2.)
    """
    distance = (upcast(rows) - centres[nearest]).norm(dim=1)
    members = one_hot(nearest, len(centres), distance.dtype)
    counts = members.sum(0)
    return _mean_over(members.T @ distance / counts.clamp(min=1), counts > 0)


def _mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values, 0-d; 0 without any."""
    weights = chosen.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)
