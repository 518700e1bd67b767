"""Releases under differential privacy."""

import torch
from torch import Tensor


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
