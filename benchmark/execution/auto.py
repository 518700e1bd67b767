"""Choice of the faster executor by trials on a run's own visits."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmark.errors import count
from benchmark.execution.base import PhaseInputs, VisitResult
from benchmark.execution.parallel import ParallelExecutor
from benchmark.execution.sequential import SequentialExecutor
from methods.base import Client

log = logging.getLogger(__name__)

ONE_BY_ONE = 0
"""Lanes of the sequential executor."""


class AutotunedExecutor:
    """Times three ways on a run's own visits, then uses the fastest one, for each training phase by itself.

    One by one has a trial of as many visits as there are lanes to warm up and one that counts; all lanes have a trial a
    round, two to warm up and to record shapes and one that counts; then recorded steps on one lane have one, which are
    faster where a step's kernels are too small to overlap. They are compared by seconds an image. A trial has fewer
    visits where there are fewer clients. Where the device's memory is too small for the lanes, they are freed and the
    visits go on one by one.

    Args:
        reference, parallel: the executors. clock: seconds.
    """

    def __init__(
        self, reference: SequentialExecutor, parallel: ParallelExecutor, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.reference, self.parallel, self.clock, self.images = reference, parallel, clock, reference.images
        lanes = len(parallel.lanes)
        self.order = (ONE_BY_ONE, ONE_BY_ONE, lanes, lanes, lanes, *([1] if lanes > 1 else []))
        self.trials: dict[str, list[float]] = {}  # phase -> seconds an image of the trials so far
        self.used_parallel = self.out_of_memory = False

    @property
    def bitwise_exact(self) -> bool:
        """Whether no client was visited by recorded steps, which round differently."""
        return not self.used_parallel or self.parallel.bitwise_exact

    def run(self, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits the clients in order; a reply has to be used before the next one is requested."""
        rest, phase = list(clients), inputs.phase
        few = max(1, min(len(self.parallel.lanes), len(rest)))
        trials = self.trials.setdefault(phase.name, [])
        lanes = ONE_BY_ONE
        while phase.work == "train" and not lanes and len(trials) < len(self.order) and len(rest) >= few:
            tried, rest = rest[:few], rest[few:]
            lanes, started = self.order[len(trials)], self.clock()
            yield from self._visits(lanes, inputs, tried)
            trials.append((self.clock() - started) / max(1, sum(self.images(phase, client) for client in tried)))
        yield from self._visits(self._fastest(trials), inputs, rest)

    def _fastest(self, trials: Sequence[float]) -> int:
        """The number of lanes of the fastest way, by the last trial of each; one by one until all were tried."""
        seconds = dict(zip(self.order, trials, strict=False))
        return min(seconds, key=seconds.__getitem__) if len(trials) == len(self.order) else ONE_BY_ONE

    def _visits(self, lanes: int, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """The visits on so many lanes; these are given up where the device's memory is too small for them."""
        done = 0
        if lanes and not self.out_of_memory:
            self.used_parallel = True
            try:
                for result in self.parallel.run(inputs, clients, lanes):
                    done += 1
                    yield result
            except torch.OutOfMemoryError:
                self.out_of_memory = True
                visits = count(len(self.parallel.lanes), "visit")
                log.warning("the device's memory is too small for %s at once: they go on one by one", visits)
            if self.out_of_memory:  # outside the handler, whose traceback holds tensors
                self.parallel.free()
        yield from self.reference.run(inputs, clients[done:])
