"""Several clients at once on one device: lanes with a model, a stream and recorded steps of their own.

A small batch leaves a GPU idle: Python asks for some hundred kernels a step, and each fills a fraction of the chip. So
the whole step is recorded once for each shape of batch (a CUDA graph) and then repeated by one call, and lanes run on
streams of their own, so that the kernels of several clients fill the chip together. The mathematics are the
reference's, BatchNorm included; parameters are not stacked.
"""

import contextlib
import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.execution.base import LocalTrainingConfig, PendingVisit, PhaseInputs, VisitResult
from benchmark.execution.cuda_graphs import CudaGraphs, RecordedSteps, Recorder, has_dropout
from benchmark.execution.sequential import SequentialExecutor
from benchmark.rng import Streams
from datamodules.federated import FederatedDataModule
from methods.base import Client, FederatedMethod, Phase, Visit


class ParallelExecutor:
    """Clients dealt to lanes in turn; replies come in the order of the block, as from the reference.

    Phases that do not train, and networks with dropout (whose draws would depend on the lanes), go one by one. Steps of
    optimisers other than SGD, Adam and AdamW are not recorded.

    Args:
        reference: visits whatever is not trained side by side; its model is copied for each lane.
        lanes: clients at once; each takes the memory of two models (one is pristine), of gradients, momentum and
            activations.
        recorder: makes a lane's recorder from its stream; None: steps are taken as they are.
    """

    def __init__(
        self,
        reference: SequentialExecutor,
        lanes: int,
        recorder: Callable[[Any], Recorder] | None = CudaGraphs,
    ) -> None:
        self.reference, self.drawing = reference, has_dropout(reference.method)
        given = (reference.fabric, reference.data, reference.pace, reference.streams)
        self.lanes = [Lane(copy.deepcopy(reference.method), *given, recorder) for _ in range(lanes)]

    @property
    def rounds_differently(self) -> bool:
        """Whether its results differ from the reference's by rounding: where steps are recorded."""
        return self.lanes[0].recorder is not None

    def images(self, phase: Phase, client: Client) -> int:
        """How many images a visit will see."""
        return self.reference.images(phase, client)

    def run(self, given: PhaseInputs, block: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits every client of the block; a message is to be used before the next one is asked for."""
        if given.actor is not self.reference.method or given.phase.work != "train" or self.drawing:
            yield from self.reference.run(given, block)
            return
        waiting: deque[tuple[Lane, PendingVisit]] = deque()
        for client, lane in zip(block, itertools.cycle(self.lanes), strict=False):
            if len(waiting) == len(self.lanes):
                yield from self._finished(waiting)
            with lane.current():
                waiting.append((lane, lane.begin(replace(given, actor=lane.method), client)))
        while waiting:
            yield from self._finished(waiting)

    def _finished(self, waiting: deque[tuple["Lane", PendingVisit]]) -> Iterator[VisitResult]:
        """The oldest visit; its lane goes on only after the reply was used."""
        lane, begun = waiting.popleft()
        with lane.current():
            done = lane.finish(begun)
        lane.join()
        yield done


class Lane(SequentialExecutor):
    """One model and one stream of the device: visits as the reference does, with steps recorded and repeated."""

    def __init__(
        self,
        method: FederatedMethod,
        fabric: Fabric,
        data: FederatedDataModule,
        pace: LocalTrainingConfig,
        streams: Streams,
        recorder: Callable[[Any], Recorder] | None,
    ) -> None:
        super().__init__(fabric, method, data, pace, streams)
        self.stream = torch.cuda.Stream(fabric.device) if fabric.device.type == "cuda" else None
        self.recorder = partial(recorder, self.stream) if recorder is not None else None
        self.steps: dict[str, RecordedSteps] = {}  # by phase
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
        if self.recorder is None:
            return super()._stepper(visit, optimizer)
        name = visit.phase.name
        if name not in self.steps:
            self.steps[name] = RecordedSteps(self.recorder, self.fabric.device)
        steps = self.steps[name]
        if not steps.prepare(self.method, optimizer):
            return super()._stepper(visit, optimizer)
        step = self._step(visit, optimizer, self.summed.zero_())
        return partial(steps.take, optimizer=optimizer, step=step), self.summed
