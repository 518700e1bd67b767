"""torch.compile for the networks of a run, with a measurement of its cost and gain on the run's first batch."""

import time
import timeit
from collections.abc import Sequence

import torch

from benchmark.distributed.collectives import on_rank_zero
from benchmark.execution.sequential import SequentialExecutor
from datamodules.federated import Batch
from methods import trees
from methods.base import Client

STEPS = 3
"""Timed passes, before and after."""


def compile_networks(
    executor: SequentialExecutor, clients: Sequence[Client], visits: int, backend: str = "inductor"
) -> tuple[bool, str]:
    """Compiles the objective's joint pass in place where that makes it faster; returns whether it does, and a report.

    Passes forward and back are timed on the largest client's first batch; the model is reset before its first visit.
    Another shape (a short last batch, another mode) is compiled when it first occurs.

    Args:
        clients: that may be visited. visits: of the whole run, from which its steps are counted.
    """
    method = executor.method
    phase = next((phase for phase in method.plan(0) if phase.learns), None)
    if phase is None:
        return False, "nothing is trained"
    size, generator = phase.batch_size or executor.training.batch_size, executor.streams.generator("compile")
    largest, device = max(clients, key=lambda client: client.examples), executor.fabric.device
    batches = executor.data.batches(
        largest.id, method.views(phase), size, order=generator, views=generator, device=device
    )
    batch = next(iter(batches))
    batch = batch._replace(draws=trees.to(method.hook("draw", phase)(batch, generator), dtype=executor.data.dtype))
    before = _timed(executor, batch)
    method.objective.compile(backend=backend)
    started = time.perf_counter()
    _pass(executor, batch)
    measured = time.perf_counter() - started, before, _timed(executor, batch)
    executor.flat_parameters.reset()
    method.zero_grad(set_to_none=True)
    # the first rank decides for all: ranks that disagreed would round a client's steps in two ways
    spent, before, after = on_rank_zero(executor.fabric, lambda: measured, all_cores=False)
    if faster := after < before:
        images = sum(executor.images(phase, client) for client in clients) / len(clients)
        steps = round(visits * images / len(batch.index))  # of the run, all ranks together
        pays = f"pays back after {spent / (before - after):,.0f} steps; this run has {steps:,}"
    else:
        pays = "it never pays here"
        method.objective._compiled_call_impl = None  # there is no public way to undo it
    change = f"a pass takes {1000 * after:.1f} ms instead of {1000 * before:.1f} ms"
    return faster, f"compiled in {spent:.1f} s; {change}: {pays}"


def _timed(executor: SequentialExecutor, batch: Batch) -> float:
    """Seconds of the fastest of some passes."""
    return min(timeit.repeat(lambda: _pass(executor, batch), timer=time.perf_counter, number=1, repeat=STEPS))


def _pass(executor: SequentialExecutor, batch: Batch) -> None:
    """Forward and backward pass of all networks on all views."""
    executor.method.train()
    with executor.fabric.autocast():
        out = executor.method.objective(*batch.views, **executor.method.objective.drawn(batch.draws))
    loss = torch.stack([output.float().square().mean() for output in (*out.embeddings, *out.predictions)]).sum()
    executor.fabric.backward(loss)
    if executor.fabric.device.type == "cuda":
        torch.cuda.synchronize()
