"""FedExP. Jhunjhunwala, Wang, Joshi: FedExP, Speeding Up Federated Averaging via Extrapolation (ICLR 2023).

| symbol | name | equation |
|---|---|---|
| Delta_i | a client's change of the weights | Algorithm 1 |
| eta_g = max(1, sum_i ||Delta_i||^2 / (2 M (||mean Delta||^2 + epsilon))) | `update` | eq. 6 |

Decisions
- The mean is over examples, as FedAvg has it, and so is that of the squared norms; the paper has all clients alike.
- Only what is trained is extrapolated; BatchNorm's running statistics take the plain mean.
"""

from dataclasses import replace
from typing import Any

import torch

from methods import trees
from methods.base import Message, Objective, Phase, Replies, Tree, Turn, Visit
from methods.fedavg import FedAvg


def squared(tree: Tree) -> torch.Tensor:
    """The squared norm of a Tree, 0-d."""
    return torch.stack([leaf.square().sum() for _, leaf in trees.leaves(tree)]).sum()


class FedExP(FedAvg):
    """FedAvg whose server steps further than the mean where the clients' changes point in different directions.

    Args:
        epsilon: keeps the step finite where the changes cancel.
    """

    def __init__(self, objective: Objective, *, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.epsilon = epsilon

    def plan(self, round: int) -> tuple[Phase, ...]:
        """FedAvg's phase with one entry more."""
        return tuple(replace(phase, uplink={**phase.uplink, "norm": self.mean}) for phase in super().plan(round))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The weights, and how far they have moved."""
        message, memory = super().reply(visit)
        moved = trees.subtract(self.trainable(), visit.message["weights"])
        return {**message, "norm": {"squared": squared(moved)}}, memory

    def update(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The mean, and for what is trained eta_g times the way to it."""
        mean = super().update(server, turn, replies)
        change = trees.subtract(self.changed(mean), self.changed(server))
        rate = replies["norm"]["squared"] / (2 * (squared(change) + self.epsilon))
        step = trees.add(self.changed(server), change, max(1.0, float(rate)))
        return {**mean, "weights": trees.overlay(mean["weights"], step)}

    def changed(self, server: Tree) -> Tree:
        """What is trained, of the server's weights."""
        return trees.map(lambda leaf, weight: weight, self.trainable(), server["weights"])
