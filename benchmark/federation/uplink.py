"""The way of replies from the clients to the server: a list of stages, which the server's side passes backwards.

A client's reply is compressed or masked, or neither (`experiment.privacy`): compressed, then clipped, then masked.
Under `privacy.mechanism=local` it is clipped and gets its noise before it is compressed. `Aggregation` then combines
the replies; the server takes masks away and adds its own noise. `encoder.adapter.average=product` excludes all of
these (`experiment.building`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmark.execution.base import VisitResult
from benchmark.federation.compression import Compression
from benchmark.federation.low_rank import ProductAverage
from benchmark.federation.secure_aggregation import SecureAggregation, is_masked
from benchmark.federation.stages import Exchange, Reply, Stage
from benchmark.federation.update_privacy import UpdatePrivacy
from methods.base import Client, Message, Phase, Reduction, Replies, Tree


class Uplink:
    """The way of all replies of a run.

    Args:
        updates: clip and noise; None: none. compression: of updates; None: they are sent as they are.
        secure_aggregation: masks on what is averaged or summed; None: no masks.
        products: of an adapter's factors, in place of their means; None: there are none.
    """

    def __init__(
        self,
        updates: UpdatePrivacy | None = None,
        compression: Compression | None = None,
        secure_aggregation: SecureAggregation | None = None,
        products: ProductAverage | None = None,
    ) -> None:
        self.updates, self.secure_aggregation = updates, secure_aggregation
        # a client's own noise is added before compression, which changes no guarantee; else a clip bounds what is sent
        first, second = (updates, compression) if updates and updates.mechanism == "local" else (compression, updates)
        self.stages: list[Stage] = [
            stage for stage in (first, second, products, secure_aggregation) if stage is not None
        ]

    def reductions(self, phase: Phase) -> Mapping[str, Reduction]:
        """How the clients' replies of a phase are combined, by entry; under masks too, where the server adds them."""
        return phase.uplink if self.updates is None else self.updates.reductions(phase, phase.uplink)

    def masks(self, phase: Phase, entry: str) -> bool:
        """Whether the server gets an entry under masks."""
        return self.secure_aggregation is not None and is_masked(phase, self.reductions(phase).get(entry))

    def of_phase(
        self,
        phase: Phase,
        round: int,
        reached: Sequence[Client],
        common: Message,
        states: Mapping[int, Tree],
        expected: float,
    ) -> "PhaseUplink":
        """The way of one phase's replies; see `Exchange`. Raises MethodError: see `Stage.check`."""
        return PhaseUplink(
            self.stages, Exchange(phase, round, [client.id for client in reached], common, states, expected)
        )


class PhaseUplink:
    """The way of one phase's replies; `Uplink.of_phase` makes it."""

    def __init__(self, stages: Sequence[Stage], exchange: Exchange) -> None:
        self.received_reductions: Mapping[str, Reduction] = exchange.phase.uplink
        """How the server combines what it gets, by entry: masked numbers as a `Sum`."""
        self.passed: list[tuple[Stage, Exchange]] = []
        for stage in stages:
            self.passed.append((stage, replace(exchange, reductions=self.received_reductions)))
            stage.check(exchange)
            self.received_reductions = stage.reductions(exchange.phase, self.received_reductions)

    def sent(self, result: VisitResult) -> Reply:
        """A visit's reply on its way. Raises MethodError: see the stages."""
        reply = Reply(result.visit, result.message, result.client_state)
        for stage, exchange in self.passed:
            reply = stage.client(reply, exchange)
        return reply

    def combined(self, replies: Replies) -> Replies:
        """The combined replies, without masks and with the server's noise."""
        for stage, exchange in reversed(self.passed):
            replies = stage.server(replies, exchange)
        return replies
