"""Pure functions of tensors: the losses of self-supervised learning, in the forms of their papers.

Embeddings are `[B, d]`, one row an image; a second argument holds the other view of the same images, row by row.
Nothing here normalises, detaches or averages unless its docstring says so. All logarithms are natural.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def full_precision(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Runs a function in float32 under bf16-mixed too: autocast would put its matrix products back into bf16."""

    @functools.wraps(function)
    def unrounded(z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return function(z, *args, **kwargs)

    return unrounded


@full_precision
def nt_xent(z_a: Tensor, z_b: Tensor, temperature: float = 0.5) -> Tensor:
    """Normalised temperature-scaled cross-entropy (Chen et al. 2020, SimCLR, eq. 1), the full form.

    All 2B embeddings are anchors; the positive is the other view and the denominator runs over the other 2B - 1 items.
    Rows are L2-normalised inside; the mean is over the 2B anchors.

    Args:
        z_a, z_b: `[B, d]`.
        temperature: divides the cosines; > 0.

    Returns:
        A scalar. All embeddings equal gives log(2B - 1).
    """
    z = F.normalize(torch.cat([z_a, z_b]).float(), dim=1)
    similarity = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = torch.arange(len(z), device=z.device).roll(len(z_a))
    return F.cross_entropy(similarity.masked_fill(itself, float("-inf")), positive)


@full_precision
def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """`-mean cos(p, z)` over rows (Chen & He 2021, SimSiam, eq. 1), in [-1, 1]. The caller detaches `z`."""
    return -F.cosine_similarity(p.float(), z.float(), dim=1).mean()


def byol_regression(p: Tensor, z: Tensor) -> Tensor:
    """`mean (2 - 2 cos(p, z))` over rows (Grill et al. 2020, BYOL, eq. 2), one direction, in [0, 4].

    The squared distance of normalised rows. The caller detaches `z` and adds the other direction.
    """
    return 2 + 2 * negative_cosine(p, z)


@full_precision
def clip_rows(z: Tensor, mu: float) -> Tensor:
    """Rows longer than sqrt(mu) are rescaled to that norm, shorter ones stay (HaoChen et al. 2021, section 5)."""
    return z * (mu**0.5 / z.norm(dim=1, keepdim=True).clamp(min=mu**0.5))


@full_precision
def spectral_contrastive(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Spectral contrastive loss (HaoChen et al. 2021, eq. 6): `-2 mean_i a_i.b_i + mean_{i != j} (a_i.b_j)^2`.

    Nothing is normalised or clipped inside. The second mean is over the B(B - 1) pairs of different images.

    Args:
        z_a, z_b: `[B, d]` with B >= 2.
    """
    z_a, z_b = z_a.float(), z_b.float()
    products = z_a @ z_b.T
    attraction = products.diagonal()
    pairs = len(z_a) * (len(z_a) - 1)
    return -2 * attraction.mean() + (products.square().sum() - attraction.square().sum()) / pairs


@full_precision
def correlation(z: Tensor) -> Tensor:
    """`Z^T Z / n` of `[n, d]` rows: the uncentred correlation matrix `[d, d]` (Jing et al. 2024, FedSC, section 4)."""
    return z.float().T @ z.float() / len(z)


@full_precision
def alignment(z_a: Tensor, z_b: Tensor, alpha: float = 2) -> Tensor:
    """`mean ||a_i - b_i||^alpha` of L2-normalised rows (Wang & Isola 2020, eq. 5); in [0, 4] for alpha = 2."""
    distance = F.normalize(z_a.float(), dim=1) - F.normalize(z_b.float(), dim=1)
    return distance.norm(dim=1).pow(alpha).mean() if alpha != 2 else distance.square().sum(dim=1).mean()


@full_precision
def uniformity(z: Tensor, t: float = 2) -> Tensor:
    """`log mean_{i<j} exp(-t ||u_i - u_j||^2)` of L2-normalised rows (Wang & Isola 2020, eq. 6).

    The mean is over distinct pairs, so B >= 2. Minimised: 0 when collapsed; tables often print its negative.
    """
    squared = torch.pdist(F.normalize(z.float(), dim=1)).square()
    return torch.logsumexp(-t * squared, dim=0) - math.log(len(squared))


@full_precision
def dimension_scaling(z: Tensor, scale: Tensor, variant: str = "paper") -> Tensor:
    """SSD's dimension-scaling regulariser (Fang et al. 2025): pulls `z` towards a stretched copy of itself.

    Args:
        z: `[B, d]`; pass unit rows to follow the paper.
        scale: `[d]` factors, alpha on the client's own dimensions and 1 elsewhere; or `[d, d]`, a symmetric matrix
            that stretches along the directions of a rotated basis.
        variant: "paper": mean over the batch of `||z - sg(z * scale)||^2`; "code": the authors' released form
            `||Z - P||_F / B` with `P = sg(normalised rows of Z * scale)`, not squared.
    """
    z = z.float()
    stretched = (z * scale if scale.dim() == 1 else z @ scale).detach()
    if variant == "paper":
        return (z - stretched).square().sum(dim=1).mean()
    squared = (z - F.normalize(stretched, dim=1)).square().sum()
    # where the target equals z but for rounding (scale 1), the root's gradient would be noise of norm 1 / B
    rounding = 1e-6
    return torch.where(squared > rounding, squared.clamp(min=rounding).sqrt(), 0 * squared) / len(z)


@full_precision
def projector_distillation(h: Tensor, z: Tensor, variant: str = "paper") -> Tensor:
    """SSD's projector distillation (Fang et al. 2025): a divergence between representation and embedding, batch mean.

    Args:
        h: representations `[B, d]`, z: embeddings `[B, d]` of the same width; neither is normalised or detached.
        variant: "paper": `KL(softmax h || softmax z)`; "code": `KL(softmax(z / 0.5) || softmax(h / 0.5))`.
    """
    if variant == "paper":
        target, other = h.float(), z.float()
    else:
        target, other = z.float() / 0.5, h.float() / 0.5
    return F.kl_div(other.log_softmax(dim=1), target.log_softmax(dim=1), reduction="batchmean", log_target=True)
