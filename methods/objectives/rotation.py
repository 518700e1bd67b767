"""Rotation prediction. Gidaris, Singh, Komodakis: Unsupervised Representation Learning by Predicting Image Rotations
(ICLR 2018); RotPred of the federated tables (Orchestra, Lubana et al. 2022).

| symbol | name | equation |
|---|---|---|
| y | `batch.turns`, quarter turns | section 3.2 |
| F^y | `head`, four classes over the embedding | eq. 2 |

Decisions
- One random turn for each image, as in Orchestra's code; the paper has all four turns of each image in a batch.
- The classifier is linear, on the projector's output, as in Orchestra's code.
- Images are augmented before they are turned. Orchestra's RotPred turns them without augmentation: for it, set the
  recipe's probabilities to 0.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from methods.base import Batch, Outputs, Projected
from methods.maths import upcast
from methods.networks import Encoder


class Rotation(Projected):
    """Classification of an image's turn among four quarter turns.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
    """

    travels: tuple[str, ...] = ("encoder", "projector", "head")
    views: tuple[str, ...] = ("rotate",)

    def __init__(self, encoder: Encoder, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.head = nn.Linear(self.width, 4)

    def forward(self, *views: Tensor, extra: Any = ()) -> Outputs:
        """The online pass with logits `[B, 4]` as predictions."""
        out = super().forward(*views, extra=extra)
        return out._replace(predictions=tuple(self.head(z) for z in out.embeddings))

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Cross-entropy of the turns; log 4 at a uniform prediction."""
        assert batch.turns is not None
        return cross_entropy(upcast(out.predictions[0]), batch.turns)
