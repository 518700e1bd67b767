"""BYOL. Grill et al.: Bootstrap Your Own Latent (NeurIPS 2020).

| symbol | name | equation |
|---|---|---|
| f_theta, g_theta, q_theta | `encoder`, `projector`, `predictor` | section 3.1 |
| f_xi, g_xi | `target_encoder`, `target_projector` | section 3.1 |
| tau | `momentum` | xi <- tau xi + (1 - tau) theta, eq. 1 |
| L | `methods.maths.byol_regression`, both directions added | eq. 2 |

Decisions
- The sum of both directions of 2 - 2 cos, as in EasyFL's FedU and FedEMA. Orchestra's code minimises the mean cosine
  instead, whose gradient is four times smaller, so the two need different learning rates.
- The target follows the source after the optimiser's step, parameters only. In Orchestra's released BYOL the weights of
  the average are swapped (the target is almost the online network); this is not reproduced.
- The target neither travels nor stays: at each visit it starts at the received online networks.
"""

from collections.abc import Sequence

from torch import Tensor

from methods.base import Batch, Outputs, Projected
from methods.maths import byol_regression
from methods.networks import Encoder, mlp


class BYOL(Projected):
    """Each view's prediction regresses the other view's target embedding.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        projector: widths after the encoder's, the last being the embedding's.
        predictor: hidden width of the predictor, which maps embeddings to embeddings.
        head_norm: BatchNorm before every ReLU of projector and predictor.
        momentum: weight of the target's previous value in its moving average.
    """

    travels = ("encoder", "projector", "predictor")

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
        self.add_targets(momentum)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass with predictions, and the target pass without gradient."""
        out = super().forward(*views, extra=extra)
        predictions = self.each_view(self.predictor, out.embeddings)
        return out._replace(predictions=predictions, targets=self.each_view(self.embed_targets, views))

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The sum of the regressions in both directions."""
        (p_a, p_b), (t_a, t_b) = out.predictions, out.targets
        return byol_regression(p_a, t_b) + byol_regression(p_b, t_a)
