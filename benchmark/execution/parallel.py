"""Executor of several clients at once on one device: lanes, each with a model, a stream and recorded steps.

A small batch leaves a GPU idle, so each shape of step is recorded once and replayed, and several lanes run together.
The computation is the sequential executor's, BatchNorm included; parameters are not stacked.
"""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmark.execution.base import PendingVisit, PhaseInputs, VisitResult
from benchmark.execution.cuda_graphs import RecordedSteps, Recorder
from benchmark.execution.sequential import SequentialExecutor
from methods.base import Client, Visit

DROPPING = ("dropout", "droppath", "dropblock", "stochasticdepth", "rrelu", "fractionalmaxpool")
"""Parts of the names of modules that draw, of torch, torchvision and timm, in lower case."""
RATES = ("dropout", "drop_rate", "attention_dropout")
"""Attributes of other modules that hold the rate of a dropout."""


def has_random_steps(network: nn.Module) -> bool:
    """Whether a network draws random numbers while it trains: dropout or stochastic depth, of a rate above 0."""

    def rate(module: nn.Module) -> float:
        name = type(module).__name__.lower()
        keys = ("p", "drop_prob") if any(part in name for part in DROPPING) else RATES
        rates = [value for key in keys if isinstance(value := getattr(module, key, None), int | float)]
        return max(rates, default=float(keys[0] == "p"))  # of an unknown module of such a name: yes

    return any(rate(module) > 0 for module in network.modules())


class ParallelExecutor:
    """Assigns clients to lanes in turn; replies come in the order of the clients, as from the sequential executor.

    Phases that do not train, and networks with dropout or stochastic depth (whose draws would depend on the lanes), run
    sequentially. Steps of optimisers other than SGD, Adam, AdamW and LARS are not recorded.

    Args:
        reference: sequential executor; its model is copied for each lane.
        lanes: clients at once; each has the memory of two models, of gradients, momentum and activations.
        recorder: makes a lane's recorder from its stream; None: steps are not recorded.
    """

    def __init__(self, reference: SequentialExecutor, lanes: int, recorder: Callable[[Any], Recorder] | None) -> None:
        self.reference, self.images = reference, reference.images
        self.has_random_steps = has_random_steps(reference.method)
        self.records = recorder is not None
        self.lanes = [Lane(reference, recorder) for _ in range(lanes)]

    @property
    def bitwise_exact(self) -> bool:
        """Whether steps are not recorded; recorded ones round differently."""
        return not self.records

    def run(self, inputs: PhaseInputs, clients: Sequence[Client], lanes: int | None = None) -> Iterator[VisitResult]:
        """Visits the clients; a reply has to be used before the next one is requested. lanes: of those, how many."""
        if inputs.phase.work != "train" or self.has_random_steps:
            yield from self.reference.run(inputs, clients)
            return
        pending_visits: deque[tuple[Lane, PendingVisit]] = deque()
        used = self.lanes[:lanes]
        for client, lane in zip(clients, itertools.cycle(used), strict=False):
            if len(pending_visits) == len(used):
                yield from self._finished(pending_visits)
            with lane.current():
                pending_visits.append((lane, lane.begin(inputs, client)))
        while pending_visits:
            yield from self._finished(pending_visits)

    def free(self) -> None:
        """Gives up the lanes and their memory; no further visit is possible."""
        self.lanes.clear()
        if self.reference.fabric.device.type == "cuda":
            torch.cuda.empty_cache()

    def unrecorded_reason(self) -> str | None:
        """Why the steps so far were not recorded; None where every lane that has made steps replays some."""
        steps = [steps for lane in self.lanes for steps in lane.steps.values()]
        if not self.records or not steps:
            return "there is nothing to record them with" if not self.records else "no step was made"
        if failed := [each.failed for each in steps if each.failed]:
            return failed[0]
        return None if all(any(each.recorded.values()) for each in steps) else "their tensors cannot be copied in place"

    def _finished(self, pending_visits: deque[tuple["Lane", PendingVisit]]) -> Iterator[VisitResult]:
        """The oldest visit's result; its lane continues only after the reply was used."""
        lane, pending = pending_visits.popleft()
        with lane.current():
            result = lane.finish(pending)
        lane.join()
        yield result


class Lane(SequentialExecutor):
    """A model and a stream of the device, whose steps are recorded and replayed."""

    def __init__(self, reference: SequentialExecutor, recorder: Callable[[Any], Recorder] | None) -> None:
        fabric, method = reference.fabric, copy.deepcopy(reference.method)
        super().__init__(fabric, method, reference.data, reference.training, reference.streams)
        self.stream = torch.cuda.Stream(fabric.device) if fabric.device.type == "cuda" else None
        self.recorder = partial(recorder, self.stream) if recorder is not None else None
        self.steps: dict[str, RecordedSteps] = {}  # by phase

    def current(self) -> AbstractContextManager[None]:
        """Queues work on this lane's stream, after the work the caller has queued so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)

    def join(self) -> None:
        """Makes the caller's stream wait for this lane."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _local_step(self, visit: Visit, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
        step, name = super()._local_step(visit, optimizer), visit.phase.name
        if self.recorder is None:
            return step
        if name not in self.steps:
            self.steps[name] = RecordedSteps(self.recorder, self.fabric.device)
        if not self.steps[name].prepare(self.method, optimizer):
            return step
        return partial(self.steps[name].take, optimizer=optimizer, step=step)
