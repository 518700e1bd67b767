"""torch.compile for the networks of a run, and whether that pays: measured on the run's own first batch, and said."""

import time
from collections.abc import Sequence

import torch

from benchmark.work import OneByOne
from datamodules.federated import Batch
from methods.base import Client, Phase

STEPS = 3
"""Timed passes, before and after."""


def compile_networks(work: OneByOne, clients: Sequence[Client], rounds: int, backend: str = "inductor") -> str:
    """Compiles the joint pass of the objective in place; returns one line on what that cost and from when on it pays.

    Passes forward and back are timed on the largest client's first batch; the model is reset before its first visit.
    Another shape (a last short batch, another mode) is compiled when it comes.

    Args:
        clients: who may be visited. rounds: of the run, for how many steps it has.
    """
    phase = next((phase for phase in work.method.plan(0) if phase.work == "train"), None)
    if phase is None:
        return "compile: nothing is trained"
    largest = max(clients, key=lambda client: client.examples)
    batch = first_batch(work, phase, largest)
    plain = _timed(work, batch)
    work.method.objective.compile(backend=backend)
    began = time.perf_counter()
    _pass(work, batch)
    spent, compiled = time.perf_counter() - began, _timed(work, batch)
    work.resident.reset()
    work.method.zero_grad(set_to_none=True)
    line = f"compiled in {spent:.1f} s; a pass takes {1000 * compiled:.1f} ms instead of {1000 * plain:.1f} ms: "
    if compiled >= plain:
        return f"{line}it never pays here"
    steps = rounds * sum(work.images(phase, client) for client in clients) // max(1, len(batch.index))
    return (
        f"{line}pays back after {spent / (plain - compiled):,.0f} steps, of which this run has {steps:,} at most, "
        "all ranks together"
    )


def first_batch(work: OneByOne, phase: Phase, client: Client) -> Batch:
    """A batch as the client's first visit would have it."""
    size, generator = phase.batch_size or work.pace.batch_size, work.streams.generator("compile")
    batches = work.data.batches(
        client.id, work.method.views(phase), size, order=generator, views=generator, device=work.fabric.device
    )
    return next(iter(batches))


def _timed(work: OneByOne, batch: Batch) -> float:
    """The fastest of some passes, seconds."""
    taken = []
    for _ in range(STEPS):
        began = time.perf_counter()
        _pass(work, batch)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _pass(work: OneByOne, batch: Batch) -> None:
    """All networks forward on all views, and back."""
    work.method.train()
    with work.fabric.autocast():
        out = work.method.objective(*batch.views)
    loss = torch.stack([one.float().square().mean() for one in (*out.z, *out.p)]).sum()
    work.fabric.backward(loss)
    if work.fabric.device.type == "cuda":
        torch.cuda.synchronize()
