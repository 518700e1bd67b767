"""Overhead of a run: rounds against a bare PyTorch loop, and start-up.

The bare loop has what its writer would tune, and checks and saves nothing; it must end at the same weights. Our round
is timed from the end of one to the end of the next, its checkpoint included.
"""

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment.experiment import Experiment
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.speed import timing
from benchmark.speed.peer.workload import PATH
from benchmark.speed.timing import ON_CPU, Line, Log, interleaved, ratio, run_command, seconds, spread, values_of
from benchmark.tracking.progress import Display
from methods import trees
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


class Idle(FederatedMethod):
    """FedAvg whose clients send back the weights unchanged."""

    phases = (Phase("fit", work="none", uplink={"weights": Mean("examples")}),)


def floor(repetitions: int, log: Log) -> list[Line]:
    """Ratios of rounds to the bare loop's, and milliseconds of a visit without work."""
    lines = []
    for name, (overrides, goal) in FLOORS.items():
        log(name)
        with tempfile.TemporaryDirectory() as folder:
            loop = build_loop(Path(folder), ON_CPU[0], LAST, *overrides, f"federation.rounds={repetitions + 1}")
            bare_loop = BareLoop(loop)
            loop.callbacks = [bare_loop]
            loop.fit()
        values = {name: durations[1:] for name, durations in bare_loop.seconds.items()}  # the first round warms up
        lines.append(Line(f"{name}: our round / bare loop", ratio(values, "ours", "bare"), goal=goal))
    for name, (overrides, goal) in VISITS.items():
        with tempfile.TemporaryDirectory() as folder:
            idle = ("method.class=benchmark.speed.overhead.Idle", f"federation.rounds={10 * repetitions}")
            loop = build_loop(Path(folder), ON_CPU[0], LAST, *overrides, *idle)
            loop.restore()
            rounds = [seconds(lambda: loop.run_round(0)) for _ in range(10 * repetitions)][5:]  # noqa: B023
            saves = [seconds(loop.save) for _ in range(repetitions)]
        lines += [
            Line(f"{name}: a visit without work", spread(1000 * duration / 10 for duration in rounds), "ms", goal),
            Line(f"{name}: saving the round", spread(1000 * duration for duration in saves), "ms"),
        ]
    return lines


SGD_STEP = (
    "layer = torch.nn.Linear(2, 2); layer(torch.ones(1, 2)).sum().backward(); "
    "torch.optim.SGD(layer.parameters(), lr=0.1).step()"
)
"""A step of plain torch, whose optimizer imports torch's compiler."""


def startup(repetitions: int, log: Log) -> list[Line]:
    """From the command until the first round, of one client and one step, is on disk; over imports and a bare step."""
    torch, plain, both = "import torch", "a step of SGD in plain torch", "import torch, lightning"
    code = {torch: torch, plain: f"import torch; {SGD_STEP}", both: both}
    values = interleaved(
        {"first step": _first_step, **{name: partial(_program, text) for name, text in code.items()}}, repetitions, log
    )
    return [
        Line(f"digits: first step / `{both}`", ratio(values, "first step", both), goal="<= 2.50"),
        Line(f"digits: first step / {plain}", ratio(values, "first step", plain)),
        Line(f"{plain} / `{torch}`", ratio(values, plain, torch)),
        *values_of(values, "s"),
    ]


def _program(code: str) -> float:
    """Seconds from the start of Python until it has done this."""
    start = time.time()
    command = [sys.executable, "-c", f"{code}; import time; print(time.time())"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - start


def _first_step() -> float:
    """Seconds until the first line of `rounds.jsonl`, which follows the checkpoint."""
    short = ("federation.rounds=1", "federation.participation=0.1", "training.steps=1")
    with run_command("digits", *short) as (command, folder), timing.line_times(folder / "rounds.jsonl") as times:
        timing.run_process(command)
    return times[0]


def build_loop(folder: Path, *overrides: str) -> FederatedLoop:
    """A loop of the peers' scenario in this process, ready to start."""
    common = (f"output={folder}", "logger=csv", "devices=1", "evaluation.every=0")
    config = compose(str(PATH), "fedavg", [*common, *overrides])
    return Experiment(config, Display(Console(quiet=True))).build().loop


class BareLoop(Callback):
    """FedAvg of SimCLR without a framework, on the loop's device; run after each of our rounds, records both times.

    Raises RuntimeError: after the first round the weights differ.
    """

    def __init__(self, loop: FederatedLoop) -> None:
        assert isinstance(loop.executor, SequentialExecutor)
        self.loop, self.executor, self.method = loop, loop.executor, loop.method
        self.tensors = [tensor for _, tensor in trees.leaves(self.method.weights())]
        self.weights = [tensor.clone() for tensor in self.tensors]
        self.seconds: dict[str, list[float]] = {"ours": [], "bare": []}
        self.start = 0.0

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Starts the clock."""
        self.start = time.perf_counter()

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Stops the clock while the bare loop runs."""
        self.seconds["ours"].append(time.perf_counter() - self.start)
        self.seconds["bare"].append(seconds(lambda: self.run_round(line["round"] - 1)))
        if line["round"] == 1:
            pairs = zip(trees.leaves(loop.server["weights"]), self.weights, strict=True)
            difference = max(float((ours - bare).abs().max()) for (_, ours), bare in pairs)
            if not difference < MAX_DIFFERENCE:
                raise RuntimeError(f"the bare loop's weights differ from ours by {difference}: not the same work")
        self.start = time.perf_counter()

    def run_round(self, round: int) -> None:
        """One round over the same cohort, order and views."""
        clients = [self.loop.clients[k] for k in self.loop.cohort(round)]
        examples = sum(client.examples for client in clients)
        mean = [torch.zeros_like(weight) for weight in self.weights]
        for client in clients:
            torch._foreach_copy_(self.tensors, self.weights)
            self.train(round, client.id)
            torch._foreach_add_(mean, self.tensors, alpha=client.examples / examples)
        self.weights = mean

    def train(self, round: int, client: int) -> None:
        """One visit."""
        streams, training, objective = self.executor.streams, self.executor.training, self.method.objective
        fabric = self.executor.fabric
        optimizer = self.method.configure_optimizers()
        self.method.train()
        key: dict[str, Any] = {"round": round, "phase": "fit", "client": client}
        order, views = (streams.generator(purpose, **key) for purpose in ("order", "views"))
        names, epochs, steps = ("augment", "augment"), training.epochs, training.steps
        shape: dict[str, Any] = {"epochs": epochs, "steps": steps, "device": fabric.device}
        for batch in self.executor.data.batches(client, names, training.batch_size, order=order, views=views, **shape):
            with fabric.autocast():
                z = objective.projector(objective.encoder(torch.cat(batch.views)))
                loss = nt_xent(*z.chunk(2), objective.temperature)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
