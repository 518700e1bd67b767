"""The exported encoders while training: the monitor's cheap measurements, and a protocol of every round."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.distributed.collectives import on_rank_zero
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.protocols import combine
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from datamodules.sources import Split
from eval.features import EvalError, accuracy, holdout
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn_predict
from leaderboards.encoders import MEAN
from methods.maths import alignment

MONITOR, SPREAD, ALIGNED = 5_000, 2_000, 500
"""Largest number of training images that the monitor uses, a fifth of them the queries; about how many of them it
measures uniformity on, and alignment."""


def measure(evaluator: Evaluator, encoder: nn.Module) -> dict[str, float]:
    """Measurements that are cheap enough to take while training, never on test images.

    "monitor": kNN accuracy in percent on a held-out slice of train, or of the labelled images beside it; missing
    without labels. "effective_rank" of the slice; "uniformity", and of it "uniformity_within" and
    "uniformity_between" clients, of some training images (see `eval.geometry.uniformity_parts`); "alignment" of two
    views of a few of them.

    Raises EvalError: features that are not finite.
    """
    source, images, numbers = evaluator.data.source, evaluator.images, dict[str, float]()
    chosen, *train = _slice(evaluator, encoder, source.train, "monitor")
    if images is not source or images.labelled:
        scored = train if images is source else _slice(evaluator, encoder, images.train, "monitor/labelled")[1:]
        x, y, bank, queries = scored
        k = min(200, len(bank))
        predicted = knn_predict(x[bank], y[bank], x[queries], len(images.classes), k=k, temperature=0.1)
        numbers["monitor"] = accuracy(predicted, y[queries])
    x, _, _, queries = train
    holders = torch.from_numpy(evaluator.holders[chosen]).to(evaluator.device)
    rows = (holders >= 0).nonzero()[:: max(1, len(x) // SPREAD), 0]
    uniformity = uniformity_parts(x[rows], holders[rows]) if len(rows) > 1 else {}
    few = chosen[:: max(1, len(chosen) // ALIGNED)]
    first, second = (evaluator.view(encoder, few, f"monitor/{name}") for name in ("view_a", "view_b"))
    numbers |= {"effective_rank": effective_rank(x[queries]), "alignment": float(alignment(first, second))}
    return numbers | {
        "uniformity" if name == "total" else f"uniformity_{name}": value
        for name, value in uniformity.items()
        if not math.isnan(value)
    }


def _slice(
    evaluator: Evaluator, encoder: nn.Module, split: Split, purpose: str
) -> tuple[np.ndarray, Tensor, Tensor, Tensor, Tensor]:
    """Some rows of a split, drawn for a purpose; their features and labels, and which of them are bank and queries."""
    chosen = evaluator.sample(len(split.labels), MONITOR, purpose)
    x, labels = evaluator.extract(encoder, split.images[chosen]), torch.from_numpy(split.labels[chosen])
    if not x.isfinite().all():
        raise EvalError("the monitor met features that are not finite: lower optimizer.lr")
    bank, queries = holdout(labels, fraction=0.2, seed=0)
    return chosen, x, labels.to(x.device), bank.to(x.device), queries.to(x.device)


class Monitor(Callback):
    """Runs `measure` every n rounds. every: rounds between two measurements."""

    def __init__(self, evaluator: Evaluator, every: int) -> None:
        self.evaluator, self.every = evaluator, every

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Adds the measurements to the round's line; with several encoders, their means."""
        if line["round"] % self.every and line["round"] != loop.rounds:
            return
        each = on_rank_zero(
            loop.fabric,
            lambda: [measure(self.evaluator, encoder) for _, encoder in self.evaluator.encoders(loop.export())],
        )
        line |= {name: sum(values[name] for values in each) / len(each) for name in each[0]}


class RoundProbe(Callback):
    """Runs a protocol after every round, on the test images: for papers that report the best round.

    protocol: its id; it requires nothing but features, and has an "accuracy".
    """

    def __init__(self, evaluator: Evaluator, protocol: str) -> None:
        self.evaluator, self.protocol = evaluator, protocol

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Adds the accuracy in percent to the round's line, unless the protocol fails.

        Where clients have encoders of their own, or architectures, it is the worst one's, and the mean follows.
        """
        several = loop.method.has_personal_encoders or bool(loop.method.others)

        def measure() -> dict[str, float]:
            failed: dict[str, str] = {}
            scores = {
                name: self.evaluator.scores(encoder, [self.protocol], failed=failed)
                for name, encoder in self.evaluator.encoders(loop.export())
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
