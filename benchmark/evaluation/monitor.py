"""The monitor: cheap measurements of the exported encoders while training."""

from typing import Any

from benchmark.distributed.collectives import on_rank_zero
from benchmark.evaluation.evaluator import Evaluator
from benchmark.federation.client_state import LocalParts


class Monitor:
    """Every n rounds, what `Evaluator.monitor` sees of the exported encoders.

    Args:
        evaluator: makes the features. every: rounds between two looks.
        recalibrated: whether BatchNorm statistics are measured first.
    """

    def __init__(self, evaluator: Evaluator, every: int, recalibrated: bool) -> None:
        self.evaluator, self.every, self.recalibrated = evaluator, every, recalibrated

    def on_round_scored(self, loop: Any, row: dict[str, Any]) -> None:
        """Adds its numbers to the round's line; with several encoders, their means."""
        if row["round"] % self.every and row["round"] != loop.rounds:
            return
        values = on_rank_zero(loop.fabric, lambda: self._look(loop))
        row |= {name: sum(one[name] for one in values) / len(values) for name in values[0]}

    def _look(self, loop: Any) -> list[dict[str, float]]:
        exported = loop.method.export(loop.server, LocalParts(loop.memory))
        return [
            self.evaluator.monitor(self.evaluator.encoder(weights, recalibrated=self.recalibrated, kind=name))
            for name, weights in exported.items()
        ]
