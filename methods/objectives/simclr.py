"""SimCLR. Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| tau | `temperature` | eq. 1, `methods.maths.nt_xent` |
| g | `projector` | section 2.1 |

Decisions
- `form: full` is the paper's loss and the default. Released codes of the field use three other forms under the name of
  SimCLR, see `methods.maths.nt_xent`. Value and gradient differ, so the setting of each paper sets its form.
"""

from typing import Any

from torch import Tensor

from methods.base import Batch, Outputs, Projected, check_number, choose
from methods.maths import nt_xent
from methods.networks import Encoder


class SimCLR(Projected):
    """NT-Xent between two views.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        temperature: divides the cosines.
        form: "full", "one-way", "zeroed" or "itself".
    """

    contrastive = True

    def __init__(self, encoder: Encoder, *, temperature: float = 0.5, form: str = "full", **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.form = choose("objective.form", form, "full", "one-way", "zeroed", "itself")

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """NT-Xent of the two embeddings."""
        z_a, z_b = out.embeddings
        return nt_xent(z_a, z_b, self.temperature, self.form)
