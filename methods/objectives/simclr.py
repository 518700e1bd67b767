"""SimCLR. Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| tau | `temperature` | eq. 1, `methods.maths.nt_xent` |
| g | `projector` | section 2.1 |
"""

from typing import Any

from torch import Tensor

from methods.base import Batch, MethodError, Outputs, Projected
from methods.maths import nt_xent
from methods.networks import Encoder


class SimCLR(Projected):
    """NT-Xent between two views, all 2B embeddings as anchors.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        temperature: divides the cosines.
    """

    contrastive = True

    def __init__(self, encoder: Encoder, *, temperature: float = 0.5, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        if temperature <= 0:
            raise MethodError(f"objective.temperature={temperature}: give a number above 0")
        self.temperature = temperature

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """NT-Xent of the two embeddings."""
        return nt_xent(out.z[0], out.z[1], self.temperature)
