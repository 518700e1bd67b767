"""Label-free scores beside the effective rank, which is RankMe's (Garrido et al. 2023, there with a small constant).

| score | of | paper |
|---|---|---|
| alpha | how fast the eigenvalues of the features' covariance decay | Agrawal et al. 2022, alpha-ReQ |
| lidar | effective rank of differences between images, over those between views of one | Thilak et al. 2024, LiDAR |

Decisions
- alpha is fitted as in alpha-ReQ's code: least squares in logarithms over the ranks 4 to 100, weighted by 1 / rank. The
  paper asks for an alpha near 1, so neither more nor less is better.
- LiDAR's delta is the paper's 1e-4, its number of views the smaller of its two. There is no epsilon: 0 log 0 is 0.
"""

import numpy as np
import torch
from torch import Tensor

from eval.features import EvalError, Progress, extract, ignore
from eval.inputs import EncoderInputs

RANKS = (4, 100)
"""First and last rank of the fit of alpha."""


def decay_exponent(values: Tensor) -> float:
    """The alpha of `lambda_k ~ k^-alpha`, by alpha-ReQ's fit.

    Args:
        values: eigenvalues in decreasing order, `[d]`, each taken for at least 1e-12 of the largest; 0 if all are 0.

    Raises EvalError: fewer than two ranks to fit.

    >>> round(decay_exponent(torch.arange(1.0, 50.0) ** -1.5), 4)
    1.5
    """
    first, last = RANKS
    if len(values) <= first:
        raise EvalError(
            f"alpha-ReQ fits the eigenvalues from the {first}th on, and there are {len(values)}: "
            f"it needs an encoder of at least {first + 1} features"
        )
    if not values[0]:
        return 0.0
    kept = values.double().cpu().clamp(min=1e-12 * float(values[0]))[first - 1 : last]
    ranks = torch.arange(first, first + len(kept), dtype=torch.float64)
    x, y, weight = -ranks.log(), kept.log(), 1 / ranks
    x, y = x - (weight * x).sum() / weight.sum(), y - (weight * y).sum() / weight.sum()
    return float((weight * x * y).sum() / (weight * x * x).sum())


def alpha_req(test_x: Tensor) -> dict[str, float]:
    """alpha-ReQ of the test features `[T, d]`: "alpha"."""
    centred = test_x.double() - test_x.double().mean(dim=0)
    return {"alpha": decay_exponent(torch.linalg.svdvals(centred).square() / len(centred))}


def lda_rank(views: Tensor, delta: float) -> float:
    """LiDAR of the features of q views of n images, `[n, q, d]`, between 1 and d.

    delta: added to the diagonal of the covariance within images.

    Raises EvalError: fewer than two images or views.
    """
    n, q, width = views.shape
    if n < 2 or q < 2:
        raise EvalError(f"LiDAR of {n} images with {q} views each: give two of both at least")
    means = views.double().mean(dim=1)
    between = means - means.mean(dim=0)
    within = (views.double() - means[:, None]).flatten(0, 1)
    spread = within.T @ within / (n * q) + delta * torch.eye(width, dtype=torch.float64, device=views.device)
    # the eigenvalues of S_w^-1/2 S_b S_w^-1/2, S_w = L L^T, are squared singular values of (mean - all's mean) L^-T
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(spread), between.T, upper=False)
    values = torch.linalg.svdvals(whitened).square()
    return float(torch.special.entr(values / values.sum().clamp(min=1e-300)).sum().exp())


def lidar(
    inputs: EncoderInputs,
    generator: torch.Generator,
    images: int,
    views: int,
    delta: float,
    on_progress: Progress = ignore,
) -> dict[str, float]:
    """LiDAR of the representations of augmented training images: "lidar".

    Args:
        generator: draws the images, where there are more than `images`, and the views.
        views: drawn of each image by `EncoderInputs.view`.

    Raises EvalError: there is no such function, or fewer than two images.
    """
    if inputs.view is None:
        raise EvalError("LiDAR compares augmented views: give EncoderInputs.view")
    rows = torch.randperm(len(inputs.train), generator=generator)[:images].sort().values.numpy()
    chosen, drawn = np.asarray(inputs.train[rows]), []
    for done in range(views):
        drawn.append(extract(inputs.encoder, chosen, lambda batch: inputs.view(batch, generator)))  # type: ignore[misc]
        on_progress((done + 1) / views)
    return {"lidar": lda_rank(torch.stack(drawn, dim=1), delta)}
