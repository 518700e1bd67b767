"""Orchestra's local loss: one assignment of two views to global clusters, and the turn of a third (Lubana et al. 2022).

| symbol | name | equation |
|---|---|---|
| f_O, f_T | encoder and projector; `target_encoder` and `target_projector`, their moving average | section 4 |
| mu^G, G | `centroids`, `clusters`; given by `methods.orchestra` | Algorithm 2 |
| P(x) = softmax(mu^G . n(z) / tau) | `assigned` | section 4 |
| L_cluster = CE(P_T(x1), P_O(x2)) | `loss` | Algorithm 1 |
| L_deg, CE of the quarter turns of a third view | `rotation_weight` | Algorithm 1 |

Decisions
- Those of `methods.orchestra`, without which the centroids would stay 0: no other method takes this objective.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from methods.base import Batch, Objective, Outputs, check_number, choose
from methods.maths import cosines
from methods.networks import Encoder
from methods.objectives.rotation import Rotation


class Clustering(Rotation):
    """Two views of an image shall be assigned to the same global centroids, and a third shall tell how it was turned.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`; embeddings are BatchNorm's, as in the code.
        clusters: G, global centroids.
        bank: rows of the memory of target embeddings.
        temperature: tau of the assignments.
        momentum: weight of the target's own past in its moving average.
        rotation_weight: of L_deg; 0 leaves the third view out.
        target: whether there are target networks; without, the online ones give the goals.
        target_view: "augment" or "plain".
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
        last_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, last_norm=last_norm, **kwargs)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.momentum = check_number("objective.momentum", momentum, at_least=0, at_most=1)
        self.rotation_weight = check_number("objective.rotation_weight", rotation_weight, at_least=0)
        turned = ("rotate",) if rotation_weight else ()
        self.views = (choose("objective.target_view", target_view, "augment", "plain"), "augment", *turned)
        self.travels = ("encoder", "projector", *(("head",) if rotation_weight else ()))
        if target:
            self.target_encoder = deepcopy(encoder).requires_grad_(False)
            self.target_projector = deepcopy(self.projector).requires_grad_(False)
            self.ema = {"target_encoder": "encoder", "target_projector": "projector"}
            self.travels = (*self.travels, *self.ema)
        self.add_queue("bank", check_number("objective.bank", bank, at_least=2), self.width)
        self.register_buffer(
            "centroids", torch.zeros(check_number("objective.clusters", clusters, at_least=2), self.width)
        )

    @torch.no_grad()
    def goals(self, images: Tensor) -> Tensor:
        """The target's unit embeddings `[B, width]`; the online networks' where there is no target."""
        if not self.ema:
            return normalize(self.embed(images)[1].float(), dim=1)
        return normalize(self.target_projector(self.target_encoder(images)).float(), dim=1)

    def forward(self, *views: Tensor, extra: Any = ()) -> Outputs:
        """The online pass over all views but the first, which is the target's."""
        out = Objective.forward(self, *views[1:], extra=extra)
        goals = self.goals(views[0])
        turned = tuple(self.head(z) for z in out.z[1:2])
        return out._replace(t=(goals,), p=turned, push={"bank": goals})

    def assigned(self, z: Tensor) -> Tensor:
        """Logits `[B, G]` of an assignment to the global centroids."""
        return cosines(z, self.centroids) / self.temperature

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Cross-entropy of the target's and the online assignment, and of the turns."""
        total = cross_entropy(self.assigned(out.z[0]), self.assigned(out.t[0]).softmax(dim=1))
        return total + self.rotation_weight * super().loss(out, batch) if self.rotation_weight else total
