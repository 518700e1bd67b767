"""A stage of the way of replies: compression, clip and noise, or masks. `uplink` has their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmark.federation.communication import sizes
from methods.base import Message, MethodError, Phase, Reduction, Replies, Tree, Visit


@dataclass(frozen=True)
class Exchange:
    """What the stages know of one phase.

    reached: ids of the clients that were sent its message. common: what all clients were sent alike. states: client id
    -> its state from before the visit. expected: the number of replies that a Poisson sample has on average.
    reductions: how the replies that come to a stage are combined.
    """

    phase: Phase
    round: int
    reached: Sequence[int]
    common: Message
    states: Mapping[int, Tree] = field(default_factory=dict)
    expected: float = 0.0
    reductions: Mapping[str, Reduction] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """A client's reply on its way.

    message: before it is encoded. state: the client's, with what it has still to send. sent: bytes of the entries that
    are not sent as the message has them. encoded: what is combined in its place, such as masked numbers; None: it is.
    """

    visit: Visit
    message: Message
    state: Tree = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    encoded: Message | None = None

    @property
    def received(self) -> Message:
        """The message as the server gets it."""
        return self.message if self.encoded is None else self.encoded

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes by entry."""
        return sizes(self.message) | dict(self.sent)


class Stage:
    """A stage; what a class of it does not define, it leaves as it is."""

    def check(self, exchange: Exchange) -> None:
        """MethodError where the phase's message does not go with the stage."""

    def reductions(self, phase: Phase, reductions: Mapping[str, Reduction]) -> Mapping[str, Reduction]:
        """How what leaves the stage is combined, where what comes to it is combined like this."""
        return reductions

    def client(self, reply: Reply, exchange: Exchange) -> Reply:
        """A reply after the stage."""
        return reply

    def server(self, replies: Replies, exchange: Exchange) -> Replies:
        """The combined replies, as they would be without what the clients' side has hidden; the same on every rank."""
        return replies


def refuse_partial(key: str, entries: Sequence[str], reply: Reply) -> None:
    """MethodError where a client does not send what all are counted for: noise and masks are for all that reply."""
    if missing := [entry for entry in entries if entry not in reply.message]:
        raise MethodError(
            f"{key}: {reply.visit.client} sends no {', '.join(missing)} in phase {reply.visit.phase.name!r}, "
            "which all clients that reply have to send: leave it out"
        )
