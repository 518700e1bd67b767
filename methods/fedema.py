"""FedEMA. Zhuang, Wen, Zhang: Divergence-aware Federated Self-Supervised Learning (ICLR 2022).

| symbol | name | equation |
|---|---|---|
| d_k | `divergence`, memory `d` | divergence-aware dynamic moving average |
| lambda_k | `scale`, or `tau` / d_k at the first measurement, memory `scale` | autoscaler |
| mu_k = min(lambda_k d_k, 1) | `receive` | divergence-aware dynamic moving average |
| W_k <- mu_k W_k + (1 - mu_k) W_g | `receive`, over online networks and predictor | the update rule |

Decisions
- `variant: code | paper`. EasyFL, the authors' code, measures d_k between the encoder before and after the client's
  last local training; the paper compares the client's model with the downloaded one. Both as `methods.fedu` has it.
- tau = 0.7, as EasyFL's README runs it; its argument's default is 0.8.
- The moving average is over parameters; running statistics come from the server. The target stays with the client.
- A client that did not take part in the round before takes everything from the server, its target too, as in EasyFL.
"""

from typing import Any

import torch
from torch import Tensor

from methods import trees
from methods.base import Message, Objective, Tree, Visit, check_number, choose
from methods.fedavg import FedAvg
from methods.fedu import convolutions, divergence

__all__ = ["FedEMA", "divergence"]


class FedEMA(FedAvg):
    """A client blends the global model into its own, and keeps the more of its own the further they diverge.

    Args:
        scale: lambda, one for all clients; None: the autoscaler's.
        tau: the autoscaler's first mu, in [0, 1].
        variant: "code" or "paper".
    """

    def __init__(
        self,
        objective: Objective,
        *,
        scale: float | None = None,
        tau: float = 0.7,
        variant: str = "code",
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        self.scale = scale if scale is None else check_number("method.scale", scale, at_least=0)
        self.tau = check_number("method.tau", tau, at_least=0, at_most=1)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.stays = (*self.travelling, *objective.ema)
        self.before: dict[str, Tensor] = {}

    def receive(self, visit: Visit) -> None:
        """The global networks blended into the client's own, where it took part in the round before."""
        encoder, own = self.objective.encoder, trees.clone(self.trainable())
        local = {name: weight.clone() for name, weight in convolutions(encoder).items()}
        super().receive(visit)
        if "round" in visit.memory and int(visit.memory["round"]) == visit.round - 1:
            if self.variant == "paper":
                visit.memory = self.measured(visit.memory, divergence(local, convolutions(encoder)))
            mu = self.share(visit.memory)
            self.load(trees.map(lambda mine, theirs: mu * mine + (1 - mu) * theirs, own, self.trainable()))
        else:
            self.start_targets()
        self.before = {name: weight.clone() for name, weight in convolutions(encoder).items()}

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The online networks; kept are the divergence, its scale and when this was."""
        message, memory = super().reply(visit)
        if self.variant == "code":
            memory = self.measured(memory, divergence(self.before, convolutions(self.objective.encoder)))
        if "d" in memory:
            visit.notes["divergence"] = float(memory["d"])
        return message, {**memory, "round": torch.tensor(visit.round)}

    def measured(self, memory: Tree, d: Tensor) -> Tree:
        """The memory after a measurement: d, and with the autoscaler lambda, set by the first one above 0."""
        if self.scale is not None or "scale" in memory or not d > 0:
            return {**memory, "d": d}
        return {**memory, "d": d, "scale": self.tau / d}

    def share(self, memory: Tree) -> float:
        """mu = min(lambda d, 1), how much of its own model a client keeps; 0 where nothing has diverged yet."""
        d = float(memory["d"])
        scale = float(memory["scale"]) if self.scale is None and "scale" in memory else self.scale
        return min(scale * d, 1.0) if d > 0 and scale is not None else 0.0
