"""A map of the features in the plane by t-SNE, to be looked at."""

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, accuracy, sample, seed_of


def tsne(
    features: Features, generator: torch.Generator, max_points: int = 2_000, perplexity: float = 30
) -> tuple[Tensor, Tensor]:
    """t-SNE (van der Maaten & Hinton 2008) of L2-normalised test features.

    Args:
        generator: draws the rows where there are more than `max_points`, and the seed; the start is by PCA.
        perplexity: about how many neighbours a point has; lowered to a third of the rows where there are few.

    Returns:
        Places `[n, 2]` float32 and labels `[n]` of the rows shown. Distances between far points mean little.

    Raises:
        EvalError: fewer than four rows, or all rows the same.
    """
    from sklearn.manifold import TSNE

    x, y = features.test_x, features.test_y
    if len(x) < 4:
        raise EvalError(f"a map of {len(x)} test images was asked for: give at least four")
    chosen = sample(len(x), max_points, generator, x.device)
    rows = F.normalize(x[chosen], dim=1).cpu().numpy()
    if (rows == rows[0]).all():  # there is no plane through a point, and t-SNE's own code dies of looking for it
        raise EvalError(f"a map of {len(rows)} test images was asked for, but their features are all the same")
    few = min(perplexity, (len(rows) - 1) / 3)
    made = TSNE(perplexity=few, init="pca", random_state=seed_of(generator)).fit_transform(rows)
    return torch.from_numpy(made), y[chosen].cpu()


def purity(places: Tensor, labels: Tensor) -> float:
    """Percent of the points `[n, 2]` whose nearest other point is of their class."""
    apart = torch.cdist(places, places).fill_diagonal_(torch.inf)
    return accuracy(labels[apart.argmin(dim=1)], labels)
