"""FedExP. Jhunjhunwala, Wang, Joshi: FedExP, Speeding Up Federated Averaging via Extrapolation (ICLR 2023).

| symbol | name | equation |
|---|---|---|
| Delta_i | a client's change of the weights | Algorithm 1 |
| M | number of clients in the round | Algorithm 1 |
| eta_g = max(1, sum_i norm(Delta_i)^2 / (2 M (norm(mean Delta)^2 + epsilon))) | `update` | eq. 6 |

Decisions
- The means of the weights and of the squared norms are weighted by examples, as in FedAvg; in the paper all clients
  count equally.
- Only trainable weights are extrapolated; BatchNorm's running statistics are averaged only.
"""

from dataclasses import replace
from typing import Any

from methods import trees
from methods.base import Message, Objective, Phase, Replies, RoundContext, Tree, Visit
from methods.fedavg import FedAvg


class FedExP(FedAvg):
    """FedAvg with a server step beyond the mean where the clients' changes have different directions.

    Args:
        epsilon: keeps the step finite where the changes cancel (not a privacy epsilon).
    """

    def __init__(self, objective: Objective, *, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.epsilon = epsilon

    def plan(self, round: int) -> tuple[Phase, ...]:
        """FedAvg's phase with an additional entry `norm`."""
        return tuple(replace(phase, uplink={**phase.uplink, "norm": self.mean}) for phase in super().plan(round))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The weights, and the squared norm of their change."""
        message, memory = super().reply(visit)
        change = trees.subtract(self.trainable(), visit.message["weights"])
        return {**message, "norm": {"squared": trees.squared_norm(change)}}, memory

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The clients' mean; the trainable weights move by eta_g times their mean change."""
        mean, trainable = super().update(server, round_context, replies), self.trainable()
        before = trees.select(server["weights"], trainable)
        change = trees.subtract(trees.select(mean["weights"], trainable), before)
        eta = replies["norm"]["squared"] / (2 * (trees.squared_norm(change) + self.epsilon))
        step = trees.add(before, change, max(1.0, float(eta)))
        return {**mean, "weights": trees.overlay(mean["weights"], step)}
