"""Executor of several clients at once on one device: lanes, each with a model, a stream and recorded steps.

A small batch leaves a GPU idle: Python launches some hundred kernels a step, and each fills a fraction of the chip. So
the whole step is recorded once for each shape of batch (a CUDA graph) and then replayed by one call, and each lane has
a stream, so that the kernels of several clients fill the chip together. The computation is the sequential executor's,
BatchNorm included; parameters are not stacked.
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
    """Assigns clients to lanes in turn; replies come in the order of the block, as from the sequential executor.

    Phases that do not train, and networks with dropout (whose draws would depend on the lanes), run sequentially. Steps
    of optimisers other than SGD, Adam and AdamW are not recorded.

    Args:
        reference: sequential executor; its model is copied for each lane.
        lanes: clients at once; each takes the memory of two models (one is the pristine state), of gradients, momentum
            and activations.
        recorder: makes a lane's recorder from its stream; None: steps are not recorded.
    """

    def __init__(
        self,
        reference: SequentialExecutor,
        lanes: int,
        recorder: Callable[[Any], Recorder] | None = CudaGraphs,
    ) -> None:
        self.reference, self.has_dropout = reference, has_dropout(reference.method)
        shared = (reference.fabric, reference.data, reference.training, reference.streams)
        self.lanes = [Lane(copy.deepcopy(reference.method), *shared, recorder) for _ in range(lanes)]

    @property
    def bitwise_exact(self) -> bool:
        """Whether steps are not recorded; recorded ones round differently."""
        return self.lanes[0].recorder is None

    def images(self, phase: Phase, client: Client) -> int:
        """Images a visit will see."""
        return self.reference.images(phase, client)

    def run(self, inputs: PhaseInputs, block: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits the clients; a reply has to be used before the next one is requested."""
        if inputs.actor is not self.reference.method or inputs.phase.work != "train" or self.has_dropout:
            yield from self.reference.run(inputs, block)
            return
        pending_visits: deque[tuple[Lane, PendingVisit]] = deque()
        for client, lane in zip(block, itertools.cycle(self.lanes), strict=False):
            if len(pending_visits) == len(self.lanes):
                yield from self._finished(pending_visits)
            with lane.current():
                pending_visits.append((lane, lane.begin(replace(inputs, actor=lane.method), client)))
        while pending_visits:
            yield from self._finished(pending_visits)

    def _finished(self, pending_visits: deque[tuple["Lane", PendingVisit]]) -> Iterator[VisitResult]:
        """The oldest visit's result; its lane continues only after the reply was used."""
        lane, pending = pending_visits.popleft()
        with lane.current():
            result = lane.finish(pending)
        lane.join()
        yield result


class Lane(SequentialExecutor):
    """A model and a stream of the device, whose steps are recorded and replayed."""

    def __init__(
        self,
        method: FederatedMethod,
        fabric: Fabric,
        data: FederatedDataModule,
        training: LocalTrainingConfig,
        streams: Streams,
        recorder: Callable[[Any], Recorder] | None,
    ) -> None:
        super().__init__(fabric, method, data, training, streams)
        self.stream = torch.cuda.Stream(fabric.device) if fabric.device.type == "cuda" else None
        self.recorder = partial(recorder, self.stream) if recorder is not None else None
        self.steps: dict[str, RecordedSteps] = {}  # by phase
        self.summed = torch.zeros((), device=fabric.device)  # one address, to which recorded steps add

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Queues work on this lane's stream, after the work the caller has queued so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Makes the caller's stream wait for this lane."""
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
