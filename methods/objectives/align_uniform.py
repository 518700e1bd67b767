"""Alignment and uniformity. Wang, Isola: Understanding Contrastive Representation Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| L_align | `methods.maths.alignment`, alpha = 2 | eq. 5 |
| L_uniform | `methods.maths.uniformity`, t = 2, the mean of both views | eq. 6 |
| beta | `uniform_weight`, 1 in SSD's FedAlignUniform | SSD (Fang et al. 2025), section 3 |
"""

from typing import Any

from torch import Tensor

from methods.base import Batch, Outputs, Projected
from methods.maths import alignment, uniformity
from methods.networks import Encoder


class AlignUniform(Projected):
    """Alignment of an image's views plus uniformity of the images on the sphere.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        uniform_weight: weight of the uniformity term.
    """

    contrastive = True
    needs_two = True

    def __init__(self, encoder: Encoder, *, uniform_weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.uniform_weight = uniform_weight

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Alignment plus the weighted mean uniformity of the two views."""
        z_a, z_b = out.embeddings
        return alignment(z_a, z_b) + self.uniform_weight * (uniformity(z_a) + uniformity(z_b)) / 2
