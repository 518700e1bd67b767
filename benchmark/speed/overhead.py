"""Overhead of a run: rounds against a bare PyTorch loop, layouts and precisions, start-up, and the monitor.

The bare loop has what its writer would tune: the allocator set, one model, weights copied and added as lists of
tensors; it checks and saves nothing. It must end at the same weights, or it did not do the same work. Our round is
timed from the end of one to the end of the next, its checkpoint included.
"""

import io
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmark.configuration.compose import compose
from benchmark.evaluation.monitor import Monitor
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment.experiment import Experiment
from benchmark.federation.loop import Callback, FederatedLoop
from benchmark.speed.peer.workload import PATH
from benchmark.speed.timing import (
    Line,
    Log,
    arrival_times,
    interleaved,
    ratio,
    run_command,
    run_process,
    seconds,
    spread,
)
from benchmark.tracking.progress import Display
from methods.base import FederatedMethod, Mean, Phase
from methods.maths import nt_xent

LAST = "training.channels_last=true"
RESNET = ("encoder={class: methods.networks.resnet18}", "heads.projector=[512,128]", "training.batch_size=32")
FLOORS = {
    "convnet, batch 16": (("training.batch_size=16",), "<= 1.10"),
    "convnet, batch 64": (("training.batch_size=64",), "<= 1.10"),
    "resnet18, batch 32": ((*RESNET, "training.steps=4", "federation.participation=0.06"), "<= 1.03"),
}
VISITS = {"convnet": ((), "<= 1"), "resnet18": (RESNET, "<= 10")}
MAX_DIFFERENCE = 1e-3
"""Of weights after the first round: float32 sums in another order, amplified by training."""

PLAIN = "fp32"
NETWORKS = {
    "convnet, batch 64": ("training.batch_size=64",),
    "resnet18, batch 32": (*RESNET, "training.steps=2", "federation.participation=0.04"),
}
VARIANTS = {
    PLAIN: ("training.channels_last=false",),
    "fp32, channels last": (LAST,),
    "bf16, channels last": (LAST, "training.precision=bf16-mixed"),
    "fp32, compiled": ("training.channels_last=false",),
}


class Idle(FederatedMethod):
    """FedAvg whose clients send back the weights unchanged."""

    phases = (Phase("fit", work="none", uplink={"weights": Mean("examples")}),)


def floor(repetitions: int, log: Log) -> list[Line]:
    """Ratios of rounds to the bare loop's, and milliseconds of a visit without work."""
    lines = []
    for name, (overrides, goal) in FLOORS.items():
        log(name)
        with tempfile.TemporaryDirectory() as folder:
            loop = build_loop(Path(folder), LAST, *overrides, f"federation.rounds={repetitions + 1}")
            comparison = Comparison(loop)
            loop.callbacks = [comparison]
            loop.fit()
        values = {"ours": comparison.ours[1:], "bare": comparison.bare[1:]}  # the first round warms up
        lines.append(Line(f"{name}: our round / bare loop", ratio(values, "ours", "bare"), goal=goal))
    for name, (overrides, goal) in VISITS.items():
        with tempfile.TemporaryDirectory() as folder:
            idle = ("method.class=benchmark.speed.overhead.Idle", f"federation.rounds={10 * repetitions}")
            loop = build_loop(Path(folder), LAST, *overrides, *idle)
            loop.restore()
            rounds = [seconds(lambda: loop.run_round(0)) for _ in range(10 * repetitions)][5:]  # noqa: B023
            saves = [seconds(loop.save) for _ in range(repetitions)]
        lines += [
            Line(f"{name}: a visit without work", spread(1000 * duration / 10 for duration in rounds), "ms", goal),
            Line(f"{name}: saving the round", spread(1000 * duration for duration in saves), "ms"),
        ]
    return lines


def precision(repetitions: int, log: Log) -> list[Line]:
    """Speed of the same round in other layouts and precisions, over plain fp32."""
    lines = []
    for network, overrides in NETWORKS.items():
        log(network)
        with tempfile.TemporaryDirectory() as folder:
            loops = {name: build_loop(Path(folder) / name, *overrides, *variant) for name, variant in VARIANTS.items()}
            loops["fp32, compiled"].method.objective.compile()
            for loop in loops.values():
                loop.restore()
                loop.run_round(0)  # warms up, and compiles
            contenders = {name: partial(seconds, partial(loop.run_round, 0)) for name, loop in loops.items()}
            values = interleaved(contenders, repetitions, log)
        others = [name for name in VARIANTS if name != PLAIN]
        lines += [Line(f"{network}: {name}, speed over {PLAIN}", ratio(values, PLAIN, name)) for name in others]
    return lines


def startup(repetitions: int, log: Log) -> list[Line]:
    """From the command until the first round, of one client and one step, is on disk; over the imports alone."""
    values = interleaved({"first step": _first_step, "imports": _imports}, repetitions, log)
    first = ratio(values, "first step", "imports")
    return [
        Line("digits: first step / `import torch, lightning`", first, goal="<= 2.50"),
        *(Line(name, spread(values[name]), "s") for name in values),
    ]


def _imports() -> float:
    """Seconds until the two largest imports are done."""
    start = time.time()
    command = [sys.executable, "-c", "import torch, lightning, time; print(time.time())"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - start


def _first_step() -> float:
    """Seconds until the first line of `rounds.jsonl`, which follows the checkpoint."""
    short = ("federation.rounds=1", "federation.participation=0.1", "training.steps=1")
    with run_command("digits", *short) as (command, folder), arrival_times(folder / "rounds.jsonl") as times:
        run_process(command)
    return times[0]


class TimedMonitor(Monitor):
    """A monitor that records its own seconds, and the round's."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.values: dict[str, list[float]] = {"a look": [], "a round": []}

    def on_round_trained(self, loop: Any, row: dict[str, Any]) -> None:
        """As the monitor's."""
        self.values["a look"].append(seconds(lambda: super(TimedMonitor, self).on_round_trained(loop, row)))
        self.values["a round"].append(row["seconds"])


def monitor(repetitions: int, log: Log) -> list[Line]:
    """Cost of the monitor on `cifar10-mini` with synthetic images, in every round and as often as shipped."""
    with tempfile.TemporaryDirectory() as folder:
        images = ("data.name=synthetic", "data.image_size=32", "data.options={examples: 62500, classes: 10}")
        placement = (f"output={folder}", "logger=csv", "accelerator=cpu", "devices=1")
        config = compose("cifar10-mini", "fedavg", [*images, *placement, f"federation.rounds={repetitions + 1}"])
        log(f"{repetitions + 1} rounds, {torch.get_num_threads()} threads")
        with Display(Console(quiet=True)) as display, Experiment(config, display).open() as run:
            timed = TimedMonitor(run.evaluator, 1, run.recalibrated)
            run.loop.callbacks = [timed]
            run.loop.fit()
    values = {name: durations[1:] for name, durations in timed.values.items()}  # the first round warms up
    every = config.evaluation.every
    shipped = {"a look": [duration / every for duration in values["a look"]], "a round": values["a round"]}
    fraction = ratio(shipped, "a look", "a round")
    return [
        Line(f"a look every {every} rounds, as shipped: of the rounds' time", fraction, goal="<= 0.05"),
        Line("a look / its round", ratio(values, "a look", "a round")),
        *(Line(name, spread(durations), "s") for name, durations in values.items()),
    ]


def build_loop(folder: Path, *overrides: str) -> FederatedLoop:
    """A loop of the peers' scenario in this process, ready to start."""
    common = (f"output={folder}", "logger=csv", "devices=1", "evaluation.every=0")
    config = compose(str(PATH), "fedavg", [*common, *overrides])
    return Experiment(config, Display(Console(file=io.StringIO()))).build().loop


class Comparison(Callback):
    """Repeats each round in the bare loop and records the seconds of both.

    Raises:
        RuntimeError: after the first round the weights differ.
    """

    def __init__(self, loop: FederatedLoop) -> None:
        self.bare_loop = BareLoop(loop)
        self.ours: list[float] = []
        self.bare: list[float] = []
        self.start = 0.0

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Start the clock."""
        self.start = time.perf_counter()

    def on_round_end(self, loop: FederatedLoop, row: dict[str, Any]) -> None:
        """Stop the clock while the bare loop runs."""
        self.ours.append(time.perf_counter() - self.start)
        self.bare.append(seconds(lambda: self.bare_loop.run_round(row["round"] - 1)))
        if row["round"] == 1:
            difference = self.bare_loop.difference(loop.server["weights"])
            if not difference < MAX_DIFFERENCE:
                raise RuntimeError(f"the bare loop's weights differ from ours by {difference}: not the same work")
        self.start = time.perf_counter()


class BareLoop:
    """FedAvg of SimCLR on a CPU, without a framework."""

    def __init__(self, loop: FederatedLoop) -> None:
        assert isinstance(loop.executor, SequentialExecutor)
        self.loop, self.executor, self.method = loop, loop.executor, loop.method
        parts = {name: getattr(self.method.objective, name) for name in ("encoder", "projector")}
        self.encoder, self.projector = parts.values()
        self.parameters = [parameter for module in parts.values() for parameter in module.parameters()]
        named: dict[tuple[str, str], Tensor] = {
            (part, name): tensor
            for part, module in parts.items()
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
            if tensor.is_floating_point()
        }
        self.names, self.tensors = list(named), list(named.values())
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
        streams, training = self.executor.streams, self.executor.training
        optimizer = self.method.make_optimizer(self.parameters)
        self.method.train()
        key: dict[str, Any] = {"round": round, "phase": "fit", "client": client}
        order, views = (streams.generator(purpose, **key) for purpose in ("order", "views"))
        names, epochs, steps = ("augment", "augment"), training.epochs, training.steps
        for batch in self.executor.data.batches(
            client, names, training.batch_size, epochs=epochs, steps=steps, order=order, views=views
        ):
            z = self.projector(self.encoder(torch.cat(batch.views)))
            loss = nt_xent(*z.chunk(2), self.method.objective.temperature)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def difference(self, weights: dict[str, dict[str, Tensor]]) -> float:
        """Largest difference from other weights."""
        pairs = zip(self.names, self.weights, strict=True)
        return max(float((weight - weights[part][name]).abs().max()) for (part, name), weight in pairs)
