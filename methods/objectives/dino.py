"""DINO. Caron et al.: Emerging Properties in Self-Supervised Vision Transformers (ICCV 2021).

| symbol | name | equation |
|---|---|---|
| g_theta_s | `encoder`, `projector`, `prototypes` | section 3.1 |
| g_theta_t | `target_encoder`, `target_projector`, `target_prototypes` | section 3.1 |
| lambda | `momentum`, rising to `momentum_end` | section 3.1 |
| tau_s, tau_t | `temperature`, `target_temperature` | eq. 1 |
| c, m | `centre`, `centre_momentum` | eq. 4 |
| sum over global views and other views | `methods.maths.dino` | eqs. 2-3 |
| multi-crop | `local_views`, views of the recipe `local` | section 3.1 |

Decisions
- The loss is the mean over the pairs of views, as in the released code; eq. 3 is their sum.
- `local` crops have the scale `views.local_scale`, 0.05 to 0.4 of the image as in the paper, and the size of the other
  views. The paper's are smaller than these (96 of 224 pixels), which saves time; images of this field have 32 pixels.
- The last layer has unit rows, applied to embeddings of length 1, as in the paper's head. As in SwAV here, rows are
  normalised where they are used, so that the clients' mean needs no further rule.
- The centre travels and is averaged: it is the clients' mean output, and needs more steps than a visit has. A centre
  that started at zero in every visit would let the first steps collapse.
- The target starts at the received networks in each visit, as BYOL's does here; with `stateful: true` it stays with its
  client.
- Momentum and the teacher's temperature are constant by default. `momentum_end: 1` is the paper's cosine of the
  momentum; `start_temperature` and `temperature_warmup` are the linear rise of the temperature, by the steps of the
  run, where the code has its epochs. The code's last layer that is fixed for an epoch and its rising weight decay are
  left out.
- 1,024 outputs are our choice; the paper's 65,536 are for ImageNet.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods.base import Batch, MethodError, Outputs, Projected, check_number
from methods.maths import cosines, dino
from methods.networks import Encoder


class Centre(nn.Module):
    """A running mean of the teacher's outputs, `value` `[K]`."""

    value: Tensor

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(outputs))


class DINO(Projected):
    """The student predicts, from every view, what a moving average of itself says of another view.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        outputs: K, the length of the distribution.
        momentum: weight of the target's previous value in its moving average.
        momentum_end: what it rises to over the run, by a cosine; None: it is constant.
        temperature, target_temperature: of student and target.
        start_temperature: the target's when the run starts; it changes to `target_temperature`, linearly, within
            `temperature_warmup`, a share of the run. None: it is constant.
        centre_momentum: weight of the centre's previous value.
        local_views: small crops of each image beside the two large ones, which the student sees alone.
        stateful: whether the target stays with its client.
    """

    target_temperature_now: Tensor

    travels = ("encoder", "projector", "prototypes", "centre")

    def __init__(
        self,
        encoder: Encoder,
        *,
        outputs: int = 1024,
        momentum: float = 0.996,
        momentum_end: float | None = None,
        temperature: float = 0.1,
        target_temperature: float = 0.04,
        start_temperature: float | None = None,
        temperature_warmup: float = 0.0,
        centre_momentum: float = 0.9,
        local_views: int = 0,
        stateful: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.target_temperature = check_number("objective.target_temperature", target_temperature, above=0)
        self.centre_momentum = check_number("objective.centre_momentum", centre_momentum, at_least=0, at_most=1)
        check_number("objective.outputs", outputs, at_least=2)
        check_number("objective.local_views", local_views, at_least=0)
        self.views = ("augment", "augment", *["local"] * local_views)
        self.prototypes = nn.Linear(self.width, outputs, bias=False)
        self.centre = Centre(outputs)
        self.add_targets(momentum, end=momentum_end)
        self.target_prototypes = deepcopy(self.prototypes).requires_grad_(False)
        self.ema = {**self.ema, "target_prototypes": "prototypes"}
        self.stays = tuple(self.ema) if stateful else ()
        self.start_temperature = start_temperature
        self.temperature_warmup = check_number(
            "objective.temperature_warmup", temperature_warmup, at_least=0, at_most=1
        )
        if (start_temperature is None) != (temperature_warmup == 0):
            raise MethodError(
                f"objective.start_temperature={start_temperature} temperature_warmup={temperature_warmup}: give both, "
                "the second above 0, or neither"
            )
        if start_temperature is not None:
            check_number("objective.start_temperature", start_temperature, above=0)
            self.register_buffer("target_temperature_now", torch.tensor(float(start_temperature)), persistent=False)

    schedules: ClassVar[Sequence[str]] = ("momentum_end", "start_temperature")

    @torch.no_grad()
    def start_step(self, progress: float) -> None:
        """Sets momentum and temperature of the target, where they follow a schedule."""
        super().start_step(progress)
        if (start := self.start_temperature) is not None:
            risen = min(1.0, progress / self.temperature_warmup)
            self.target_temperature_now.fill_(start + (self.target_temperature - start) * risen)

    def check_staying(self, staying: Sequence[str]) -> None:
        """Raises MethodError where clients have networks of their own, but a common centre."""
        if "centre" not in staying and (own := {"encoder", "projector", "prototypes"} & set(staying)):
            raise MethodError(
                f"dino's centre is the mean of the outputs of one network, and each client has its own "
                f"{' and '.join(sorted(own))}: add centre to method.stays"
            )

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass with outputs `[B, K]` as predictions; targets are the teacher's for the two large views."""
        out = super().forward(*views, extra=extra)
        scores = cosines(torch.cat(out.embeddings), self.prototypes.weight).split([len(z) for z in out.embeddings])
        targets = self.each_view(self.embed_targets, views[:2])
        return out._replace(predictions=scores, targets=targets, push={"centre": torch.cat(targets).mean(0)})

    @torch.no_grad()
    def embed_targets(self, images: Tensor) -> Tensor:
        """Outputs `[B, K]` of the target networks, without gradient."""
        for target in ("target_encoder", "target_projector"):
            images = getattr(self, target)(images)
        return cosines(images, self.target_prototypes.weight)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The mean cross-entropy of the views' outputs with the teacher's for another view."""
        scores, targets = torch.stack(out.predictions), torch.stack(out.targets)
        of_target = self.target_temperature if self.start_temperature is None else self.target_temperature_now
        return dino(scores, targets, self.centre.value, self.temperature, of_target)

    @torch.no_grad()
    def after_step(self, push: Mapping[str, Tensor]) -> None:
        """Target and centre move."""
        super().after_step(push)
        self.centre.value.lerp_(push["centre"].to(self.centre.value.dtype), 1 - self.centre_momentum)
