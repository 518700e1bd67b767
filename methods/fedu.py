"""FedU. Zhuang, Gan, Wen, Zhang, Yi: Collaborative Unsupervised Visual Representation Learning from Decentralized Data
(ICCV 2021).

| symbol | name | equation |
|---|---|---|
| d | `divergence`, memory `d` | divergence-aware predictor update |
| mu | `threshold` | divergence-aware predictor update |
| online encoder, predictor | the objective's, sent and averaged | communication protocol |
| target encoder | stays with the client | communication protocol |

Decisions
- A client keeps its target networks and its predictor. It takes the global online networks and, while d < mu, the
  global predictor; at its first visit all networks are the global ones, also the target.
- `variant: code | paper`. EasyFL, the authors' code, measures d between the encoder before and after the client's last
  local training; the paper compares the client's model with the downloaded one.
- d is the mean over the encoder's convolutions of the Euclidean distance of their weights, as in EasyFL, whose rule by
  names excludes the convolutions of a ResNet's shortcuts. mu = 0.4 belongs to a ResNet-18 with PyTorch's own
  initialisation (`encoder.init: default`) and 5 epochs.
- Where an adapter trains in the place of all convolutions, d is over its tensors.
- EasyFL also sends and averages the target but does not use it: not reproduced.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods import trees
from methods.base import Activity, Message, MethodError, Objective, Tree, Visit, check_number, choose
from methods.core.freezing import is_frozen
from methods.fedavg import FedAvg


def divergence(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Divergence of two networks, a 0-d tensor: the mean Euclidean distance of their tensors.

    a, b: name -> weight, of the same names.
    """
    return torch.stack([(a[name] - b[name]).norm() for name in a]).mean()


def convolutions(encoder: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights of an encoder's convolutions, by name, without those of shortcuts and frozen ones.

    Of an encoder that has none of these, but an adapter: copies of the adapter's tensors.
    """
    found = {
        f"{name}.weight": layer.weight.detach().clone()
        for name, layer in encoder.named_modules()
        if isinstance(layer, nn.Conv2d) and "downsample" not in name and not is_frozen(layer, "weight")
    }
    if found or getattr(encoder, "trained_adapter", None) is None:
        return found
    return {name: each.detach().clone() for name, each in encoder.named_parameters() if each.requires_grad}


def check_convolutions(method: str, encoder: nn.Module) -> None:
    """Raises MethodError for an encoder without convolutions that train, whose divergence is not defined."""
    if not convolutions(encoder):
        raise MethodError(
            f"{method} measures how far convolutions move, and this encoder has none that train: choose another"
        )


class FedU(FedAvg):
    """A client takes the global predictor only while the divergence of its model is below a threshold.

    Args:
        threshold: mu; 0: always the local predictor; infinity (.inf): always the global one.
        variant: "code" or "paper".
    """

    must_travel: Mapping[str, str] = {
        "encoder": "a client's divergence is that of its encoder from the global one",
        "predictor": "a client chooses between its own and the global one (its own always: method.threshold=0)",
    }
    activity: ClassVar = {
        "predictor_kept": Activity("share of the visits after a client's first that kept its own predictor")
    }

    def __init__(self, objective: Objective, *, threshold: float = 0.4, variant: str = "code", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        if "predictor" not in objective.travels:
            raise MethodError(f"FedU selects a predictor, and {type(objective).__name__} has none: set objective=byol")
        check_convolutions("FedU", objective.encoder)
        self.threshold = check_number("method.threshold", threshold, at_least=0, infinite=True)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.stays = ("predictor", *objective.ema, *(("encoder",) if variant == "paper" else ()))
        self.before: dict[str, Tensor] = {}

    def receive(self, visit: Visit) -> None:
        """Loads the global networks; from the threshold on, the client keeps its own predictor."""
        local, predictor = convolutions(self.objective.encoder), trees.clone(self.tensors("predictor"))
        super().receive(visit)
        self.before = convolutions(self.objective.encoder)
        d = visit.memory.get("d")
        if d is not None and self.variant == "paper":
            d = divergence(local, self.before)
        if d is None:
            return
        takes = float(d) < self.threshold
        visit.notes["predictor_kept"] = float(not takes)
        if not takes:
            self.load({"predictor": predictor})

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The online networks; the memory holds the encoder's divergence during this visit."""
        message, memory = super().reply(visit)
        d = divergence(self.before, convolutions(self.objective.encoder))
        visit.notes["divergence"] = d
        return message, {**memory, "d": d}
