"""Orchestra's local loss: cluster assignments of two views, and rotation of a third (Lubana et al. 2022).

| symbol | name | equation |
|---|---|---|
| f_O, f_T | encoder and projector; `target_encoder` and `target_projector`, their moving average | section 4 |
| mu^G, G | `centroids`, `clusters`; given by `methods.orchestra` | Algorithm 2 |
| P(x) = softmax(mu^G . n(z) / tau) | `assignment_logits` | section 4 |
| L_cluster = CE(P_T(x1), P_O(x2)) | `loss` | Algorithm 1 |
| L_deg, CE of the quarter turns of a third view | `rotation_weight` | Algorithm 1 |

Decisions
- See `methods.orchestra`. No other method accepts this objective: without Orchestra's server the centroids stay 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from methods.base import Batch, Objective, Outputs, check_number, choose
from methods.maths import cosines, upcast
from methods.networks import Encoder
from methods.objectives.rotation import Rotation


class Clustering(Rotation):
    """Equal assignments of two views to global centroids, and classification of a third view's rotation.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`; embeddings are BatchNorm's, as in the code.
        clusters: G, global centroids.
        bank: rows of the queue of target embeddings.
        temperature: tau of the assignments.
        momentum: weight of the target's previous value in its moving average.
        rotation_weight: weight of L_deg; 0: without the third view.
        target: whether there are target networks; False: the online networks provide the target embeddings.
        target_view: "augment" or "plain".
        target_first: whether the target follows before each batch, not after its step.
    """

    only_for = "Orchestra"
    queues = ("bank",)
    bank: Tensor
    bank_filled: Tensor
    centroids: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        clusters: int = 128,
        bank: int = 128,
        temperature: float = 0.1,
        momentum: float = 0.99,
        rotation_weight: float = 1.0,
        target: bool = True,
        target_view: str = "augment",
        target_first: bool = False,
        last_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, last_norm=last_norm, **kwargs)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.rotation_weight = check_number("objective.rotation_weight", rotation_weight, at_least=0)
        self.target_first = target_first
        rotated = ("rotate",) if rotation_weight else ()
        self.views = (choose("objective.target_view", target_view, "augment", "plain"), "augment", *rotated)
        self.travels = ("encoder", "projector", *(("head",) if rotation_weight else ()))
        if target:
            self.add_targets(momentum)
            self.travels = (*self.travels, *self.ema)
        self.add_queue("bank", check_number("objective.bank", bank, at_least=2), self.width)
        self.register_buffer(
            "centroids", torch.zeros(check_number("objective.clusters", clusters, at_least=2), self.width)
        )

    @torch.no_grad()
    def target_embeddings(self, images: Tensor) -> Tensor:
        """Unit embeddings `[B, width]` by the target networks, or by the online networks without a target."""
        rows = self.embed_targets(images) if self.ema else self.embed(images)[1]
        return normalize(upcast(rows), dim=1)

    def forward(self, *views: Tensor, extra: Any = ()) -> Outputs:
        """The target pass over the first view, and the online pass over the others.

        Separate views also pass the online networks once with the first view, as in the code: nothing uses the result,
        but running statistics move.
        """
        if self.target_first and self.training:
            super().move_targets()
        if self.separate_views:
            with torch.no_grad():
                self.embed(views[0])
        out = Objective.forward(self, *views[1:], extra=extra)
        targets = self.target_embeddings(views[0])
        turns = tuple(self.head(z) for z in out.embeddings[1:2])
        return out._replace(targets=(targets,), predictions=turns, push={"bank": targets})

    def move_targets(self) -> None:
        """After a step, unless the target has followed before it."""
        if not self.target_first:
            super().move_targets()

    def assignment_logits(self, z: Tensor) -> Tensor:
        """Logits `[B, G]` of the assignment to the global centroids."""
        return cosines(z, self.centroids) / self.temperature

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Cross-entropy of target and online assignment, plus that of the turns."""
        targets = self.assignment_logits(out.targets[0]).softmax(dim=1)
        total = cross_entropy(self.assignment_logits(out.embeddings[0]), targets)
        return total + self.rotation_weight * super().loss(out, batch) if self.rotation_weight else total
