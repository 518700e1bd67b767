"""What an executor is given and what it returns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from benchmark.execution.batch_norm import Recalibration
from methods.base import Client, FederatedMethod, Message, Phase, Tree, Visit


@dataclass(frozen=True)
class LocalTrainingConfig:
    """How much local work a visit is, and at which rate.

    epochs: passes over a client's data. steps: optimiser steps instead, where given. batch_size: images a step.
    rate_per_step: whether the schedule moves within a visit, or once a round.
    """

    epochs: int
    steps: int | None
    batch_size: int
    rate_per_step: bool = False


@dataclass
class VisitResult:
    """One finished visit: a message that may be live, what stays with the client, mean loss, training images.

    seconds: of this process's CPU time, all threads together; on a GPU, of the clock.
    """

    visit: Visit
    message: Message
    kept: Tree
    loss: float | None
    images: int
    seconds: float


@dataclass
class PendingVisit:
    """A visit whose work has been asked for: who acts, what the client kept, sum of losses, images, seconds so far."""

    actor: Any
    visit: Visit
    kept: Tree
    summed: Tensor | None
    images: int
    seconds: float


@dataclass(frozen=True)
class PhaseInputs:
    """A phase of a round, as those who visit its clients are given it.

    actor: the method, or who measures BatchNorm with its networks. inbox: all a client was sent this round, by id.
    memory: what clients keep, by id.
    """

    actor: "FederatedMethod | Recalibration"
    phase: Phase
    round: int
    rounds: int
    inbox: Mapping[int, Message]
    memory: Mapping[int, Tree]


class Executor(Protocol):
    """Visits the clients of a block; whichever does, what comes of it is the same."""

    @property
    def rounds_differently(self) -> bool:
        """Whether what came of it so far is the same up to rounding only."""

    def images(self, phase: Phase, client: Client) -> int:
        """How many images a visit will see: what it costs, before it was measured."""

    def run(self, given: PhaseInputs, block: Sequence[Client]) -> Iterator[VisitResult]:
        """Every client's visit; a message is to be used before the next one is asked for."""
