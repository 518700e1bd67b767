"""Choice of the faster executor by trials on a run's own visits."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmark.errors import count
from benchmark.execution.base import Executor, PhaseInputs, VisitResult
from benchmark.execution.parallel import ParallelExecutor
from benchmark.execution.sequential import SequentialExecutor
from methods.base import Client

log = logging.getLogger(__name__)


class AutotunedExecutor:
    """Times both executors on a run's own visits, then uses the faster one, for each training phase by itself.

    The sequential executor has a trial of `lanes` visits to warm up and one that counts; the parallel one has a trial
    a round: two to warm up and to record shapes, and one that counts. They are compared by seconds an image. A trial
    has fewer visits where there are fewer clients. Where the device's memory is too small for the lanes, they are
    freed and the sequential executor goes on.

    Args:
        reference, parallel: the executors. clock: seconds.
    """

    def __init__(
        self, reference: SequentialExecutor, parallel: ParallelExecutor, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.reference, self.parallel, self.clock, self.images = reference, parallel, clock, reference.images
        self.trials: dict[str, list[float]] = {}  # phase -> seconds an image of the trials so far
        self.used_parallel = self.out_of_memory = False

    @property
    def bitwise_exact(self) -> bool:
        """Whether no client was visited by recorded steps, which round differently."""
        return not self.used_parallel or self.parallel.bitwise_exact

    def run(self, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits the clients in order; a reply has to be used before the next one is requested."""
        rest, phase = list(clients), inputs.phase
        few = max(1, min(len(self.parallel.lanes), len(rest)))  # recorded steps pay on one lane too
        order = (self.reference, self.reference, self.parallel, self.parallel, self.parallel)
        trials = self.trials.setdefault(phase.name, [])
        executor: Executor = self.reference
        while phase.work == "train" and executor is self.reference and len(trials) < len(order) and len(rest) >= few:
            tried, rest = rest[:few], rest[few:]
            executor, started = order[len(trials)], self.clock()
            yield from self._visits(executor, inputs, tried)
            trials.append((self.clock() - started) / max(1, sum(self.images(phase, client) for client in tried)))
        faster = len(trials) == len(order) and trials[-1] < trials[1]
        yield from self._visits(self.parallel if faster else self.reference, inputs, rest)

    def _visits(self, executor: Executor, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """The visits by an executor; the parallel one is given up where the device's memory is too small for it."""
        done = 0
        if executor is self.parallel and not self.out_of_memory:
            self.used_parallel = True
            try:
                for result in self.parallel.run(inputs, clients):
                    done += 1
                    yield result
            except torch.OutOfMemoryError:
                self.out_of_memory = True
                visits = count(len(self.parallel.lanes), "visit")
                log.warning("the device's memory is too small for %s at once: they go on one by one", visits)
            if self.out_of_memory:  # outside the handler, whose traceback holds tensors
                self.parallel.free()
        yield from self.reference.run(inputs, clients[done:])
