"""Interface of executors, which carry out one phase for some clients: its inputs and results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from methods.base import Client, Message, Phase, Tree, Visit


@dataclass(frozen=True)
class LocalTrainingConfig:
    """Length of a visit's local training.

    epochs: passes over a client's data. steps: optimiser steps instead, where given. batch_size: images a step.
    rate_per_step: whether the learning rate's schedule advances within a visit, or once a round.
    max_epochs: limit of a client's epochs where clients with fewer batches train more; None: all train `epochs`.
    """

    epochs: int
    steps: int | None
    batch_size: int
    rate_per_step: bool = False
    max_epochs: int | None = None


@dataclass
class VisitResult:
    """A finished visit.

    message: the reply, perhaps live tensors of the model. client_state: Tree that stays with the client. loss: mean
    over the steps, None without training. images: trained on, those of a view of other images too. seconds: CPU time of
    this process, all threads together; on a GPU, wall time. nbytes: bytes of the reply by entry as it is sent, which
    the loop adds for callbacks.
    """

    visit: Visit
    message: Message
    client_state: Tree
    loss: float | None
    images: int
    seconds: float
    nbytes: Mapping[str, int] = field(default_factory=dict)


@dataclass
class PendingVisit:
    """A visit whose work is queued on the device.

    client_state: from before the visit. total_loss: over the steps, None without training. images, seconds: so far.
    """

    visit: Visit
    client_state: Tree
    total_loss: Tensor | None
    images: int
    seconds: float


@dataclass(frozen=True)
class PhaseInputs:
    """Inputs of the visits of one phase.

    inbox: client id -> all entries it was sent this round. client_state: client id -> Tree that stayed with it.
    probed: the client at which the method's share of the gradient is measured, where it trains.
    """

    phase: Phase
    round: int
    rounds: int
    inbox: Mapping[int, Message]
    client_state: Mapping[int, Tree]
    probed: int | None = None


class Executor(Protocol):
    """Visits clients; all executors give the same results."""

    @property
    def reference(self) -> "Executor":
        """The sequential executor of the resident model."""

    @property
    def bitwise_exact(self) -> bool:
        """Whether the results so far equal the sequential executor's bit by bit, or up to rounding only."""

    def images(self, phase: Phase, client: Client) -> int:
        """Images a visit will see: its cost before the first measurement."""

    def run(self, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits the clients in order; a reply has to be used before the next one is requested."""
