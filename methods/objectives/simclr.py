"""SimCLR. Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| tau | `temperature` | eq. 1, `methods.maths.nt_xent` |
| g | `projector` | section 2.1 |
"""

from collections.abc import Sequence

from torch import Tensor

from methods.base import Batch, Objective, Outputs
from methods.maths import nt_xent
from methods.networks import Encoder, mlp


class SimCLR(Objective):
    """NT-Xent between two views, all 2B embeddings as anchors.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        projector: widths after the encoder's, the last being the embedding's.
        head_norm: BatchNorm in the projector.
        temperature: divides the cosines.
    """

    contrastive = True

    def __init__(
        self,
        encoder: Encoder,
        *,
        projector: Sequence[int] = (512, 256),
        head_norm: bool = True,
        temperature: float = 0.5,
    ) -> None:
        super().__init__(encoder)
        self.projector = mlp((encoder.dim, *projector), norm=head_norm)
        self.temperature = temperature

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """NT-Xent of the two embeddings."""
        return nt_xent(out.z[0], out.z[1], self.temperature)
