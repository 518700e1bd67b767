"""Optimal transport of rows to clusters, and clusters of equal size by it (Orchestra, section 4; Cuturi 2013)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, one_hot

from methods.maths.losses import full_precision

TINY = 1e-300
"""A cluster so far from every row that its sum vanishes is scaled by this much at most."""


@full_precision
def cosines(rows: Tensor, centroids: Tensor) -> Tensor:
    """`[n, k]` of rows `[n, d]` and centroids `[k, d]`, of any length."""
    return normalize(rows.float(), dim=1) @ normalize(centroids.float(), dim=1).T


@full_precision
def cluster_sums(rows: Tensor, centroids: Tensor) -> Tensor:
    """Sums `[k, d]` of the rows `[n, d]`, made unit, that are nearest to each centroid; 0 where none is.

    Their directions are a step of Lloyd's clustering on the sphere. One row in the place of another moves them by 2 in
    Euclidean norm at most.
    """
    members = one_hot(cosines(rows, centroids).argmax(dim=1), len(centroids)).float()
    return members.T @ normalize(rows.float(), dim=1)


@full_precision
def sinkhorn(scores: Tensor, epsilon: float = 0.04, iterations: int = 100, tolerance: float = 0.0) -> Tensor:
    """Soft assignment of rows to clusters that gives every cluster the same mass: `[n, g]`, rows of sum 1.

    The plan of maximal <plan, scores> + epsilon entropy, by Sinkhorn's alternating scaling: clusters first, rows last,
    so rows sum to 1 exactly and clusters to n / g once it has converged.

    Args:
        scores: `[n, g]`, the larger the nearer; adding a constant to a row changes nothing.
        epsilon: the smaller the harder, > 0; Orchestra's 25 is 1 / epsilon.
        iterations: pairs of scalings at most.
        tolerance: stops once the scalings of all rows together move relatively by less, looked at every tenth time;
            0: never. Orchestra's is 0.01.
    """
    n, g = scores.shape
    kernel = (scores.double() / epsilon).softmax(dim=1)
    rows = torch.full((n,), 1 / n, dtype=kernel.dtype, device=kernel.device)
    columns = torch.ones(g, dtype=kernel.dtype, device=kernel.device)
    for iteration in range(iterations):
        columns = 1 / (g * (rows @ kernel)).clamp(min=TINY)
        before, rows = rows, 1 / (n * (kernel @ columns)).clamp(min=TINY)
        if tolerance and iteration % 10 == 0 and float((before / rows - 1).abs().sum()) < tolerance:
            break
    return (n * rows[:, None] * kernel * columns).to(scores.dtype)


def equal_clusters(
    rows: Tensor, k: int, generator: torch.Generator, *, iterations: int = 5, least: int = 0
) -> tuple[Tensor, Tensor]:
    """Clusters of about equal size on the sphere: (unit centroids `[k, d]`, each row's cluster `[n]`).

    Orchestra's local clustering: from k distinct rows on, each iteration assigns rows by `sinkhorn` of their cosines
    (ten scalings, which balance roughly) and moves a centroid to its rows' normalised mean; one that has lost its rows
    takes one at random.

    Args:
        rows: `[n, d]`, n >= k; normalised inside. generator: on the CPU.
        least: rows that every cluster gets; more than 0 moves rows of the largest clusters, those that lose least by
            it. A cluster of n rows hides a row among n (K-anonymity); at most n // k.

    Raises:
        ValueError: fewer rows than clusters, or more than n // k wanted for each.
    """
    if not 0 < k <= len(rows) or least > len(rows) // k:
        raise ValueError(f"{len(rows)} rows make no {k} clusters of at least {max(least, 1)}")
    rows = normalize(rows.float(), dim=1)
    centroids = rows[torch.randperm(len(rows), generator=generator)[:k].to(rows.device)]
    spare = torch.randint(len(rows), (iterations, k), generator=generator).to(rows.device)
    nearest = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for step in range(iterations):
        plan = sinkhorn(rows @ centroids.T, iterations=10)
        nearest = plan.argmax(dim=1) if not least else _at_least(plan, least)
        members = one_hot(nearest, k).to(rows.dtype)
        empty = members.sum(dim=0) == 0
        centroids = torch.where(empty[:, None], rows[spare[step]], normalize(members.T @ rows, dim=1))
    return centroids, nearest


def global_clusters(rows: Tensor, start: Tensor, *, steps: int, lr: float, temperature: float) -> Tensor:
    """Unit centroids `[G, d]` to which rows `[n, d]` are assigned as equally as `sinkhorn` says (Algorithm 2).

    Minimises minus the mean cosine of each row's softmax assignment and its Sinkhorn goal, by SGD with momentum 0.9 and
    weight decay 1e-4 from `start` `[G, d]` on; centroids are normalised before and after every step. The order of the
    rows plays no role.
    """
    rows = normalize(rows.float(), dim=1)
    centroids = normalize(start.float(), dim=1).clone().requires_grad_()
    optimizer = torch.optim.SGD([centroids], lr=lr, momentum=0.9, weight_decay=1e-4)
    with torch.enable_grad():
        for _ in range(steps):
            near = rows @ centroids.T
            goals = sinkhorn(near.detach(), tolerance=0.01)
            loss = -cosine_similarity(goals, (near / temperature).softmax(dim=1), dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                centroids.copy_(normalize(centroids, dim=1))
    return centroids.detach()


def _at_least(plan: Tensor, least: int) -> Tensor:
    """The largest entry of each row, save that rows move from large clusters until every cluster has `least`."""
    nearest = plan.argmax(dim=1)
    counts = torch.bincount(nearest, minlength=plan.shape[1])
    while int(counts.min()) < least:
        poor = int(counts.argmin())
        lost = plan.gather(1, nearest[:, None])[:, 0] - plan[:, poor]
        movable = (counts > least)[nearest] & (nearest != poor)
        row = int(torch.where(movable, lost, math.inf).argmin())
        counts[nearest[row]] -= 1
        counts[poor] += 1
        nearest[row] = poor
    return nearest
