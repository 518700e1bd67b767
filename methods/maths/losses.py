"""Losses of self-supervised learning, in the forms of their papers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.maths.precision import full_precision, upcast


@full_precision
def nt_xent(z_a: Tensor, z_b: Tensor, temperature: float = 0.5, form: str = "full") -> Tensor:
    """Normalised temperature-scaled cross-entropy (Chen et al. 2020, SimCLR, eq. 1), and variants of released codes.

    Rows are L2-normalised inside; the mean is over anchors, and an anchor's positive is the image's other view.

    Args:
        z_a, z_b: `[B, d]`.
        temperature: divides the cosines; > 0.
        form: the anchors, and the embeddings in the denominator. "full", the paper's: all 2B embeddings, and the other
            2B - 1. "one-way" (FLESD): view a, and view b. "zeroed" (FedU2's code): as full, plus the anchor itself with
            similarity 0. "itself" (L-DAWA's code): view a, and all 2B embeddings, also the anchor itself.

    Returns:
        A scalar. All embeddings equal gives log(2B - 1) for "full", log B for "one-way".

    >>> alike = torch.ones(4, 8)
    >>> nt_xent(alike, alike)  # log(2 * 4 - 1)
    tensor(1.9459)
    >>> nt_xent(alike, alike, form="one-way")  # log 4
    tensor(1.3863)
    """
    a, b = F.normalize(upcast(z_a), dim=1), F.normalize(upcast(z_b), dim=1)
    rows = torch.arange(len(a), device=a.device)
    if form == "one-way":
        return F.cross_entropy(a @ b.T / temperature, rows)
    z = torch.cat([a, b])
    if form == "itself":
        return F.cross_entropy(a @ z.T / temperature, rows + len(a))
    diagonal = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarity = (z @ z.T / temperature).masked_fill(diagonal, 0.0 if form == "zeroed" else float("-inf"))
    return F.cross_entropy(similarity, torch.arange(len(z), device=z.device).roll(len(a)))


@full_precision
def info_nce(q: Tensor, k: Tensor, queue: Tensor, valid: Tensor, temperature: float = 0.2) -> Tensor:
    """InfoNCE with a queue of negatives (He et al. 2020, MoCo, eq. 1), batch mean.

    Rows of `q` and `k` are L2-normalised inside; the caller detaches `k`.

    Args:
        q, k: queries and their keys `[B, d]`, row by row.
        queue: other keys `[rows, d]`, of unit length. valid: bool `[rows]`, whether a row holds a key.
        temperature: divides the cosines; > 0.

    Returns:
        A scalar. Without a valid row it is 0; with n rows that equal the positive key it is log(1 + n).

    >>> key = torch.tensor([[1.0, 0.0]])
    >>> queue = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> info_nce(key, key, queue, torch.tensor([True, False]))  # one valid row, which equals the key: log 2
    tensor(0.6931)
    """
    q, k = F.normalize(upcast(q), dim=1), F.normalize(upcast(k), dim=1)
    positive = (q * k).sum(dim=1, keepdim=True)
    negative = (q @ queue.T).masked_fill(~valid, float("-inf"))
    classes = torch.zeros(len(q), dtype=torch.long, device=q.device)
    return F.cross_entropy(torch.cat([positive, negative], dim=1) / temperature, classes)


@full_precision
def prototype_nce(q: Tensor, prototypes: Tensor, concentration: Tensor, assigned: Tensor) -> Tensor:
    """ProtoNCE's prototype term (Li et al. 2021, PCL, eq. 11) for one granularity, batch mean.

    Args:
        q: queries `[B, d]`, L2-normalised inside.
        prototypes: `[k, d]`, of unit length. concentration: `[k]`, phi, which divides a prototype's cosines; inf: the
            prototype is missing.
        assigned: `[B]`, the index of each query's prototype.

    >>> q, prototypes = torch.eye(2), torch.eye(2)
    >>> prototype_nce(q, prototypes, torch.tensor([0.2, 0.2]), torch.tensor([0, 1]))  # log(1 + exp(-5))
    tensor(0.0067)
    """
    q = F.normalize(upcast(q), dim=1)
    missing = concentration.isinf()
    logits = (q @ prototypes.T / concentration).masked_fill(missing, float("-inf"))
    return F.cross_entropy(logits, assigned)


@full_precision
def swav(scores: Tensor, codes: Tensor, temperature: float = 0.1) -> Tensor:
    """Swapped prediction of cluster assignments (Caron et al. 2020, SwAV, eqs. 1-2), mean over images and predictions.

    Every view predicts the codes of the other views, by cross-entropy with the softmax of its scores.

    Args:
        scores: `[V, B, K]`, cosines of each view's embeddings and the K prototypes; V >= 2.
        codes: `[C, B, K]`, assignments of the first C <= V views, rows of sum 1; `sinkhorn` makes them from the scores,
            and the caller detaches them.
        temperature: divides the scores; > 0.

    Returns:
        A scalar. Two views have C = V = 2, for which eq. 1 is the sum over both codes, twice this mean.

    >>> scores, codes = torch.zeros(2, 5, 10), torch.full((2, 5, 10), 0.1)
    >>> swav(scores, codes)  # log 10
    tensor(2.3026)
    """
    predicted = (upcast(scores) / temperature).log_softmax(dim=2)
    entropies = -torch.einsum("cbk,vbk->cv", upcast(codes), predicted) / scores.shape[1]
    pairs = len(codes) * (len(scores) - 1)
    return (entropies.sum() - entropies.diagonal().sum()) / pairs


@full_precision
def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """`-mean cos(p, z)` over rows (Chen & He 2021, SimSiam, eq. 1), in [-1, 1]. The caller detaches `z`.

    >>> negative_cosine(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(-1.)
    """
    return -F.cosine_similarity(upcast(p), upcast(z), dim=1).mean()


def byol_regression(p: Tensor, z: Tensor) -> Tensor:
    """`mean (2 - 2 cos(p, z))` over rows (Grill et al. 2020, BYOL, eq. 2), one direction, in [0, 4].

    The squared distance of normalised rows. The caller detaches `z` and adds the other direction.

    >>> byol_regression(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor(2.)
    """
    return 2 + 2 * negative_cosine(p, z)


@full_precision
def clip_rows(z: Tensor, mu: float) -> Tensor:
    """Rescales rows longer than sqrt(mu) to that norm (HaoChen et al. 2021, section 5).

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), mu=1)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    return z * (mu**0.5 / z.norm(dim=1, keepdim=True).clamp(min=mu**0.5))


@full_precision
def spectral_contrastive(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Spectral contrastive loss (HaoChen et al. 2021, eq. 6): `-2 mean_i a_i.b_i + mean_{i != j} (a_i.b_j)^2`.

    Nothing is normalised or clipped inside. The second mean is over the B(B - 1) pairs of different images.

    Args:
        z_a, z_b: `[B, d]` with B >= 2.

    >>> spectral_contrastive(torch.eye(3), torch.eye(3))
    tensor(-2.)
    """
    z_a, z_b = upcast(z_a), upcast(z_b)
    products = z_a @ z_b.T
    attraction = products.diagonal()
    pairs = len(z_a) * (len(z_a) - 1)
    return -2 * attraction.mean() + (products.square().sum() - attraction.square().sum()) / pairs


@full_precision
def alignment(z_a: Tensor, z_b: Tensor, alpha: float = 2) -> Tensor:
    """`mean ||a_i - b_i||^alpha` of L2-normalised rows (Wang & Isola 2020, eq. 5); in [0, 4] for alpha = 2.

    >>> alignment(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    tensor(2.)
    """
    a, b = F.normalize(upcast(torch.cat([z_a, z_b])), dim=1).split(len(z_a))
    distance = a - b
    return distance.norm(dim=1).pow(alpha).mean() if alpha != 2 else distance.square().sum(dim=1).mean()


@full_precision
def uniformity(z: Tensor, t: float = 2) -> Tensor:
    """`log mean_{i<j} exp(-t ||u_i - u_j||^2)` of L2-normalised rows (Wang & Isola 2020, eq. 6).

    The mean is over distinct pairs, so B >= 2. Minimised: 0 when collapsed; tables often print its negative.

    >>> uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))  # -t times the squared distance 4
    tensor(-8.)
    >>> uniformity(torch.ones(5, 3))  # collapsed
    tensor(0.)
    """
    squared = torch.pdist(F.normalize(upcast(z), dim=1)).square()
    return torch.logsumexp(-t * squared, dim=0) - math.log(len(squared))
