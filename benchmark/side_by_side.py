"""Several clients at once on one device: lanes with a model, a stream and recorded steps of their own.

A small batch leaves a GPU idle: Python asks for some hundred kernels a step, and each fills a fraction of the chip. So
the whole step is recorded once for each shape of batch (a CUDA graph) and then repeated by one call, and lanes run on
streams of their own, so that the kernels of several clients fill the chip together. The mathematics are the
reference's, BatchNorm included; parameters are not stacked.
"""

import contextlib
import copy
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.recording import CudaGraphs, Recorder, Recordings, recordable
from benchmark.streams import Streams
from benchmark.work import Begun, Done, OneByOne, Pace
from datamodules.federated import FederatedDataModule
from methods.base import Client, FederatedMethod, Message, Phase, Tree, Visit


class SideBySide:
    """Clients dealt to lanes in turn; replies come in the order of the block, as from the reference.

    Phases that do not train, and what this cannot record, go one by one: networks with dropout (its draws would depend
    on the lanes), and optimisers other than SGD, Adam and AdamW.

    Args:
        reference: visits whatever is not trained side by side; its model is copied for each lane.
        lanes: clients at once; each takes the memory of a model, its gradients and activations.
        recorder: makes a lane's recorder from its stream; None: steps are taken as they are.
    """

    def __init__(
        self,
        reference: OneByOne,
        lanes: int,
        recorder: Callable[[Any], Recorder] | None = CudaGraphs,
    ) -> None:
        self.reference = reference
        given = (reference.fabric, reference.data, reference.pace, reference.streams)
        self.lanes = [Lane(copy.deepcopy(reference.method), *given, recorder) for _ in range(lanes)]

    def images(self, phase: Phase, client: Client) -> int:
        """How many images a visit will see."""
        return self.reference.images(phase, client)

    def run(
        self,
        actor: Any,
        phase: Phase,
        round: int,
        rounds: int,
        block: Sequence[Client],
        inbox: Mapping[int, Message],
        memory: Mapping[int, Tree],
    ) -> Iterator[Done]:
        """Visits every client of the block; a message is to be used before the next one is asked for."""
        where = (phase, round, rounds)
        if actor is not self.reference.method or phase.work != "train" or not recordable(self.reference.method, phase):
            yield from self.reference.run(actor, *where, block, inbox, memory)
            return
        waiting: deque[tuple[Lane, Begun]] = deque()
        for client, lane in zip(block, itertools.cycle(self.lanes), strict=False):
            if len(waiting) == len(self.lanes):
                yield from self._finished(waiting)
            with lane.current():
                waiting.append((lane, lane.begin(lane.method, *where, client, inbox, memory)))
        while waiting:
            yield from self._finished(waiting)

    def _finished(self, waiting: deque[tuple["Lane", Begun]]) -> Iterator[Done]:
        """The oldest visit; its lane goes on only after the reply was used."""
        lane, begun = waiting.popleft()
        with lane.current():
            done = lane.finish(begun)
        lane.join()
        yield done


class Lane(OneByOne):
    """One model and one stream of the device: visits as the reference does, with steps recorded and repeated."""

    def __init__(
        self,
        method: FederatedMethod,
        fabric: Fabric,
        data: FederatedDataModule,
        pace: Pace,
        streams: Streams,
        recorder: Callable[[Any], Recorder] | None,
    ) -> None:
        super().__init__(fabric, method, data, pace, streams)
        self.stream = torch.cuda.Stream(fabric.device) if fabric.device.type == "cuda" else None
        self.steps = Recordings(recorder(self.stream), fabric.device) if recorder is not None else None
        self.summed = torch.zeros((), device=fabric.device)  # one place, which recorded steps add to

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Work asked for within goes to this lane's stream, after what the caller has asked for so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Lets the caller's stream wait for this lane."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _stepper(self, visit: Visit, optimizer: torch.optim.Optimizer) -> tuple[Callable[[Any], None], Tensor]:
        if self.steps is None:
            return super()._stepper(visit, optimizer)
        self.steps.prepare(self.method, visit.phase, optimizer)
        step = self._step(visit, optimizer, self.summed.zero_())
        return partial(self.steps.take, optimizer=optimizer, step=step), self.summed


class Measured:
    """Tries both executors on a run's own visits, then stays with the faster one: a way for each training phase.

    The first visits go one by one, as many go side by side unmeasured (steps are being recorded), as many more side by
    side. A phase of fewer visits than that stays with the reference.

    Args:
        reference, other: the executors. clock: seconds.
    """

    def __init__(self, reference: OneByOne, other: SideBySide, clock: Callable[[], float] = time.perf_counter) -> None:
        self.reference, self.other, self.clock = reference, other, clock
        self.chosen: dict[str, OneByOne | SideBySide] = {}

    def images(self, phase: Phase, client: Client) -> int:
        """How many images a visit will see."""
        return self.reference.images(phase, client)

    def run(
        self,
        actor: Any,
        phase: Phase,
        round: int,
        rounds: int,
        block: Sequence[Client],
        inbox: Mapping[int, Message],
        memory: Mapping[int, Tree],
    ) -> Iterator[Done]:
        """Visits every client of the block; a message is to be used before the next one is asked for."""
        given, few = (round, rounds), len(self.other.lanes)
        if phase.work == "train" and phase.name not in self.chosen and len(block) > 3 * few:
            took = []
            for executor in (self.reference, self.other, self.other):
                tried, block = block[:few], block[few:]
                began = self.clock()
                yield from executor.run(actor, phase, *given, tried, inbox, memory)
                took.append(self.clock() - began)
            self.chosen[phase.name] = self.other if took[2] < took[0] else self.reference
        executor = self.chosen.get(phase.name, self.reference)
        yield from executor.run(actor, phase, *given, block, inbox, memory)
