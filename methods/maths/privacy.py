"""Gaussian mechanism of differential privacy: noise, and its standard deviation for an epsilon."""

import math

import torch
from torch import Tensor
from torch.special import log_ndtr

from methods.maths.precision import upcast


def gaussian_mechanism(matrix: Tensor, clip: float, sigma: float, generator: torch.Generator) -> Tensor:
    """Clips a matrix to Euclidean norm `clip` and adds independent Gaussian noise to every entry.

    The Gaussian mechanism of Dwork and Roth 2014, appendix A. Its privacy cost follows from sigma over the sensitivity
    of the clipped matrix, which the caller must derive and which is at most 2 clip. Floating-point noise is not ideal:
    it is enough for a simulation, while a deployment needs a hardened sampler.

    Args:
        matrix: of any shape. clip: > 0, the largest norm; a matrix of smaller norm is not scaled.
        sigma: standard deviation of the noise; 0: no noise.
        generator: on the CPU, so that the noise is the same on every device.

    >>> gaussian_mechanism(torch.tensor([3.0, 4.0]), clip=1, sigma=0, generator=torch.Generator())  # clipped only
    tensor([0.6000, 0.8000])
    """
    norm = upcast(matrix).norm()
    clipped = matrix * (clip / norm.clamp(min=1e-12)).clamp(max=1)
    if not sigma:
        return clipped
    return clipped + sigma * torch.randn(matrix.shape, generator=generator).to(matrix)


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier, sigma over sensitivity, of an (epsilon, delta) private Gaussian mechanism.

    The smallest sigma with Phi(1 / 2 sigma - epsilon sigma) - e^epsilon Phi(-1 / 2 sigma - epsilon sigma) <= delta
    (Balle and Wang 2018, Theorem 8). This is exact; the classical sqrt(2 log(1.25 / delta)) / epsilon is a bound and
    holds only for epsilon below 1. Computed by bisection, from above.

    Args:
        epsilon: >= 0. delta: in (0, 1).

    >>> round(gaussian_sigma(epsilon=1, delta=1e-5), 3)
    3.731
    """

    def delta_at(sigma: float) -> float:
        above, below = log_ndtr(torch.tensor([0.5, -0.5], dtype=torch.float64) / sigma - epsilon * sigma).tolist()
        return math.exp(above) - math.exp(epsilon + below)

    low = high = 1.0
    while delta_at(low) <= delta:
        low /= 2
    while delta_at(high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
