"""FedAvg whose server goes a part of the way to the clients' mean."""

from typing import Any

from methods import trees
from methods.base import Objective, Replies, RoundContext, Tree, check_number
from methods.fedavg import FedAvg


class Cautious(FedAvg):
    """FedAvg but for `update`.

    Args:
        pace: part of the way, 1 is FedAvg.
    """

    def __init__(self, objective: Objective, *, pace: float = 0.5, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.pace = check_number("method.pace", pace, above=0)

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The server's weights, moved by the pace."""
        before, mean = server["weights"], super().update(server, round_context, replies)
        return {**mean, "weights": trees.add(before, trees.subtract(mean["weights"], before), self.pace)}
