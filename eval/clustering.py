"""Separation of clusters and their agreement with the classes: mixing (Orchestra, definition 3.1), k-means."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, needs_scikit_learn, sample, seed_of


def mixing(rows: Tensor, centroids: Tensor) -> float:
    """Inter-cluster mixing `max_g max_b mu_g . b` over the rows b outside cluster g; smaller is better.

    Lubana et al. 2022, definition 3.1; a row belongs to its most similar centroid, which the paper leaves open.
    In [-1, 1]; nan with a single cluster.

    Args:
        rows: `[N, d]`; centroids: `[G, d]`. Both are L2-normalised inside.

    >>> mixing(torch.eye(2), torch.eye(2))  # no row is similar to the other cluster's centroid
    0.0
    """
    if len(centroids) < 2:
        return math.nan
    similarity = F.normalize(rows.double(), dim=1) @ F.normalize(centroids.double(), dim=1).T
    return float(similarity.topk(2, dim=1).values[:, 1].max())


def clusters(
    features: Features, generator: torch.Generator, max_points: int = 10_000, starts: int = 10
) -> dict[str, float]:
    """K-means of the L2-normalised test features into as many clusters as there are classes, and its mixing.

    Args:
        generator: draws the rows where there are more than `max_points`, and the starting centroids.
        starts: of k-means; the result with the least inertia is used.

    Returns:
        "nmi" (arithmetic) and "ari": normalised mutual information with the classes in [0, 1], adjusted Rand index in
        [-0.5, 1]; "mixing": see `mixing`, of the k-means centroids, left out with one class.

    Raises EvalError: fewer test rows than classes.
    """
    with needs_scikit_learn():
        from sklearn.cluster import KMeans
        from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    x, y = features.test_x, features.test_y
    if len(x) < features.num_classes:
        raise EvalError(f"{features.num_classes} clusters of {len(x)} test images: give more images")
    if len(x) > max_points:
        chosen = sample(len(x), max_points, generator, x.device)
        x, y = x[chosen], y[chosen]
    rows = F.normalize(x, dim=1)
    fitted = KMeans(features.num_classes, n_init=starts, random_state=seed_of(generator)).fit(rows.cpu().numpy())
    labels = y.cpu().numpy()
    scores = {
        "nmi": float(normalized_mutual_info_score(labels, fitted.labels_)),
        "ari": float(adjusted_rand_score(labels, fitted.labels_)),
        "mixing": mixing(rows, torch.from_numpy(fitted.cluster_centers_).to(rows)),
    }
    return {name: value for name, value in scores.items() if not math.isnan(value)}
