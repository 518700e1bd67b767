"""Spectral contrastive loss. HaoChen et al.: Provable Guarantees for Self-Supervised Deep Learning (NeurIPS 2021).

| symbol | name | equation |
|---|---|---|
| mu | `mu`, rows are clipped to norm sqrt(mu) | section 5 |
| L | `methods.maths.spectral_contrastive`, divided by mu | eq. 6 |
| R | `methods.maths.correlation` of both views | FedSC (Jing et al. 2024), section 4 |

Decisions
- `negatives: pairs` is the authors' loss: pairs of different images across the two views. `negatives: correlation` is
  FedSC's batch form, ||R||_F^2 over both views, which includes pairs of an image with itself and is not divided by mu.
- The default of mu is 10, our choice for embeddings of some hundred dimensions. The authors have 1 (1,000 dimensions,
  CIFAR), FedSC 4.
"""

from typing import Any

import torch
from torch import Tensor

from methods.base import Batch, Outputs, Projected, check_number, choose
from methods.maths import clip_rows, correlation, spectral_contrastive, upcast
from methods.networks import Encoder


class Spectral(Projected):
    """Maximises inner products of an image's views and minimises squared inner products of different images.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        mu: largest squared norm of an embedding.
        negatives: "pairs" or "correlation".
    """

    contrastive = True

    def __init__(self, encoder: Encoder, *, mu: float = 10.0, negatives: str = "pairs", **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.mu = check_number("objective.mu", mu, above=0)
        self.negatives = choose("objective.negatives", negatives, "pairs", "correlation")
        self.needs_two = negatives == "pairs"

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Representations, and embeddings clipped to norm sqrt(mu)."""
        h, z = super().embed(images)
        return h, clip_rows(upcast(z), self.mu)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The batch loss in the chosen form."""
        z_a, z_b = out.embeddings
        if self.negatives == "pairs":
            return spectral_contrastive(z_a, z_b) / self.mu
        return -2 * (z_a * z_b).sum(dim=1).mean() + correlation(torch.cat(out.embeddings)).square().sum()
