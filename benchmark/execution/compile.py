"""torch.compile for the networks of a run, with a measurement of its cost and gain on the run's first batch."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmark.distributed.collectives import on_rank_zero
from benchmark.execution.sequential import SequentialExecutor
from datamodules.federated import Batch
from methods.base import Client, Phase

STEPS = 3
"""Timed passes, before and after."""


@dataclass(frozen=True)
class CompileReport:
    """Cost and gain of compiling.

    seconds: to compile. before, after: seconds of a pass. steps: of the run, all ranks together. kept: whether the
    compiled networks are used.
    """

    seconds: float
    before: float
    after: float
    steps: int
    kept: bool

    @property
    def break_even(self) -> float:
        """Steps after which compiling has paid back; infinite where a pass did not become faster."""
        return self.seconds / (self.before - self.after) if self.after < self.before else math.inf

    def __str__(self) -> str:
        pass_ = f"a pass takes {1000 * self.after:.1f} ms instead of {1000 * self.before:.1f} ms"
        line = f"compiled in {self.seconds:.1f} s; {pass_}: "
        if math.isinf(self.break_even):
            return f"{line}it never pays here"
        return f"{line}pays back after {self.break_even:,.0f} steps; this run has {self.steps:,}"


def compile_networks(
    executor: SequentialExecutor, clients: Sequence[Client], visits: int, backend: str = "inductor"
) -> CompileReport | None:
    """Compiles the objective's joint pass in place where that makes it faster; None if nothing is trained.

    Passes forward and back are timed on the largest client's first batch; the model is reset before its first visit.
    Another shape (a short last batch, another mode) is compiled when it first occurs.

    Args:
        clients: that may be visited. visits: of the whole run, from which its steps are counted.
    """
    phase = next((phase for phase in executor.method.plan(0) if phase.work == "train"), None)
    if phase is None:
        return None
    batch = first_batch(executor, phase, max(clients, key=lambda client: client.examples))
    before = _timed(executor, batch)
    executor.method.objective.compile(backend=backend)
    started = time.perf_counter()
    _pass(executor, batch)
    spent, after = time.perf_counter() - started, _timed(executor, batch)
    executor.resident.reset()
    executor.method.zero_grad(set_to_none=True)
    # the first rank decides for all: ranks that disagreed would round a client's steps in two ways
    kept = on_rank_zero(executor.fabric, lambda: after < before, all_cores=False)
    if not kept:
        executor.method.objective._compiled_call_impl = None  # there is no public way to undo it
    images = sum(executor.images(phase, client) for client in clients) / len(clients)
    return CompileReport(spent, before, after, round(visits * images / len(batch.index)), kept)


def first_batch(executor: SequentialExecutor, phase: Phase, client: Client) -> Batch:
    """The first batch of the client's first visit."""
    size, generator = phase.batch_size or executor.training.batch_size, executor.streams.generator("compile")
    batches = executor.data.batches(
        client.id, executor.method.views(phase), size, order=generator, views=generator, device=executor.fabric.device
    )
    return next(iter(batches))


def _timed(executor: SequentialExecutor, batch: Batch) -> float:
    """Seconds of the fastest of some passes."""
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        _pass(executor, batch)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _pass(executor: SequentialExecutor, batch: Batch) -> None:
    """Forward and backward pass of all networks on all views."""
    executor.method.train()
    with executor.fabric.autocast():
        out = executor.method.objective(*batch.views)
    loss = torch.stack([output.float().square().mean() for output in (*out.embeddings, *out.predictions)]).sum()
    executor.fabric.backward(loss)
    if executor.fabric.device.type == "cuda":
        torch.cuda.synchronize()
