"""BYOL. Grill et al.: Bootstrap Your Own Latent (NeurIPS 2020).

| symbol | name | equation |
|---|---|---|
| f_theta, g_theta, q_theta | `encoder`, `projector`, `predictor` | section 3.1 |
| f_xi, g_xi | `target_encoder`, `target_projector` | section 3.1 |
| tau | `momentum` | xi <- tau xi + (1 - tau) theta, eq. 1 |
| L | `methods.maths.byol_regression`, both directions added | eq. 2 |

Decisions
- The sum of both directions of 2 - 2 cos, as EasyFL's FedU and FedEMA have it. Orchestra's code minimises the mean
  cosine instead, whose gradient is four times smaller: learning rates do not carry over between the two.
- The target follows the source after the optimiser's step, parameters only. Orchestra's released BYOL has the average
  the wrong way round (the target is almost the online network); it is not reproduced here.
- The target neither travels nor stays: it starts at the received online networks at each visit.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor

from methods.base import Batch, Outputs, Projected, check_number
from methods.maths import byol_regression
from methods.networks import Encoder, mlp


class BYOL(Projected):
    """Each view's prediction regresses the other view's target embedding.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        projector: widths after the encoder's, the last being the embedding's.
        predictor: hidden width of the predictor, which maps embeddings to embeddings.
        head_norm: BatchNorm before every ReLU of projector and predictor.
        momentum: weight of the target's own past in its moving average.
    """

    travels = ("encoder", "projector", "predictor")
    ema: Mapping[str, str] = {"target_encoder": "encoder", "target_projector": "projector"}

    def __init__(
        self,
        encoder: Encoder,
        *,
        projector: Sequence[int] = (512, 256),
        predictor: int = 512,
        head_norm: bool = True,
        momentum: float = 0.99,
    ) -> None:
        super().__init__(encoder, projector=projector, head_norm=head_norm)
        self.predictor = mlp((self.width, predictor, self.width), norm=head_norm)
        self.target_encoder = deepcopy(encoder).requires_grad_(False)
        self.target_projector = deepcopy(self.projector).requires_grad_(False)
        self.momentum = check_number("objective.momentum", momentum, at_least=0, at_most=1)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass with predictions, and the target pass without gradient."""
        out = super().forward(*views, extra=extra)
        sizes = [len(view) for view in views]
        with torch.no_grad():
            targets = self.target_projector(self.target_encoder(torch.cat(views))).split(sizes)
        return out._replace(p=self.predictor(torch.cat(out.z)).split(sizes), t=targets)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The regression in both directions, added."""
        return byol_regression(out.p[0], out.t[1]) + byol_regression(out.p[1], out.t[0])
