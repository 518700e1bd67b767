"""The exported encoders while training: the monitor's cheap measurements, and a protocol of every round."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from benchmark.distributed.collectives import on_rank_zero
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.protocols import combine
from benchmark.federation.loop import Callback, FederatedLoop
from leaderboards.encoders import MEAN


class EncoderCallback(Callback):
    """Reads the exported encoders. recalibrated: whether their BatchNorm statistics are measured first."""

    def __init__(self, evaluator: Evaluator, recalibrated: bool) -> None:
        self.evaluator, self.recalibrated = evaluator, recalibrated

    def encoders(self, loop: FederatedLoop) -> Iterator[tuple[str, nn.Module]]:
        """Names and encoders, each valid until the next: they may share the resident model."""
        for name, weights in loop.export().items():
            yield name, self.evaluator.encoder(weights, recalibrated=self.recalibrated, kind=name)


class Monitor(EncoderCallback):
    """Runs `Evaluator.monitor` every n rounds.

    Args:
        evaluator: extracts the features. every: rounds between two measurements.
        recalibrated: whether BatchNorm statistics are measured first.
    """

    def __init__(self, evaluator: Evaluator, every: int, recalibrated: bool) -> None:
        super().__init__(evaluator, recalibrated)
        self.every = every

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Adds the measurements to the round's line; with several encoders, their means."""
        if line["round"] % self.every and line["round"] != loop.rounds:
            return

        def measure() -> list[dict[str, float]]:
            return [self.evaluator.monitor(encoder) for _, encoder in self.encoders(loop)]

        measurements = on_rank_zero(loop.fabric, measure)
        line |= {name: sum(values[name] for values in measurements) / len(measurements) for name in measurements[0]}


class RoundProbe(EncoderCallback):
    """Runs a protocol after every round, on the test images: for papers that report the best round.

    Args:
        evaluator: extracts the features. protocol: its id; it requires nothing but features, and has an "accuracy".
        recalibrated: whether BatchNorm statistics are measured first.
    """

    def __init__(self, evaluator: Evaluator, protocol: str, recalibrated: bool) -> None:
        super().__init__(evaluator, recalibrated)
        self.protocol = protocol

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Adds the accuracy in percent to the round's line, unless the protocol fails.

        Where clients have encoders of their own, or architectures, it is the worst one's, and the mean follows.
        """
        several = loop.method.has_personal_encoders or bool(loop.method.others)

        def measure() -> dict[str, float]:
            failed: dict[str, str] = {}
            scores = {
                name: self.evaluator.scores(encoder, [self.protocol], failed=failed)
                for name, encoder in self.encoders(loop)
            }
            if failed:
                return {}
            combined = combine(scores)[self.protocol]
            worst, mean = combined["accuracy"], combined.get(f"accuracy{MEAN}", combined["accuracy"])
            return {self.key(self.protocol): worst} | ({self.key(self.protocol, MEAN): mean} if several else {})

        line |= on_rank_zero(loop.fabric, measure)

    @staticmethod
    def key(protocol: str, end: str = "") -> str:
        """Its field in a round's line. end: of the metric, as `MEAN`."""
        return f"test_accuracy{end} {protocol}"
