"""Data types of a method: phases, messages, round contexts, visits, outputs, and how the clients' replies are combined.

`methods.base` re-exports them; the benchmark reads them and runs what they declare.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from methods.core.validation import MethodError, choose
from methods.trees import Tree

Message = dict[str, Tree]
"""Content of a message: entry name -> Tree. Declarations, byte counts and the privacy sheet go by entries."""


@dataclass(frozen=True)
class Mean:
    """Weighted mean of the replies over the clients that sent the entry.

    by: "examples" (a client's number of images), "batches" (of one local epoch, with one too small to train on),
        "clients" (equal), or a function of (server Tree, message) that gives a weight or a Tree of weights shaped like
        the entry.
    over: what the weighted sum is divided by: "weights", their sum, or "clients", the number of clients (L-DAWA).
    """

    by: str | Callable[[Tree, Message], Any] = "examples"
    over: str = "weights"

    def __post_init__(self) -> None:
        if isinstance(self.by, str) and self.by not in ("examples", "batches", "clients"):
            raise MethodError(f"Mean(by={self.by!r}): choose examples, batches, clients or a function")
        choose("Mean: over", self.over, "weights", "clients")

    @property
    def single(self) -> bool:
        """Whether the server has to read every reply by itself to combine them."""
        return callable(self.by) or self.over != "weights"


@dataclass(frozen=True)
class Sum:
    """Sum of the replies."""


@dataclass(frozen=True)
class Cat:
    """Concatenation along the first dimension, in the order of client ids.

    last: number of last rows that are kept (`gather` only); None: all rows.
    """

    last: int | None = None


@dataclass(frozen=True)
class Each:
    """All replies, uncombined: {client id: Tree}."""


Reduction = Mean | Sum | Cat | Each


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: the server sends, clients work, clients reply, the server updates.

    name: suffix for hooks of this phase alone: in the phase `correlate`, `send_correlate` replaces `send`, and so on
        for every hook of `methods.core.hooks.PHASE_HOOKS`; without one the plain hook serves.
    work: "train" (local epochs), "observe" (passes without gradient, in eval mode) or "none".
    uplink: every entry of a reply, and how the clients' replies are combined.
    gather: observe only: how the messages of one client's batches are combined, Sum or Cat.
    data: "private" (the client's own images) or "public".
    cohort: "sampled" (one draw a round, shared by its phases) or "all".
    where: "clients", or "server": members are `method.server_workers(server)` and no bytes are counted.
    views: recipe names, augment | crop | local | plain | rotate | other; None: the objective's.
    epochs: passes over the data; None: the scenario's when training, 1 when observing.
    batch_size: images in a batch; None: the scenario's.
    drop_last: train only: whether an epoch's short last batch is left out; None: the scenario's.
    skip: train only: first batches of each epoch that pass the networks and end a step, without an optimiser step;
        None: all of them, so that nothing is trained.
    shuffled: observe only: whether batches are in random order and a short last one may be left out, as in
        training; for networks with BatchNorm in training mode. False: every image once, in the order of the data,
        which is often sorted by class.
    measures: observe only: the client is as it was before, whatever its networks have met; its batches are of almost
        equal sizes.
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
    drop_last: bool | None = None
    skip: int | None = 0
    shuffled: bool = False
    measures: bool = False

    def __post_init__(self) -> None:
        choose(f"Phase {self.name!r}: work", self.work, "train", "observe", "none")
        choose(f"Phase {self.name!r}: data", self.data, "private", "public")
        choose(f"Phase {self.name!r}: cohort", self.cohort, "sampled", "all")
        choose(f"Phase {self.name!r}: where", self.where, "clients", "server")

    @property
    def learns(self) -> bool:
        """Whether its batches take steps of the optimiser."""
        return self.work == "train" and self.skip is not None


@dataclass(frozen=True)
class Activity:
    """How much a method's own idea moves something: a number that is 0 where it does nothing.

    measures: what the number is, in words. bound: a run with a mean over rounds below it is marked.
    """

    measures: str
    bound: float = 0.01


@dataclass(frozen=True)
class Client:
    """A client: its constant id, its number of images, the name of its architecture, and its own, if any."""

    id: int
    examples: int
    architecture: str = "default"
    name: str = ""

    @property
    def kind(self) -> str:
        """The earlier name of `architecture`."""
        return self.architecture

    def __str__(self) -> str:
        return f"client {self.id} ({self.name})" if self.name else f"client {self.id}"


@dataclass
class Mail:
    """The server's messages of a phase: `common` to every member, `private` to single clients, by id."""

    common: Message = field(default_factory=dict)
    private: Mapping[int, Message] = field(default_factory=dict)

    def to(self, client: int) -> Message:
        """The message to `client`; a private entry replaces a common one of the same name."""
        return {**self.common, **self.private.get(client, {})}


@dataclass(frozen=True)
class RoundContext:
    """The server's side of a phase.

    members: the participating clients, sorted by id. clients: all clients of the federation.
    stream: a CPU generator of this round and phase, for the server's random numbers.
    notes: measurements of the update for the round's line in `rounds.jsonl`, numbers or 0-d tensors.
    """

    round: int
    rounds: int
    phase: Phase
    members: Sequence[Client]
    clients: Sequence[Client]
    stream: torch.Generator
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Visit:
    """One client's side of a phase.

    message: all entries sent to the client in this round so far. memory: its state after its last visit.
    stream: a CPU generator of this round, phase and client. first: whether nothing of an earlier visit stayed with it.
    Set by the work: batches (of one local epoch), counted (those and one too small to train on), steps (of the
    optimiser), lr_sum (the sum of those steps' learning rates), observed (the batches' messages, combined by `gather`).
    notes: measurements of this visit for the round's line in `rounds.jsonl`, numbers or 0-d tensors, which are read
    together after `reply`; they are not sent to the server. probed: whether its `gradient_share` is measured.
    """

    round: int
    rounds: int
    phase: Phase
    client: Client
    message: Message
    memory: Tree
    stream: torch.Generator
    first: bool = False
    batches: int = 0
    counted: int = 0
    steps: int = 0
    lr_sum: float = 0.0
    observed: Message = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    probed: bool = False

    def weight(self, by: str) -> int:
        """Weight of the client's reply in a mean by examples, batches or clients."""
        return {"examples": self.client.examples, "batches": self.counted, "clients": 1}[by]


class Replies(dict[str, Tree]):
    """Entry -> combined value, as the phase's uplink declares; `clients`: ids of the clients that replied, sorted."""

    def __init__(self, values: Mapping[str, Tree], clients: Sequence[int]) -> None:
        super().__init__(values)
        self.clients = tuple(clients)


class Outputs(NamedTuple):
    """Results of an objective's forward pass; a tuple has one tensor for each view.

    representations: h, `[B, encoder.dim]` each. embeddings: z, `[B, d]`. predictions: p, `[B, d]`.
    targets: t, `[B, d]`, without gradient.
    extra: (representations, embeddings) of each additional view of an add-on; the objective's loss does not use them.
    push: queue name -> rows to append to that queue after the step.
    """

    representations: tuple[Tensor, ...]
    embeddings: tuple[Tensor, ...]
    predictions: tuple[Tensor, ...] = ()
    targets: tuple[Tensor, ...] = ()
    extra: tuple[tuple[Tensor, Tensor], ...] = ()
    push: Mapping[str, Tensor] = {}


class Batch(Protocol):
    """Input of a training step; a data module yields named tuples with these fields.

    views: float images `[B, C, H, W]`, one tensor for each view. index: `[B]` positions in the client's own data.
    turns: `[B]` quarter turns of the `rotate` view, or None. labels: `[B]`, only for an objective with `labels`.
    draws: the result of `method.draw` for this batch; None before the draw.
    """

    views: tuple[Tensor, ...]
    index: Tensor
    turns: Tensor | None
    labels: Tensor | None
    draws: Tree | None


class MethodParts(Protocol):
    """The members of a method that an add-on may use; `methods.core.parts.Parts` documents them.

    context: entries of the client's message other than "weights".
    """

    context: Message

    def tensors(self, name: str, statistics: bool = True) -> dict[str, Tensor]:
        """Parameters and floating-point buffers of a part, live."""

    def trainable(self) -> Tree:
        """{part: {name: parameter}} of the parts that travel, where a gradient is required."""
