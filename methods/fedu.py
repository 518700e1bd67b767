"""FedU. Zhuang, Gan, Wen, Zhang, Yi: Collaborative Unsupervised Visual Representation Learning from Decentralized Data
(ICCV 2021).

| symbol | name | equation |
|---|---|---|
| d | `divergence`, memory `d` | divergence-aware predictor update |
| mu | `threshold` | divergence-aware predictor update |
| online encoder, predictor | the objective's, sent and averaged | communication protocol |
| target encoder | stays with the client | communication protocol |

Decisions
- A client keeps its target networks and its predictor. It takes the global online networks, and the global predictor
  too while d < mu; at its first visit everything is global, and the target starts there.
- `variant: code | paper`. EasyFL, the authors' code, measures d between the encoder before and after the client's last
  local training; the paper compares the client's model with the downloaded one.
- d is the mean over the encoder's convolutions of the Euclidean distance of their weights, as in EasyFL, whose rule by
  names leaves out the convolutions of a ResNet's shortcuts. mu = 0.4 is made for a ResNet-18 and 5 epochs; d is in the
  memory.
- EasyFL also sends the target, averages it and throws it away: not reproduced.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from methods.base import Message, MethodError, Objective, Tree, Visit, check_number, choose
from methods.fedavg import FedAvg


def divergence(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """The mean over tensors of their Euclidean distance, a 0-d tensor: how far apart two networks are.

    one, other: name -> weight, of the same names.
    """
    return torch.stack([(one[name] - other[name]).norm() for name in one]).mean()


def convolutions(encoder: nn.Module) -> dict[str, Tensor]:
    """The weights of an encoder's convolutions by name, live, without those of a ResNet's shortcuts."""
    return {
        f"{name}.weight": layer.weight.detach()
        for name, layer in encoder.named_modules()
        if isinstance(layer, nn.Conv2d) and "downsample" not in name
    }


class FedU(FedAvg):
    """Each client's predictor follows the global one only while its model has moved little.

    Args:
        threshold: mu; 0 keeps the local predictor, infinity (.inf) takes the global one.
        variant: "code" or "paper".
    """

    def __init__(self, objective: Objective, *, threshold: float = 0.4, variant: str = "code", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        if "predictor" not in objective.travels:
            raise MethodError(
                f"FedU decides about predictors, and {type(objective).__name__} has none: set objective=byol"
            )
        self.threshold = check_number("method.threshold", threshold, at_least=0)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.stays = ("predictor", *objective.ema, *(("encoder",) if variant == "paper" else ()))
        self.before: dict[str, Tensor] = {}

    def receive(self, visit: Visit) -> None:
        """The global networks; where the client has moved far, its own predictor is kept."""
        local = {name: weight.clone() for name, weight in convolutions(self.objective.encoder).items()}
        own = {name: tensor.clone() for name, tensor in self.tensors("predictor").items()}
        super().receive(visit)
        moved = visit.memory.get("d")
        if moved is not None and self.variant == "paper":
            moved = divergence(local, convolutions(self.objective.encoder))
        if moved is not None and not float(moved) < self.threshold:
            self.load({"predictor": own})
        self.before = {name: weight.clone() for name, weight in convolutions(self.objective.encoder).items()}

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The online networks; how far this visit has moved the encoder is kept, and noted."""
        message, memory = super().reply(visit)
        d = divergence(self.before, convolutions(self.objective.encoder))
        visit.notes["divergence"] = float(d)
        return message, {**memory, "d": d}
