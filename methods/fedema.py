"""FedEMA. Zhuang, Wen, Zhang: Divergence-aware Federated Self-Supervised Learning (ICLR 2022).

| symbol | name | equation |
|---|---|---|
| d_k | `divergence`, memory `d` | divergence-aware dynamic moving average |
| lambda_k | `scale`, or `tau` / d_k at the first measurement, memory `scale` | autoscaler |
| mu_k = min(lambda_k d_k, 1) | `local_weight` | divergence-aware dynamic moving average |
| W_k <- mu_k W_k + (1 - mu_k) W_g | `receive`, over online networks and predictor | the update rule |

Decisions
- `variant: code | paper`. EasyFL, the authors' code, measures d_k between the encoder before and after the client's
  last local training; the paper compares the client's model with the downloaded one. Both as in `methods.fedu`.
- tau = 0.7, as in the command of EasyFL's README; the default of EasyFL's own argument is 0.8.
- The moving average is over parameters; running statistics come from the server. Online and target
  networks stay with the client.
- EasyFL's predictor keeps the client's running statistics where mu is above 0.5: `keep_statistics: true`.
- A client that did not train in the previous round takes all networks from the server, also its target, as in EasyFL.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from methods import trees
from methods.base import Activity, Message, Objective, Tree, Visit, check_number, choose
from methods.fedavg import FedAvg
from methods.fedu import check_convolutions, convolutions, divergence


class FedEMA(FedAvg):
    """Moving average of a client's model and the global one, with a larger local weight at a larger divergence.

    Args:
        scale: lambda for all clients; None: the autoscaler's, one for each client.
        tau: the autoscaler's first mu, in [0, 1].
        variant: "code" or "paper".
        keep_statistics: whether a client with mu above 0.5 keeps its predictor's running statistics.
    """

    must_travel: Mapping[str, str] = {"encoder": "a client averages its own with the global one"}
    activity: ClassVar = {
        "local_weight": Activity("weight of a client's own model in what it starts from, mean over visits")
    }

    def __init__(
        self,
        objective: Objective,
        *,
        scale: float | None = None,
        tau: float = 0.7,
        variant: str = "code",
        keep_statistics: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        check_convolutions("FedEMA", objective.encoder)
        self.keep_statistics = keep_statistics
        self.scale = scale if scale is None else check_number("method.scale", scale, at_least=0, infinite=True)
        self.tau = check_number("method.tau", tau, at_least=0, at_most=1)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.stays = (*self.travelling, *objective.ema)
        self.before: dict[str, Tensor] = {}

    def receive(self, visit: Visit) -> None:
        """Loads the moving average of local and global networks; the global ones after a round without training."""
        encoder, local_parameters = self.objective.encoder, trees.clone(self.trainable())
        local = convolutions(encoder)
        statistics = trees.clone(self.statistics().get("predictor", {})) if self.keep_statistics else {}
        super().receive(visit)
        visit.notes["local_weight"] = 0.0
        if "round" in visit.memory and int(visit.memory["round"]) == visit.round - 1:
            if self.variant == "paper":
                visit.memory = self.with_divergence(visit.memory, divergence(local, convolutions(encoder)))
            visit.notes["local_weight"] = mu = self.local_weight(visit.memory)
            self.load(trees.map(lambda a, b: mu * a + (1 - mu) * b, local_parameters, self.trainable()))
            if statistics and mu > 0.5:
                self.load({"predictor": statistics})
        else:
            self.start_targets()
        self.before = convolutions(encoder)

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The online networks; the memory holds the divergence, its scale and the round."""
        message, memory = super().reply(visit)
        if self.variant == "code":
            memory = self.with_divergence(memory, divergence(self.before, convolutions(self.objective.encoder)))
        if "d" in memory:
            visit.notes["divergence"] = memory["d"]
        return message, {**memory, "round": torch.tensor(visit.round)}

    def with_divergence(self, memory: Tree, d: Tensor) -> Tree:
        """The memory with a new d; the autoscaler sets lambda at the first d above 0."""
        if self.scale is not None or "scale" in memory or not d > 0:
            return {**memory, "d": d}
        return {**memory, "d": d, "scale": self.tau / d}

    def local_weight(self, memory: Tree) -> float:
        """mu = min(lambda d, 1), the weight of the local model in the moving average; 0 while d is 0."""
        d = float(memory["d"])
        scale = float(memory["scale"]) if self.scale is None and "scale" in memory else self.scale
        return min(scale * d, 1.0) if d > 0 and scale is not None else 0.0
