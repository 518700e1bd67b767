"""Choice of the faster executor by trials on a run's own visits."""

import time
from collections.abc import Callable, Iterator, Sequence

from benchmark.execution.base import Executor, PhaseInputs, VisitResult
from benchmark.execution.parallel import ParallelExecutor
from benchmark.execution.sequential import SequentialExecutor
from methods.base import Client


class AutotunedExecutor:
    """Times both executors on a run's own visits, then uses the faster one, for each training phase by itself.

    The sequential executor has a trial of `lanes` visits to warm up and one that counts; the parallel one has a trial
    a round: two to warm up and to record shapes, and one that counts. They are compared by seconds an image.

    Args:
        reference, parallel: the executors. clock: seconds.
    """

    def __init__(
        self, reference: SequentialExecutor, parallel: ParallelExecutor, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.reference, self.parallel, self.clock, self.images = reference, parallel, clock, reference.images
        self.trials: dict[str, list[float]] = {}  # phase -> seconds an image of the trials so far
        self.used_parallel = False

    @property
    def bitwise_exact(self) -> bool:
        """Whether no client was visited by recorded steps, which round differently."""
        return not self.used_parallel or self.parallel.bitwise_exact

    def run(self, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits the clients in order; a reply has to be used before the next one is requested."""
        rest, few, phase = list(clients), len(self.parallel.lanes), inputs.phase
        order = (self.reference, self.reference, self.parallel, self.parallel, self.parallel)
        trials = self.trials.setdefault(phase.name, [])
        executor: Executor = self.reference
        while phase.work == "train" and executor is self.reference and len(trials) < len(order) and len(rest) >= few:
            tried, rest = rest[:few], rest[few:]
            executor, started = order[len(trials)], self.clock()
            self.used_parallel |= executor is self.parallel
            yield from executor.run(inputs, tried)
            trials.append((self.clock() - started) / max(1, sum(self.images(phase, client) for client in tried)))
        faster = len(trials) == len(order) and trials[-1] < trials[1]
        yield from (self.parallel if faster else self.reference).run(inputs, rest)
