"""Clusters of equal size by optimal transport of rows to clusters (Orchestra, section 4; Cuturi 2013)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from methods.maths.precision import full_precision, upcast
from methods.maths.solvers import one_hot

TINY = 1e-300
"""Lower bound of a cluster's sum, which may underflow where all rows are far from the cluster."""


@full_precision
def cosines(rows: Tensor, centroids: Tensor) -> Tensor:
    """Cosines `[n, k]` of rows `[n, d]` and centroids `[k, d]`, of any norm.

    >>> cosines(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor([[1., 0.]])
    """
    return normalize(upcast(rows), dim=1) @ normalize(upcast(centroids), dim=1).T


@full_precision
def cluster_sums(rows: Tensor, centroids: Tensor) -> Tensor:
    """Sums `[k, d]` of the normalised rows `[n, d]` nearest to each centroid; 0 for a centroid without rows.

    The directions of the sums are one step of Lloyd's clustering on the sphere. The replacement of one row changes the
    sums by at most 2 in Euclidean norm.

    >>> cluster_sums(torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), torch.eye(2))
    tensor([[2., 0.],
            [0., 1.]])
    """
    unit = normalize(upcast(rows), dim=1)
    members = one_hot(cosines(rows, centroids).argmax(dim=1), len(centroids), unit.dtype)
    return members.T @ unit


@full_precision
def sinkhorn(
    scores: Tensor,
    epsilon: float = 0.04,
    iterations: int = 100,
    tolerance: float = 0.0,
    *,
    weighted: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    """Soft assignment of rows to clusters that gives every cluster the same mass: `[n, g]`, rows of sum 1.

    The plan of maximal <plan, scores> + epsilon entropy, by Sinkhorn's alternating scaling: clusters first, rows last,
    so that rows sum to 1 exactly and clusters to n / g after convergence.

    Args:
        scores: `[n, g]`, similarities; a constant added to a row has no effect, unless `weighted`.
        epsilon: > 0, a smaller value gives a harder assignment; Orchestra's 25 is 1 / epsilon.
        iterations: largest number of pairs of scalings.
        tolerance: stops when the summed relative change of the row scalings is smaller, checked every tenth iteration;
            0: no check. Orchestra's is 0.01.
        weighted: whether a row counts in the first scaling of the clusters by its sum of exp(scores / epsilon), as in
            SwAV; False: rows count equally, as in Orchestra. The plan after convergence is the same.
        valid: bool `[n]`, whether a row takes part; the others are assigned to no cluster, a row of zeros.

    >>> plan = sinkhorn(torch.tensor([[0.9, 0.1], [0.8, 0.7], [0.6, 0.3], [0.2, 0.1]]))
    >>> plan.argmax(dim=1)  # by the larger score all four would be of cluster 0
    tensor([0, 1, 0, 1])
    >>> plan.sum(dim=0)
    tensor([2., 2.])
    """
    n, g = scores.shape
    logits = scores.double() / epsilon
    kernel = logits.softmax(dim=1)
    rows = torch.full((n,), 1 / n, dtype=kernel.dtype, device=kernel.device)
    if weighted:
        logs = logits.logsumexp(dim=1)
        rows = (logs - logs.max()).exp()
    if valid is not None:
        kernel = kernel * valid[:, None]
    columns = torch.ones(g, dtype=kernel.dtype, device=kernel.device)
    for iteration in range(iterations):
        sums = (rows[None] @ kernel)[0]  # without None torch reshapes the result in place: a tape cannot replay that
        columns = (g * sums).clamp(min=TINY).reciprocal()  # 1 / x is two operations
        before, rows = rows, (n * (kernel @ columns)).clamp(min=TINY).reciprocal()
        if tolerance and iteration % 10 == 0 and float((before / rows - 1).abs().sum()) < tolerance:
            break
    return (n * rows[:, None] * kernel * columns).to(scores.dtype)


def equal_clusters(
    rows: Tensor,
    k: int,
    generator: torch.Generator,
    *,
    iterations: int = 5,
    min_size: int = 0,
    draws: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Clusters of about equal size on the sphere: (unit centroids `[k, d]`, each row's cluster `[n]`).

    Orchestra's local clustering starts at k distinct rows. Each iteration assigns rows by `sinkhorn` of their cosines
    (ten scalings, which balance approximately) and moves a centroid to the normalised mean of its rows; a centroid
    without rows moves to a random row.

    Args:
        rows: `[n, d]`, n >= k; normalised inside. generator: on the CPU.
        min_size: minimum of rows in every cluster, at most n // k; above 0, rows with the smallest loss of assignment
            move from larger clusters. A cluster of n rows hides a row among n (K-anonymity).
        draws: instead of the generator's: rows to start at `[k]`, and rows for empty clusters `[iterations, k]`.

    Raises:
        ValueError: fewer rows than clusters, or `min_size` above n // k.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> centroids, nearest = equal_clusters(rows, 2, torch.Generator().manual_seed(0))
    >>> nearest.bincount()
    tensor([2, 2])
    """
    if not 0 < k <= len(rows) or min_size > len(rows) // k:
        raise ValueError(f"{len(rows)} rows make no {k} clusters of at least {max(min_size, 1)}")
    rows = normalize(upcast(rows), dim=1)
    if draws is None:
        starts = torch.randperm(len(rows), generator=generator)[:k]
        draws = starts, torch.randint(len(rows), (iterations, k), generator=generator)
    starts, spare = (indices.to(rows.device, non_blocking=True) for indices in draws)
    centroids = rows[starts]
    nearest = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for step in range(iterations):
        plan = sinkhorn(rows @ centroids.T, iterations=10)
        nearest = plan.argmax(dim=1) if not min_size else _assign_at_least(plan, min_size)
        members = one_hot(nearest, k, rows.dtype)
        empty = members.sum(dim=0) == 0
        centroids = torch.where(empty[:, None], rows[spare[step]], normalize(members.T @ rows, dim=1))
    return centroids, nearest


def global_clusters(rows: Tensor, start: Tensor, *, steps: int, lr: float, temperature: float) -> Tensor:
    """Unit centroids `[G, d]` with about equal numbers of assigned rows `[n, d]` (Orchestra's Algorithm 2).

    Maximises the mean cosine of each row's softmax and Sinkhorn assignments, by SGD with momentum 0.9 and weight decay
    1e-4 from `start` `[G, d]`; centroids are normalised before and after every step. The order of rows has no effect.
    It is computed on the CPU: a GPU would spend seconds on launching its hundred thousands of tiny operations.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> centroids = global_clusters(rows, torch.eye(2), steps=5, lr=0.1, temperature=0.1)
    >>> centroids.norm(dim=1)
    tensor([1., 1.])
    """
    device = start.device
    rows, start = (normalize(upcast(tensor.cpu()), dim=1) for tensor in (rows, start))
    centroids = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([centroids], lr=lr, momentum=0.9, weight_decay=1e-4)
    with torch.enable_grad():
        for _ in range(steps):
            scores = rows @ centroids.T
            targets = sinkhorn(scores.detach(), tolerance=0.01)
            loss = -cosine_similarity(targets, (scores / temperature).softmax(dim=1), dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                centroids.copy_(normalize(centroids, dim=1))
    return centroids.detach().to(device)


def _assign_at_least(plan: Tensor, min_size: int) -> Tensor:
    """Column of each row's largest entry; rows of larger clusters move until every cluster has `min_size` rows."""
    nearest = plan.argmax(dim=1)
    counts = torch.bincount(nearest, minlength=plan.shape[1])
    while int(counts.min()) < min_size:
        smallest = int(counts.argmin())
        loss = plan.gather(1, nearest[:, None])[:, 0] - plan[:, smallest]
        movable = (counts > min_size)[nearest] & (nearest != smallest)
        row = int(torch.where(movable, loss, math.inf).argmin())
        counts[nearest[row]] -= 1
        counts[smallest] += 1
        nearest[row] = smallest
    return nearest
