"""Releases under differential privacy."""

import math

import torch
from torch import Tensor
from torch.special import log_ndtr


def gaussian_mechanism(matrix: Tensor, clip: float, sigma: float, generator: torch.Generator) -> Tensor:
    """A matrix with independent Gaussian noise on every entry, scaled down first to Euclidean norm `clip` at most.

    The Gaussian mechanism of Dwork and Roth 2014, appendix A: what it costs follows from sigma over the sensitivity of
    the clipped matrix, which is the caller's to know and `clip` bounds by 2 clip. Floating-point noise is not ideal
    noise: this protects in a simulation, a deployment needs a hardened sampler.

    Args:
        matrix: of any shape. clip: > 0; a matrix within it is left alone.
        sigma: standard deviation of the noise; 0: none. generator: on the CPU, so that the noise is the same anywhere.
    """
    norm = matrix.float().norm()
    clipped = matrix * (clip / norm.clamp(min=1e-12)).clamp(max=1)
    if not sigma:
        return clipped
    return clipped + sigma * torch.randn(matrix.shape, generator=generator).to(matrix)


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The noise multiplier, sigma over sensitivity, at which one Gaussian mechanism is just (epsilon, delta) private.

    The least sigma with Phi(1 / 2 sigma - epsilon sigma) - e^epsilon Phi(-1 / 2 sigma - epsilon sigma) <= delta (Balle
    and Wang 2018, Theorem 8), which is exact where the classical sqrt(2 log(1.25 / delta)) / epsilon is a bound that
    holds for epsilon below 1 only. Found by bisection, from above.

    Args:
        epsilon: >= 0. delta: in (0, 1).
    """

    def spent(sigma: float) -> float:
        above, below = log_ndtr(torch.tensor([0.5, -0.5], dtype=torch.float64) / sigma - epsilon * sigma).tolist()
        return math.exp(above) - math.exp(epsilon + below)

    low = high = 1.0
    while spent(low) <= delta:
        low /= 2
    while spent(high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high
