"""Whether clusters are apart, and whether they are the classes: mixing (Orchestra, definition 3.1), k-means."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, sample, seed_of


def mixing(rows: Tensor, centroids: Tensor) -> float:
    """Inter-cluster mixing `max_g max_b mu_g . b` over the rows b that are not of cluster g; smaller is better.

    Lubana et al. 2022, definition 3.1; a row belongs to its most similar centroid, which the paper leaves open.
    In [-1, 1]; nan with a single cluster.

    Args:
        rows: `[N, d]`; centroids: `[G, d]`. Both are L2-normalised inside.
    """
    if len(centroids) < 2:
        return math.nan
    similar = F.normalize(rows.double(), dim=1) @ F.normalize(centroids.double(), dim=1).T
    return float(similar.topk(2, dim=1).values[:, 1].max())


def clusters(
    features: Features, generator: torch.Generator, max_points: int = 10_000, starts: int = 10
) -> dict[str, float]:
    """K-means of the L2-normalised test features into as many clusters as there are classes, and its mixing.

    Args:
        generator: draws the rows where there are more than `max_points`, and the starting centroids.
        starts: of k-means; the one of least inertia counts.

    Returns:
        "nmi" (arithmetic) and "ari": normalised mutual information with the classes in [0, 1], adjusted Rand index in
        [-0.5, 1]; "mixing": see `mixing`, of the k-means centroids, left out with one class.

    Raises:
        EvalError: fewer test rows than classes.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    x, y = features.test_x, features.test_y
    if len(x) < features.num_classes:
        raise EvalError(f"{features.num_classes} clusters were asked of {len(x)} test images: give more images")
    if len(x) > max_points:
        chosen = sample(len(x), max_points, generator, x.device)
        x, y = x[chosen], y[chosen]
    rows = F.normalize(x, dim=1)
    made = KMeans(features.num_classes, n_init=starts, random_state=seed_of(generator)).fit(rows.cpu().numpy())
    labels = y.cpu().numpy()
    apart = mixing(rows, torch.from_numpy(made.cluster_centers_).to(rows))
    found = {
        "nmi": float(normalized_mutual_info_score(labels, made.labels_)),
        "ari": float(adjusted_rand_score(labels, made.labels_)),
    }
    return found if math.isnan(apart) else found | {"mixing": apart}
