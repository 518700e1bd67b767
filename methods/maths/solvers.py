"""Solvers of small problems: k-means, and the point of smallest norm in a convex hull."""

import torch
from torch import Tensor

from methods.maths.precision import full_precision, upcast


def one_hot(indices: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Indices `[n]` -> `[n, k]` of zeros and ones. Unlike torch's it reads no value, so a recorded step may use it.

    >>> one_hot(torch.tensor([2, 0]), 3, torch.float32)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return (indices[:, None] == torch.arange(k, device=indices.device)).to(dtype)


@full_precision
def cluster_means(rows: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """(means `[k, d]` of the clusters' rows, which clusters have any `[k]`); the mean of an empty one is 0.

    rows: `[B, d]`. members: `[B, k]`, one-hot.

    >>> rows, members = torch.tensor([[1.0], [3.0]]), one_hot(torch.tensor([0, 0]), 2, torch.float32)
    >>> cluster_means(rows, members)  # the second cluster is empty
    (tensor([[2.],
            [0.]]), tensor([ True, False]))
    """
    counts = members.sum(0)
    return members.T @ upcast(rows) / counts.clamp(min=1)[:, None], counts > 0


@full_precision
def k_means(
    x: Tensor,
    k: int,
    generator: torch.Generator | None = None,
    iterations: int = 20,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from k rows drawn without replacement: (centres `[k, d]`, each row's nearest centre `[n]`).

    Args:
        x: `[n, d]` with n >= k. generator: on the CPU.
        starts: instead of the generator's: rows to start at `[k]`, on the device of `x`.

    A centre without rows does not move. No step synchronises with the device.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> centres, nearest = k_means(x, 2, starts=torch.tensor([0, 1]))
    >>> centres.flatten(), nearest
    (tensor([ 0.5000, 10.5000]), tensor([0, 0, 1, 1]))
    """
    x = upcast(x)
    if starts is None:
        starts = torch.randperm(len(x), generator=generator)[:k].to(x.device)
    centres = x[starts]
    for _ in range(iterations):
        nearest = torch.cdist(x, centres).argmin(dim=1)
        means, valid = cluster_means(x, one_hot(nearest, k, x.dtype))
        centres = torch.where(valid[:, None], means, centres)
    return centres, torch.cdist(x, centres).argmin(dim=1)


def min_norm(gram: Tensor, tolerance: float = 1e-9) -> Tensor:
    """Weights of the point of smallest norm in the convex hull of vectors (Desideri 2012, MGDA; FedU2's EUA).

    Minimises w^T G w over the simplex {w >= 0, sum w = 1} exactly, by Wolfe's algorithm (1976) on the Gram matrix. The
    algorithm has an active set of vectors, steps to the smallest point of their affine hull and removes vectors whose
    weight would be negative.

    Args:
        gram: `[n, n]` inner products, n >= 1, symmetric and positive semi-definite.
        tolerance: of the optimality condition (G w)_i >= w^T G w, relative to the largest product.

    Returns:
        `[n]` float64 weights.

    >>> min_norm(torch.diag(torch.tensor([1.0, 3.0])))  # orthogonal vectors: weights by 1 / squared length
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    G = gram.detach().double().cpu()
    scale = max(float(G.diagonal().max()), 1e-300)
    start = int(G.diagonal().argmin())
    w = torch.zeros(len(G), dtype=torch.float64)
    w[start], active = 1.0, [start]
    for _ in range(
        16 * len(G) + 16
    ):  # no active set occurs twice in exact arithmetic; the limit is for rounding errors
        slope = G @ w
        best = int(slope.argmin())
        if best in active or float(w @ slope - slope[best]) <= tolerance * scale:
            break
        active.append(best)
        while True:
            target = torch.zeros_like(w)
            target[active] = _affine_minimum(G[active][:, active], tolerance * scale)
            falling = {i: float(w[i] / (w[i] - target[i])) for i in active if target[i] < 0}
            step = min(falling.values(), default=1.0)
            w = (1 - step) * w + step * target
            if not falling:
                break
            removed = [i for i, reached in falling.items() if reached <= step]
            w[removed], active = 0.0, [i for i in active if i not in removed]
    return w / w.sum()


def min_norm_descent(gram: Tensor, start: Tensor, tolerance: float = 1e-5, iterations: int = 1000) -> Tensor:
    """Weights near those of `min_norm`, by projected descent on the simplex (Sener, Koltun 2018; FedU2's code).

    Each iteration goes down the gradient, along the plane of constant sum, to the nearest face of the unit cube,
    projects that point on the simplex, and minimises on the segment to it. Of two vectors it returns the start.

    Args:
        gram: `[n, n]` inner products. start: `[n]` weights of sum 1.
        tolerance: ends before an iteration that would change the weights by less, in sum. iterations: at most.

    Returns:
        `[n]` float64 weights.

    >>> min_norm_descent(torch.eye(3), torch.tensor([0.2, 0.3, 0.5])).round(decimals=3)
    tensor([0.3330, 0.3330, 0.3330], dtype=torch.float64)
    """
    G, w = gram.detach().double().cpu(), start.detach().double().cpu()
    for _ in range(iterations if len(w) > 2 else 0):
        slope = -(G @ w)
        direction = slope - slope.mean()
        faces = torch.where(direction < 0, -w, 1 - w) / direction
        falling, rising = (faces[signed & (faces > 1e-7)].tolist() for signed in (direction < 0, direction > 0))
        reach = min([min(falling, default=1.0), *rising])
        target = _on_simplex(w + reach * direction)
        here, across, there = (float(a @ G @ b) for a, b in ((w, w), (w, target), (target, target)))
        if across >= here:
            kept = 0.999
        elif across >= there:
            kept = 0.001
        else:
            kept = (there - across) / (here + there - 2 * across)
        moved = kept * w + (1 - kept) * target
        if float((moved - w).abs().sum()) < tolerance:
            break
        w = moved
    return w


def _on_simplex(point: Tensor) -> Tensor:
    """The nearest point whose entries are at least 0 and sum to 1."""
    ordered = point.sort(descending=True).values
    excess = (ordered.cumsum(dim=0) - 1) / torch.arange(1, len(point) + 1)
    return (point - excess[ordered > excess][-1]).clamp(min=0)


def _affine_minimum(G: Tensor, ridge: float) -> Tensor:
    """The weights of sum 1 that minimise w^T G w; of several solutions the one of smallest norm."""
    solution = torch.linalg.lstsq(G + ridge * torch.eye(len(G), dtype=G.dtype), torch.ones(len(G), 1, dtype=G.dtype))
    w = solution.solution[:, 0]
    return w / w.sum()
