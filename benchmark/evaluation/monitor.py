"""The exported encoders while training: the monitor's cheap measurements, and a protocol of every round."""

from typing import Any

from benchmark.distributed.collectives import on_rank_zero
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.protocols import combine
from benchmark.federation.loop import Callback, FederatedLoop


class Monitor(Callback):
    """Runs `Evaluator.monitor` every n rounds.

    Args:
        evaluator: extracts the features. every: rounds between two measurements.
        recalibrated: whether BatchNorm statistics are measured first.
    """

    def __init__(self, evaluator: Evaluator, every: int, recalibrated: bool) -> None:
        self.evaluator, self.every, self.recalibrated = evaluator, every, recalibrated

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Adds the measurements to the round's line; with several encoders, their means."""
        if line["round"] % self.every and line["round"] != loop.rounds:
            return

        def measure() -> list[dict[str, float]]:
            return [
                self.evaluator.monitor(self.evaluator.encoder(weights, recalibrated=self.recalibrated, kind=name))
                for name, weights in loop.export().items()
            ]

        measurements = on_rank_zero(loop.fabric, measure)
        line |= {name: sum(values[name] for values in measurements) / len(measurements) for name in measurements[0]}


class RoundProbe(Callback):
    """Runs a protocol after every round, on the test images: for papers that report the best round.

    Args:
        evaluator: extracts the features. protocol: its id; it requires nothing but features, and has an "accuracy".
        recalibrated: whether BatchNorm statistics are measured first.
    """

    def __init__(self, evaluator: Evaluator, protocol: str, recalibrated: bool) -> None:
        self.evaluator, self.protocol, self.recalibrated = evaluator, protocol, recalibrated

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Adds the accuracy in percent to the round's line, unless the protocol fails; the worst one of encoders."""

        def measure() -> float | None:
            failed: dict[str, str] = {}
            scores = {
                name: self.evaluator.scores(
                    self.evaluator.encoder(weights, recalibrated=self.recalibrated, kind=name),
                    [self.protocol],
                    failed=failed,
                )
                for name, weights in loop.export().items()
            }
            return None if failed else combine(scores)[self.protocol]["accuracy"]

        if (accuracy := on_rank_zero(loop.fabric, measure)) is not None:
            line[self.key(self.protocol)] = accuracy

    @staticmethod
    def key(protocol: str) -> str:
        """Its field in a round's line."""
        return f"test_accuracy {protocol}"
