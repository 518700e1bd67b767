"""Two-dimensional t-SNE maps of the features, for figures."""

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, Save, accuracy, needs_scikit_learn, sample, seed_of


def tsne(
    features: Features, generator: torch.Generator, max_points: int = 2_000, perplexity: float = 30
) -> tuple[Tensor, Tensor]:
    """t-SNE (van der Maaten & Hinton 2008) of L2-normalised test features.

    Args:
        generator: draws the rows where there are more than `max_points`, and the seed; initialised by PCA.
        perplexity: effective number of neighbours of a point; at most a third of the rows.

    Returns:
        Positions `[n, 2]` float32 and labels `[n]` of the rows drawn. Distances between far points mean little.

    Raises EvalError: fewer than four rows, or all rows the same.
    """
    with needs_scikit_learn():
        from sklearn.manifold import TSNE

    x, y = features.test_x, features.test_y
    if len(x) < 4:
        raise EvalError(f"a map of {len(x)} test images: give at least four")
    chosen = sample(len(x), max_points, generator, x.device)
    rows = F.normalize(x[chosen], dim=1).cpu().numpy()
    if (rows == rows[0]).all():  # the PCA of equal rows has no plane, and t-SNE fails inside scikit-learn
        raise EvalError(f"a map of {len(rows)} test images whose features are all the same: train the encoder anew")
    model = TSNE(perplexity=min(perplexity, (len(rows) - 1) / 3), init="pca", random_state=seed_of(generator))
    return torch.from_numpy(model.fit_transform(rows)), y[chosen].cpu()


def purity(positions: Tensor, labels: Tensor) -> float:
    """Percent of the points `[n, 2]` whose nearest other point has the same label.

    >>> round(purity(torch.tensor([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]]), torch.tensor([3, 3, 5])), 1)
    66.7
    """
    distances = torch.cdist(positions, positions).fill_diagonal_(torch.inf)
    return accuracy(labels[distances.argmin(dim=1)], labels)


def compute_map(
    features: Features, save_arrays: Save, generator: torch.Generator, max_points: int, perplexity: float
) -> dict[str, float]:
    """Purity of a t-SNE map of the test features, which is saved for a figure."""
    positions, labels = tsne(features, generator, max_points, perplexity)
    save_arrays("embed", {"places": positions, "labels": labels})
    return {"purity": purity(positions, labels)}
