"""Terms of federated methods for a local loss, in the forms of their papers and of their released codes."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.maths.losses import nt_xent
from methods.maths.precision import full_precision, upcast


@full_precision
def correlation(z: Tensor) -> Tensor:
    """`Z^T Z / n` of `[n, d]` rows: the uncentred correlation matrix `[d, d]` (Jing et al. 2024, FedSC, section 4).

    >>> correlation(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """
    return upcast(z).T @ upcast(z) / len(z)


@full_precision
def scaled(z: Tensor, scale: Tensor) -> Tensor:
    """Rows `[B, d]` stretched by `scale`: `[d]` factors along the axes, or a symmetric matrix `[d, d]`.

    >>> scaled(torch.ones(1, 3), torch.tensor([1.0, 5.0, 1.0]))
    tensor([[1., 5., 1.]])
    """
    return upcast(z) * scale if scale.dim() == 1 else upcast(z) @ scale


@full_precision
def dimension_scaling(z: Tensor, scale: Tensor, variant: str = "paper") -> Tensor:
    """SSD's dimension-scaling regulariser (Fang et al. 2025): pulls `z` towards a stretched copy of itself.

    Args:
        z: `[B, d]`; pass unit rows to follow the paper.
        scale: `[d]` factors, alpha on the client's own dimensions and 1 elsewhere; or `[d, d]`, a symmetric matrix
            that stretches along the axes of a rotated basis.
        variant: "paper": mean over the batch of `||z - sg(z * scale)||^2`; "code": the authors' released form
            `||Z - P||_F / B` with `P = sg(normalised rows of Z * scale)`, not squared.

    >>> z = torch.tensor([[0.6, 0.8]])
    >>> dimension_scaling(z, torch.tensor([1.0, 2.0]))  # (0.8 - 1.6)^2
    tensor(0.6400)
    >>> dimension_scaling(z, torch.ones(2), variant="code")  # alpha = 1: z is its own target
    tensor(0.)
    """
    z = upcast(z)
    stretched = scaled(z, scale).detach()
    if variant == "paper":
        return (z - stretched).square().sum(dim=1).mean()
    squared = (z - F.normalize(stretched, dim=1)).square().sum()
    # where z and the target differ only by rounding (scale 1), the root's gradient would be noise of norm 1 / B
    rounding = 1e-6
    return torch.where(squared > rounding, squared.clamp(min=rounding).sqrt(), 0 * squared) / len(z)


@full_precision
def projector_distillation(h: Tensor, z: Tensor, variant: str = "paper") -> Tensor:
    """SSD's projector distillation (Fang et al. 2025): a divergence between representation and embedding, batch mean.

    Args:
        h: representations `[B, d]`, z: embeddings `[B, d]` of the same width; neither is normalised or detached.
        variant: "paper": `KL(softmax h || softmax z)`; "code": `KL(softmax(z / 0.5) || softmax(h / 0.5))`.

    >>> h = torch.tensor([[1.0, 2.0, 3.0]])
    >>> projector_distillation(h, h)
    tensor(0.)
    >>> projector_distillation(h, h + 7).round(decimals=4)  # a constant added to a row has no effect
    tensor(0.)
    """
    if variant == "paper":
        target, logits = upcast(h), upcast(z)
    else:
        target, logits = upcast(z) / 0.5, upcast(h) / 0.5
    return F.kl_div(logits.log_softmax(dim=1), target.log_softmax(dim=1), reduction="batchmean", log_target=True)


@full_precision
def relational(z_a: Tensor, z_b: Tensor, z_ref: Tensor, temperature: float = 0.1, variant: str = "paper") -> Tensor:
    """FedX's relational loss (Han et al. 2022, eqs. 6-7, and 10-11 with the global model's `z_ref`), batch mean.

    Compares the similarities of an image's two views to other images. Rows are L2-normalised inside.

    Args:
        z_a, z_b: `[B, d]`, two views of the same images, row by row. z_ref: `[R, d]`, other images.
        temperature: divides the cosines before their softmax r over the R images; > 0.
        variant: with m = (r_a + r_b) / 2, "paper": the Jensen-Shannon divergence (KL(r_a || m) + KL(r_b || m)) / 2, in
            [0, log 2]; "code": the authors' released form (KL(m || r_a) + KL(m || r_b)) / 2, which has no upper bound.

    >>> a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> relational(a, a, torch.eye(2)).round(decimals=4)
    tensor(0.)
    >>> relational(a, b, torch.eye(2), temperature=1e-3)  # unlike views: log 2
    tensor(0.6931)
    """
    reference = F.normalize(upcast(z_ref), dim=1)
    z = F.normalize(upcast(torch.cat([z_a, z_b])), dim=1)  # both views at once: half the kernels on a GPU
    a, b = (z @ reference.T / temperature).log_softmax(dim=1).split(len(z_a))
    m = torch.logaddexp(a, b) - math.log(2)
    divergence = m.exp() * (2 * m - a - b) if variant == "code" else a.exp() * (a - m) + b.exp() * (b - m)
    return divergence.sum(dim=1).mean() / 2


@full_precision
def global_contrastive(z_local: Tensor, z_global: Tensor, temperature: float = 0.1, variant: str = "paper") -> Tensor:
    """FedX's global contrastive loss (Han et al. 2022, eq. 9), batch mean; positives are the global model's embeddings.

    Args:
        z_local: `[B, d]`, one view by the local model. z_global: `[B, d]`, the other view by the global model; the
            caller detaches it. Rows are L2-normalised inside.
        temperature: divides the cosines; > 0.
        variant: "paper": anchors are local rows, negatives are the other local and the other global rows. "code": the
            authors' released form, `nt_xent`, in which global rows are also anchors.

    >>> alike = torch.ones(4, 8)
    >>> global_contrastive(alike, alike)  # log(2 * 4 - 1)
    tensor(1.9459)
    """
    if variant == "code":
        return nt_xent(z_local, z_global, temperature)
    a, b = F.normalize(upcast(z_local), dim=1), F.normalize(upcast(z_global), dim=1)
    diagonal = torch.eye(len(a), dtype=torch.bool, device=a.device)
    local = (a @ a.T).masked_fill(diagonal, float("-inf"))
    logits = torch.cat([a @ b.T, local], dim=1) / temperature
    return F.cross_entropy(logits, torch.arange(len(a), device=a.device))


@full_precision
def decorrelation(h: Tensor, variant: str = "code") -> Tensor:
    """FedDecorr's regulariser (Shi et al. 2023), a penalty on correlations between the features of a batch.

    With rho the `[d, d]` correlation matrix over the batch (unbiased variances):

    Args:
        h: `[B, d]` with B, d >= 2.
        variant: "code": the authors' released form `mean_{i != j} C_ij^2 / B` of C = X^T X = (B - 1) rho, which is
            (B - 1)^2 / B times the mean squared correlation: about 1 for independent features whatever B, (B - 1)^2 / B
            for equal ones; "paper": ||rho||_F^2 / d^2, the diagonal included, in [1 / d, 1].

    >>> h = torch.tensor([[1.0], [2.0], [4.0]]).expand(3, 2)  # equal features
    >>> decorrelation(h)  # (3 - 1)^2 / 3
    tensor(1.3333)
    >>> decorrelation(h, variant="paper")
    tensor(1.)
    """
    h = upcast(h)
    centred = h - h.mean(dim=0)
    x = centred / (centred.square().sum(dim=0) / (len(h) - 1) + 1e-8).sqrt()
    squared, features = (x.T @ x).square(), h.shape[1]
    if variant == "paper":
        return squared.sum() / ((len(h) - 1) * features) ** 2
    return (squared.sum() - squared.diagonal().sum()) / (features * (features - 1)) / len(h)


@full_precision
def sliced_wasserstein(z: Tensor, samples: Tensor, tangents: Tensor, projections: Tensor) -> Tensor:
    """The squared sliced 2-Wasserstein distance of two sets of points on a sphere, in tangent spaces (FedU2's FUR).

    The sphere's logarithm log_p(x) = theta / sin(theta) (x - cos(theta) p) maps both sets to the tangent space of each
    tangent point p. Along a direction, the distance is that of the sorted coordinates. The result is the mean over
    points, directions and tangent spaces.

    Args:
        z, samples: `[B, d]`, L2-normalised inside. tangents: `[T, d]`, likewise.
        projections: `[T, S, d]`, directions in each tangent space, not normalised inside.

    >>> z = torch.nn.functional.normalize(torch.randn(6, 3), dim=1)
    >>> tangents, projections = torch.eye(3)[:1], torch.randn(1, 4, 3)
    >>> sliced_wasserstein(z, z.flip(0), tangents, projections)  # the same points in another order
    tensor(0.)
    """
    z, samples, tangents = (F.normalize(upcast(x), dim=1) for x in (z, samples, tangents))
    coordinates = (_tangent_coordinates(x, tangents, projections).sort(dim=1).values for x in (z, samples))
    return torch.sub(*coordinates).square().mean()


def _tangent_coordinates(x: Tensor, tangents: Tensor, projections: Tensor) -> Tensor:
    """`[T, B, S]`: the logarithm of each row of `x` at each tangent point, along that point's directions."""
    cosine = (tangents @ x.T).clamp(-1 + 1e-6, 1 - 1e-6)  # at cosine 1 and -1 the angle has no gradient
    angle = cosine.arccos()
    along = torch.einsum("bd,tsd->tbs", x, projections)
    foot = torch.einsum("td,tsd->ts", tangents, projections)[:, None]
    return (angle / angle.sin())[..., None] * (along - cosine[..., None] * foot)
