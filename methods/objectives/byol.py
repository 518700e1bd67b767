"""BYOL. Grill et al.: Bootstrap Your Own Latent (NeurIPS 2020).

| symbol | name | equation |
|---|---|---|
| f_theta, g_theta, q_theta | `encoder`, `projector`, `predictor` | section 3.1 |
| f_xi, g_xi | `target_encoder`, `target_projector` | section 3.1 |
| tau, tau_base | `momentum`, rising to `momentum_end` | xi <- tau xi + (1 - tau) theta, eq. 1; section 3.2 |
| L | `methods.maths.byol_regression`, both directions added | eq. 2 |

Decisions
- The sum of both directions of 2 - 2 cos, as in EasyFL's FedU and FedEMA. Orchestra's code minimises the mean cosine
  instead, whose gradient is four times smaller, so the two need different learning rates.
- The target follows the source after the optimiser's step, parameters only. In Orchestra's released BYOL the weights of
  the average are swapped (the target is almost the online network); this is not reproduced.
- The target does not travel, and stays only if the method keeps it: else it starts each visit at the received online
  networks. `stateful: true` keeps it with its client, as EasyFL's README has it for FedAvg.
- tau is constant by default, as in the field's codes. With `momentum_end: 1` it is the paper's
  1 - (1 - tau_base) (cos(pi k / K) + 1) / 2, k the steps of the run so far, of K.
- `symmetric: false` is one direction of the loss, the second view's target, as in FedX (eq. 4).
- In EasyFL a client's first target is the online network itself (`first_target: online`): during that visit it does not
  lag, and its passes move the online running statistics too. The default is a copy, as in the paper.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from methods.base import Batch, MethodError, Outputs, Projected, Visit, choose
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
        momentum_end: what it rises to over the run, by a cosine; None: it is constant.
        symmetric: whether the first view's target is regressed too.
        stateful: whether the target stays with its client.
        first_target: "copy", or "online": a client's target is the online network during its first visit; needs a
            target that stays.

    shares_target: whether the target is the online network in this visit.
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
        momentum_end: float | None = None,
        symmetric: bool = True,
        stateful: bool = False,
        first_target: str = "copy",
    ) -> None:
        super().__init__(encoder, projector=projector, head_norm=head_norm)
        self.predictor = mlp((self.width, predictor, self.width), norm=head_norm)
        self.add_targets(momentum, end=momentum_end)
        self.symmetric = symmetric
        self.stays = tuple(self.ema) if stateful else ()
        self.first_target = choose("objective.first_target", first_target, "copy", "online")
        self.shares_target = False

    def check_staying(self, staying: Sequence[str]) -> None:
        """Raises MethodError for a first target that is the online network where the target does not stay."""
        if self.first_target == "online" and not set(self.ema) <= set(staying):
            raise MethodError(
                "objective.first_target=online: every visit is a client's first one unless its target stays: set "
                "objective.stateful=true, or leave it out"
            )

    def receive(self, visit: Visit) -> None:
        """Sets whether the target is the online network in this visit."""
        self.shares_target = self.first_target == "online" and visit.first

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass with predictions, and the target pass without gradient."""
        out = super().forward(*views, extra=extra)
        predicted, regressed = (out.embeddings, views) if self.symmetric else (out.embeddings[:1], views[1:])
        predictions = self.each_view(self.predictor, predicted)
        return out._replace(predictions=predictions, targets=self.each_view(self.embed_targets, regressed))

    @torch.no_grad()
    def embed_targets(self, images: Tensor) -> Tensor:
        """Embeddings `[B, width]` by the target networks, or by the online ones, without gradient."""
        return self.embed(images)[1] if self.shares_target else super().embed_targets(images)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The sum of the regressions: the first view's prediction of the second's target, and the reverse."""
        views = len(out.predictions)  # of equal sizes, so that the sum is that many times the mean over all rows
        return views * byol_regression(torch.cat(out.predictions), torch.cat(out.targets[::-1]))

    @torch.no_grad()
    def after_step(self, push: Mapping[str, Tensor]) -> None:
        """The target follows the online network; where it is that network, it is its copy, statistics included."""
        super().after_step(push)
        if self.shares_target:
            for target, source in self.ema.items():
                getattr(self, target).load_state_dict(getattr(self, source).state_dict())
