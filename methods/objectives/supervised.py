"""Supervised reference: cross-entropy on labels, which no other objective receives.

The evaluation discards the classifier, as with the heads of every objective. Both views are classified, so that images,
views and compute are those of the self-supervised rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, Objective, Outputs, check_number
from methods.maths import upcast
from methods.networks import Encoder


class Supervised(Objective):
    """Cross-entropy of a linear classifier on the representation, the mean over the views.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        num_classes: classes of the dataset.
        num_views: 2, or 1, where a last batch of one image is trained on, as in FedDecorr's code.
    """

    travels = ("encoder", "classifier")
    labels = True

    def __init__(self, encoder: Encoder, *, num_classes: int, num_views: int = 2) -> None:
        super().__init__(encoder)
        self.views = ("augment",) * check_number("objective.num_views", num_views, at_least=1, at_most=2)
        self.min_batch_size = num_views
        self.classifier = nn.Linear(encoder.dim, num_classes)
        self.width = num_classes

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Representations, and logits `[B, num_classes]` in the place of embeddings."""
        h = self.encoder(images)
        return h, self.classifier(h)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        assert batch.labels is not None
        return F.cross_entropy(upcast(torch.cat(out.embeddings)), batch.labels.repeat(len(out.embeddings)))
