"""The words a method speaks with: phases, messages, mail, turns, visits, and how replies are combined.

Everything here is a value. `methods.base` re-exports it; the benchmark carries it out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from methods.trees import Tree

Message = dict[str, Tree]
"""What is sent: entry name -> Tree. An entry is what is declared, billed and listed in the privacy sheet."""


class MethodError(ValueError):
    """A method was put together or used in a way that cannot work; the message is one line for the user."""


@dataclass(frozen=True)
class Mean:
    """Combine replies by a weighted mean over the clients that sent the entry.

    by: "examples" (a client's number of images), "batches" (of one local epoch), "clients" (equal), or a function of
        (server Tree, message) that gives a weight or a Tree of weights shaped like the entry.
    over: "weights" divides by the sum of the weights, "clients" by the number of clients (L-DAWA).
    """

    by: str | Callable[[Tree, Message], Any] = "examples"
    over: str = "weights"

    def __post_init__(self) -> None:
        if isinstance(self.by, str) and self.by not in ("examples", "batches", "clients"):
            raise MethodError(f"Mean(by={self.by!r}): choose examples, batches, clients or a function")
        if self.over not in ("weights", "clients"):
            raise MethodError(f"Mean(over={self.over!r}): choose weights or clients")


@dataclass(frozen=True)
class Sum:
    """Add the replies up."""


@dataclass(frozen=True)
class Cat:
    """Concatenate along the first dimension, in the order of client ids; `last` keeps that many rows (gather only)."""

    last: int | None = None


@dataclass(frozen=True)
class Each:
    """Keep every reply: {client id: Tree}."""


Reduction = Mean | Sum | Cat | Each


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: the server sends, clients work, clients reply, the server updates.

    name: suffix that hooks of this phase may carry (`update_correlate`).
    work: "train" (local epochs), "observe" (passes without gradient, in eval mode) or "none".
    uplink: every entry a reply may hold, and how the clients' replies are combined.
    gather: observe only: how the messages of one client's batches are combined, Sum or Cat.
    data: "private" (the client's own images) or "public".
    cohort: "sampled" (one draw a round, shared by its phases) or "all".
    where: "clients", or "server": members are `method.seats(server)` and nothing is billed.
    views: recipe names, augment | plain | rotate | other; None: the objective's.
    epochs: passes over the data; None: the scenario's when training, 1 when observing.
    batch_size: None: the scenario's.
    shuffled: observe only: batches in random order, without a last one of a single image, as in training; for networks
        that look at a batch together. Else the order of the data, which often is that of the classes, every image once.
    """

    name: str
    work: str = "train"
    uplink: Mapping[str, Reduction] = field(default_factory=dict)
    gather: Mapping[str, Sum | Cat] = field(default_factory=dict)
    data: str = "private"
    cohort: str = "sampled"
    where: str = "clients"
    views: tuple[str, ...] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    shuffled: bool = False

    def __post_init__(self) -> None:
        choices = {
            "work": ("train", "observe", "none"),
            "data": ("private", "public"),
            "cohort": ("sampled", "all"),
            "where": ("clients", "server"),
        }
        for name, possible in choices.items():
            if getattr(self, name) not in possible:
                raise MethodError(
                    f"Phase {self.name!r}: {name}={getattr(self, name)!r}; choose one of {', '.join(possible)}"
                )


@dataclass(frozen=True)
class Client:
    """Who takes part: an id that never changes, the number of images, and the architecture it runs."""

    id: int
    examples: int
    kind: str = "default"


@dataclass
class Mail:
    """What the server sends: `common` to every member, `private` to one client each, by id."""

    common: Message = field(default_factory=dict)
    private: Mapping[int, Message] = field(default_factory=dict)

    def to(self, client: int) -> Message:
        """All that `client` is sent; a private entry wins over a common one of the same name."""
        return {**self.common, **self.private.get(client, {})}


@dataclass(frozen=True)
class Turn:
    """The server's side of a phase.

    members: the clients that take part, sorted by id; clients: all of them.
    stream: a CPU generator of this round and phase, for the server's own draws.
    """

    round: int
    rounds: int
    phase: Phase
    members: Sequence[Client]
    clients: Sequence[Client]
    stream: torch.Generator


@dataclass
class Visit:
    """One client's side of a phase.

    message: everything it was sent this round so far; memory: what it kept from its last visit.
    stream: a CPU generator of this round, phase and client.
    After the work: batches (of one local epoch), steps (optimiser steps taken), lr_sum (the sum of the learning rates
    those steps used), observed (what `gather` made of the observed batches).
    notes: numbers about this visit for the round's line on disk; they never travel.
    """

    round: int
    rounds: int
    phase: Phase
    client: Client
    message: Message
    memory: Tree
    stream: torch.Generator
    batches: int = 0
    steps: int = 0
    lr_sum: float = 0.0
    observed: Message = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)


class Replies(dict[str, Tree]):
    """Entry -> combined value, as the phase's uplink declares; `clients` are the ids that replied, sorted."""

    def __init__(self, values: Mapping[str, Tree], clients: Sequence[int]) -> None:
        super().__init__(values)
        self.clients = tuple(clients)


class Outputs(NamedTuple):
    """One joint pass of an objective: representations, embeddings, predictions and targets, one tensor a view.

    h: `[B, encoder.dim]` each; z: `[B, d]`; p: `[B, d]`; t: `[B, d]`, without gradient.
    extra: (h, z) of each view an add-on asked for, kept apart so that an objective never sees them.
    push: queue name -> rows to append to it after the step.
    """

    h: tuple[Tensor, ...]
    z: tuple[Tensor, ...]
    p: tuple[Tensor, ...] = ()
    t: tuple[Tensor, ...] = ()
    extra: tuple[tuple[Tensor, Tensor], ...] = ()
    push: Mapping[str, Tensor] = {}


class Batch(Protocol):
    """What a training step is given; a data module hands out named tuples of this shape.

    views: float images `[B, C, H, W]`, one tensor a view; index: `[B]` positions in the client's own data.
    turns: `[B]` quarter turns of the `rotate` view, or None; labels: `[B]`, only for an objective that asks for them.
    draws: what `method.draw` returned for this batch; None where nobody has drawn yet.
    """

    views: tuple[Tensor, ...]
    index: Tensor
    turns: Tensor | None
    labels: Tensor | None
    draws: Tree | None
