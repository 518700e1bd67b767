"""Losses that decorrelate the features of a batch: no image is compared with another one."""

import torch
from torch import Tensor

from methods.maths.precision import full_precision, upcast


@full_precision
def barlow_twins(z_a: Tensor, z_b: Tensor, weight: float = 5e-3, epsilon: float = 1e-5) -> Tensor:
    """Redundancy reduction (Zbontar et al. 2021, Barlow Twins, eqs. 1-2).

    `sum_i (1 - C_ii)^2 + weight * sum_{i != j} C_ij^2`.

    C is the `[d, d]` cross-correlation over the batch of view a's features and view b's; rows are not normalised.

    Args:
        z_a, z_b: `[B, d]` with B >= 2.
        weight: lambda, of the entries off the diagonal.
        epsilon: added to the variances (over B, not B - 1) that C is divided by, as by the BatchNorm of the released
            code; 0: eq. 2 itself, which is not defined for a constant feature.

    Returns:
        A scalar. A feature that is constant in a view has correlation 0 with all others, so it adds 1 on the diagonal
        and nothing off it; all of them constant give d, without a gradient. A feature whose deviation is far below
        sqrt(epsilon) is treated almost like a constant one.

    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])  # uncorrelated features
    >>> barlow_twins(z, z, epsilon=0)
    tensor(0.)
    >>> barlow_twins(torch.ones(4, 2), torch.ones(4, 2))  # constant features: d
    tensor(2.)
    """
    a, b = (_standardised(upcast(z), epsilon) for z in (z_a, z_b))
    correlation = a.T @ b / len(a)
    diagonal = correlation.diagonal()
    return (1 - diagonal).square().sum() + weight * (correlation - diagonal.diag()).square().sum()


@full_precision
def vicreg(
    z_a: Tensor,
    z_b: Tensor,
    invariance_weight: float = 25.0,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
    gamma: float = 1.0,
    epsilon: float = 1e-4,
    variant: str = "code",
) -> Tensor:
    """Variance-invariance-covariance regularisation (Bardes et al. 2022, VICReg, eqs. 1-6): three weighted terms.

    With Cov the covariance matrix of a view's features (over B - 1) and S_j = sqrt(Cov_jj + epsilon):
    invariance: `||a_i - b_i||^2`, mean over images. variance: `max(0, gamma - S_j)`, mean over features.
    covariance: `sum_{i != j} Cov_ij^2 / d`. Nothing is normalised.

    Args:
        z_a, z_b: `[B, d]` with B >= 2.
        invariance_weight, variance_weight, covariance_weight: lambda, mu, nu of eq. 6.
        gamma: deviation below which a feature is pushed apart. epsilon: > 0, keeps the root's gradient finite.
        variant: "paper": variance and covariance are summed over the two views. "code": the authors' released form,
            with the invariance divided by d and the mean of the views' variance terms.

    Returns:
        A scalar. Equal embeddings of all images have no invariance and no covariance term; the variance term of a view
        is then gamma - sqrt(epsilon).

    >>> alike = torch.ones(4, 2)
    >>> vicreg(alike, alike, variance_weight=1, epsilon=1e-4)  # gamma - sqrt(epsilon)
    tensor(0.9900)
    """
    z = torch.stack([upcast(z_a), upcast(z_b)])  # both views at once: half the kernels on a GPU
    images, features = z.shape[1:]
    invariance = (z[0] - z[1]).square().sum(dim=1).mean()
    centred = z - z.mean(dim=1, keepdim=True)
    covariance = centred.transpose(1, 2) @ centred / (images - 1)
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    variance = (gamma - (diagonal + epsilon).sqrt()).clamp(min=0).mean(dim=1).sum()
    redundancy = (covariance - diagonal.diag_embed()).square().sum() / features
    if variant == "code":
        invariance, variance = invariance / features, variance / 2
    return invariance_weight * invariance + variance_weight * variance + covariance_weight * redundancy


KNOTS, RANGE = 17, 3.0
"""Points on [0, RANGE] at which characteristic functions are compared, both ends included."""


@full_precision
def sketched_gaussianity(z: Tensor, directions: Tensor) -> Tensor:
    """SIGReg (Balestriero & LeCun 2025, LeJEPA): how far embeddings are from a standard normal distribution.

    The mean over directions a of Epps and Pulley's statistic `B int |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt`, where
    phi is the mean of `exp(i t z.a)` over the batch; the integral is by the trapezoidal rule over `[-3, 3]`.

    Args:
        z: `[B, d]`. directions: unit vectors, `[d, K]`.

    Returns:
        A scalar of at least 0.

    >>> z = torch.zeros(4, 2)  # phi is 1 everywhere
    >>> round(float(sketched_gaussianity(z, torch.eye(2))), 3)
    1.608
    """
    t = torch.linspace(0, RANGE, KNOTS, device=z.device, dtype=upcast(z).dtype)
    normal = torch.exp(-t.square() / 2)
    weights = torch.full_like(t, 2 * RANGE / (KNOTS - 1))
    weights[0] /= 2  # one by one: an index by a list would be copied to a GPU in each step
    weights[-1] /= 2
    angles = (upcast(z) @ directions.to(t.dtype)).unsqueeze(-1) * t
    distance = (angles.cos().mean(dim=0) - normal).square() + angles.sin().mean(dim=0).square()
    return len(z) * (distance @ (weights * normal)).mean()


def _standardised(z: Tensor, epsilon: float) -> Tensor:
    """Features `[B, d]` of mean 0 and variance v / (v + epsilon), v being their own over the batch."""
    centred = z - z.mean(dim=0)
    return centred / (centred.square().mean(dim=0) + epsilon).sqrt()
