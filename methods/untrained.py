"""Baseline: untrained initial weights. Probes score well above chance on them, and a method must score higher.

Decisions
- BatchNorm's running statistics are those of any other row: clients visit the same batches of views as under FedAvg, in
  training mode and without a step of the optimiser, and the server averages what they report. So the row is FedAvg at a
  learning rate of 0, for a third of its time. `statistics: pooled` measures them once on the pooled training images.
"""

from typing import Any, ClassVar

from methods import trees
from methods.base import FederatedMethod, Mean, Message, Objective, Phase, Replies, RoundContext, Tree, Visit, choose

MEASURE = Phase("fit", skip=None, uplink={"statistics": Mean("examples")})
"""FedAvg's phase without steps; by its name, orders and views are drawn alike."""


class Untrained(FederatedMethod):
    """No training: nothing is exchanged, or the statistics of BatchNorm alone.

    Args:
        statistics: "pooled" or "clients": where BatchNorm's are measured under `federation.batch_norm=average`; without
            BatchNorm both are the same.
    """

    phases: ClassVar[tuple[Phase, ...]] = ()

    def __init__(self, objective: Objective, *, statistics: str = "pooled", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        by_clients = choose("method.statistics", statistics, "pooled", "clients") == "clients"
        self.measures = by_clients and self.batch_norm == "average" and bool(self.statistics())

    def plan(self, round: int) -> tuple[Phase, ...]:
        """The phase of FedAvg without steps, if clients measure statistics, else none."""
        return (MEASURE,) if self.measures else ()

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The statistics after the visit's batches."""
        return {"statistics": self.statistics()}, visit.memory

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The initial weights with the clients' mean statistics."""
        if "statistics" not in replies:
            return server
        return {**server, "weights": trees.overlay(server["weights"], replies["statistics"])}
