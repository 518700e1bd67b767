"""torch.compile for the networks of a run, and whether that pays: measured on the run's own first batch, and said."""

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
class Verdict:
    """What compiling cost and gained.

    seconds: to compile. before, after: of a pass. steps: of the run, all ranks together. kept: whether it stays.
    """

    seconds: float
    before: float
    after: float
    steps: int
    kept: bool

    @property
    def break_even(self) -> float:
        """Steps from which on it pays; infinite where a pass did not become faster."""
        return self.seconds / (self.before - self.after) if self.after < self.before else math.inf

    def __str__(self) -> str:
        pass_ = f"a pass takes {1000 * self.after:.1f} ms instead of {1000 * self.before:.1f} ms"
        line = f"compiled in {self.seconds:.1f} s; {pass_}: "
        if math.isinf(self.break_even):
            return f"{line}it never pays here"
        return f"{line}pays back after {self.break_even:,.0f} steps; this run has {self.steps:,}"


def compile_networks(
    work: SequentialExecutor, clients: Sequence[Client], visits: int, backend: str = "inductor"
) -> Verdict | None:
    """Compiles the joint pass of the objective in place, unless that makes it no faster; None if nothing is trained.

    Passes forward and back are timed on the largest client's first batch; the model is reset before its first visit.
    Another shape (a last short batch, another mode) is compiled when it comes.

    Args:
        clients: who may be visited. visits: of the whole run, for how many steps it has.
    """
    phase = next((phase for phase in work.method.plan(0) if phase.work == "train"), None)
    if phase is None:
        return None
    batch = first_batch(work, phase, max(clients, key=lambda client: client.examples))
    before = _timed(work, batch)
    work.method.objective.compile(backend=backend)
    began = time.perf_counter()
    _pass(work, batch)
    spent, after = time.perf_counter() - began, _timed(work, batch)
    work.resident.reset()
    work.method.zero_grad(set_to_none=True)
    # the first rank decides for all: those that disagreed would round a client's steps in two ways
    kept = on_rank_zero(work.fabric, lambda: after < before, undisturbed=False)
    if not kept:
        work.method.objective._compiled_call_impl = None  # there is no public way back
    images = sum(work.images(phase, client) for client in clients) / len(clients)
    return Verdict(spent, before, after, round(visits * images / len(batch.index)), kept)


def first_batch(work: SequentialExecutor, phase: Phase, client: Client) -> Batch:
    """A batch as the client's first visit would have it."""
    size, generator = phase.batch_size or work.pace.batch_size, work.streams.generator("compile")
    batches = work.data.batches(
        client.id, work.method.views(phase), size, order=generator, views=generator, device=work.fabric.device
    )
    return next(iter(batches))


def _timed(work: SequentialExecutor, batch: Batch) -> float:
    """The fastest of some passes, seconds."""
    taken = []
    for _ in range(STEPS):
        began = time.perf_counter()
        _pass(work, batch)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _pass(work: SequentialExecutor, batch: Batch) -> None:
    """All networks forward on all views, and back."""
    work.method.train()
    with work.fabric.autocast():
        out = work.method.objective(*batch.views)
    loss = torch.stack([one.float().square().mean() for one in (*out.embeddings, *out.predictions)]).sum()
    work.fabric.backward(loss)
    if work.fabric.device.type == "cuda":
        torch.cuda.synchronize()
