"""Alignment and uniformity. Wang, Isola: Understanding Contrastive Representation Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| L_align | `methods.maths.alignment`, alpha = 2 | eq. 5 |
| L_uniform | `methods.maths.uniformity`, t = 2, the mean of both views | eq. 6 |
| beta | `uniform_weight`, 1 in SSD's FedAlignUniform | SSD (Fang et al. 2025), section 3 |
"""

from collections.abc import Sequence

from torch import Tensor

from methods.base import Batch, Objective, Outputs
from methods.maths import alignment, uniformity
from methods.networks import Encoder, mlp


class AlignUniform(Objective):
    """Views of an image come together, images spread over the sphere.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        projector: widths after the encoder's, the last being the embedding's.
        head_norm: BatchNorm in the projector.
        uniform_weight: weight of the uniformity term.
    """

    contrastive = True

    def __init__(
        self,
        encoder: Encoder,
        *,
        projector: Sequence[int] = (512, 256),
        head_norm: bool = True,
        uniform_weight: float = 1.0,
    ) -> None:
        super().__init__(encoder)
        self.projector = mlp((encoder.dim, *projector), norm=head_norm)
        self.uniform_weight = uniform_weight

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Alignment plus the weighted mean uniformity of the two views."""
        z_a, z_b = out.z
        return alignment(z_a, z_b) + self.uniform_weight * (uniformity(z_a) + uniformity(z_b)) / 2
