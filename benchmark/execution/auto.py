"""The faster of two executors, found by trials on a run's own visits."""

import time
from collections.abc import Callable, Iterator, Sequence

from benchmark.execution.base import Executor, PhaseInputs, VisitResult
from benchmark.execution.parallel import ParallelExecutor
from benchmark.execution.sequential import SequentialExecutor
from methods.base import Client, Phase


class AutotunedExecutor:
    """Tries both executors on a run's own visits, then stays with the faster: a way for each training phase.

    The reference is given `lanes` visits to warm up and as many that count; so is the other, a trial a round, with two
    to warm up: one in which shapes come for the first time, one in which they are recorded. What counts is seconds an
    image, with what has to be recorded anew in each round.

    Args:
        reference, other: the executors. clock: seconds.
    """

    def __init__(
        self, reference: SequentialExecutor, other: ParallelExecutor, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.reference, self.other, self.clock = reference, other, clock
        self.trials: dict[str, list[float]] = {}  # phase -> seconds an image of the trials so far
        self.several = False  # whether clients were ever visited by the other

    @property
    def rounds_differently(self) -> bool:
        """Whether clients were visited by the other at all, and its results differ by rounding."""
        return self.several and self.other.rounds_differently

    def images(self, phase: Phase, client: Client) -> int:
        """How many images a visit will see."""
        return self.reference.images(phase, client)

    def run(self, given: PhaseInputs, block: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits every client of the block; a message is to be used before the next one is asked for."""
        rest, few, phase = list(block), len(self.other.lanes), given.phase
        order = (self.reference, self.reference, self.other, self.other, self.other)
        trials = self.trials.setdefault(phase.name, [])
        executor: Executor = self.reference
        while phase.work == "train" and executor is self.reference and len(trials) < len(order) and len(rest) >= few:
            tried, rest = rest[:few], rest[few:]
            executor, began = order[len(trials)], self.clock()
            self.several |= executor is self.other
            yield from executor.run(given, tried)
            trials.append((self.clock() - began) / max(1, sum(self.images(phase, client) for client in tried)))
        faster = len(trials) == len(order) and trials[-1] < trials[1]
        yield from (self.other if faster else self.reference).run(given, rest)
