"""A round against the floor, a bare PyTorch loop over the same clients, batches and views; and one without training.

The bare loop has what its writer would tune: the allocator set, one model, weights copied and added up tensor list by
tensor list, nothing checked, nothing saved. It must come to the same weights, or it did not do the same work. Our round
is timed from the end of one to the end of the next, its checkpoint included.
"""

import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmark.configuration.compose import compose
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment.run import Run
from benchmark.federation.loop import FederatedLoop
from benchmark.speed.peer.workload import PATH
from benchmark.speed.timing import Line, Say, ratio, seconds, spread
from benchmark.tracking.progress import Display
from methods.base import FederatedMethod, Mean, Phase
from methods.maths import nt_xent

TITLE = "A round against a bare loop, and without training"
RESNET = ("encoder={class: methods.networks.resnet18}", "heads.projector=[512,128]")
TRAINED = {
    "convnet, batch 16": (("training.batch_size=16",), "<= 1.10"),
    "convnet, batch 64": (("training.batch_size=64",), "<= 1.10"),
    "resnet18, batch 32": (
        (*RESNET, "training.batch_size=32", "training.steps=4", "federation.participation=0.06"),
        "<= 1.03",
    ),
}
IDLE = {"convnet": ((), "<= 1"), "resnet18": (RESNET, "<= 10")}
LAST = "training.channels_last=true"
AGREE = 1e-3
"""Largest difference of weights after the first round: float32 sums in another order, amplified by training."""


class Idle(FederatedMethod):
    """FedAvg whose clients send back the weights as they came."""

    phases = (Phase("fit", work="none", uplink={"weights": Mean("examples")}),)


def measure(repetitions: int, say: Say) -> list[Line]:
    """Ratios of rounds, and milliseconds of a visit without work."""
    lines = []
    for name, (overrides, goal) in TRAINED.items():
        say(name)
        with tempfile.TemporaryDirectory() as folder:
            loop = prepared(Path(folder), LAST, *overrides, f"federation.rounds={repetitions + 1}")
            against = Against(loop)
            loop.callbacks = [against]
            loop.fit()
        figures = {"ours": against.ours[1:], "bare": against.bare[1:]}  # the first round warms up
        lines.append(Line(f"{name}: our round / bare loop", ratio(figures, "ours", "bare"), "x", goal))
    for name, (overrides, goal) in IDLE.items():
        with tempfile.TemporaryDirectory() as folder:
            idle = ("method.class=benchmark.speed.overhead.Idle", f"federation.rounds={10 * repetitions}")
            loop = prepared(Path(folder), LAST, *overrides, *idle)
            loop.start()
            taken = [seconds(lambda: loop.run_round(0)) for _ in range(10 * repetitions)][5:]  # noqa: B023
            saved = [seconds(loop.save) for _ in range(repetitions)]
        a_visit = spread(1000 * taking / 10 for taking in taken)
        lines.append(Line(f"{name}: a visit without work", a_visit, "ms", goal))
        lines.append(Line(f"{name}: saving the round", spread(1000 * one for one in saved), "ms"))
    return lines


def prepared(folder: Path, *overrides: str) -> FederatedLoop:
    """A federation ready to play, in this process."""
    common = (f"output={folder}", "logger=csv", "devices=1", "evaluation.every=0")
    run = Run(compose(str(PATH), "fedavg", [*common, *overrides]), Display(Console(file=io.StringIO())))
    run.prepare()
    return run.loop


class Against:
    """Plays each round once more, barely, right after it; keeps the seconds of both.

    Raises:
        RuntimeError: after the first round both hold other weights.
    """

    def __init__(self, loop: FederatedLoop) -> None:
        self.bare_loop = BareLoop(loop)
        self.ours: list[float] = []
        self.bare: list[float] = []
        self.since = 0.0

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Starts the clock."""
        self.since = time.perf_counter()

    def on_round_end(self, loop: FederatedLoop, row: dict[str, Any]) -> None:
        """Stops it for as long as the bare loop takes."""
        self.ours.append(time.perf_counter() - self.since)
        self.bare.append(seconds(lambda: self.bare_loop.run_round(row["round"] - 1)))
        if row["round"] == 1:
            apart = self.bare_loop.apart(loop.server["weights"])
            if not apart < AGREE:
                raise RuntimeError(f"the bare loop's weights are {apart} away from ours: not the same work")
        self.since = time.perf_counter()


class BareLoop:
    """FedAvg of SimCLR on a CPU, without a framework."""

    def __init__(self, loop: FederatedLoop) -> None:
        assert isinstance(loop.work, SequentialExecutor)
        self.loop, self.work = loop, loop.work
        self.method = loop.method
        self.encoder, self.projector = self.method.objective.encoder, self.method.objective.projector
        self.parameters = [*self.encoder.parameters(), *self.projector.parameters()]
        buffers = [*self.encoder.buffers(), *self.projector.buffers()]
        self.tensors: list[Tensor] = [*self.parameters, *(one for one in buffers if one.is_floating_point())]
        self.weights = [tensor.detach().clone() for tensor in self.tensors]

    def run_round(self, round: int) -> None:
        """One round over the same cohort, order and views."""
        loop = self.loop
        cohort = loop.streams.cohort(round, len(loop.clients), loop.participation)
        total = sum(loop.clients[k].examples for k in cohort)
        summed = [torch.zeros_like(weight) for weight in self.weights]
        for k in cohort:
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, self.weights)
            self.train(round, k)
            with torch.no_grad():
                torch._foreach_add_(summed, self.tensors, alpha=loop.clients[k].examples / total)
        self.weights = summed

    def train(self, round: int, client: int) -> None:
        """One visit."""
        streams, pace = self.work.streams, self.work.pace
        optimizer = self.method.make_optimizer(self.parameters)
        self.method.train()
        key: dict[str, Any] = {"round": round, "phase": "fit", "client": client}
        for batch in self.work.data.batches(
            client,
            ("augment", "augment"),
            pace.batch_size,
            epochs=pace.epochs,
            steps=pace.steps,
            order=streams.generator("order", **key),
            views=streams.generator("views", **key),
        ):
            z = self.projector(self.encoder(torch.cat(batch.views)))
            loss = nt_xent(*z.chunk(2), self.method.objective.temperature)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def apart(self, weights: dict[str, dict[str, Tensor]]) -> float:
        """Largest difference from another's weights."""
        own = {**dict(zip(self.tensors, self.weights, strict=True))}
        named: Sequence[tuple[Tensor, Tensor]] = [
            (own[tensor], weights[part][name])
            for part, module in (("encoder", self.encoder), ("projector", self.projector))
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
            if tensor.is_floating_point()
        ]
        return max(float((one - other).abs().max()) for one, other in named)
