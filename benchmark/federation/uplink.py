"""What a client's reply passes on its way to the server: compression, a clip, noise and masks, each if it is set.

It is compressed and then clipped, or clipped, given its noise by the client, and then compressed; last it is masked.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmark.execution.base import VisitResult
from benchmark.federation.communication import sizes
from benchmark.federation.compression import RESIDUAL, Compression
from benchmark.federation.secure_sums import MaskedCohort, SecureSums, is_masked
from benchmark.federation.update_privacy import WITHIN, UpdatePrivacy
from benchmark.federation.updates import combined_entries
from methods.base import Client, Message, MethodError, Phase, Reduction, Replies, Tree, Visit


class Sent(NamedTuple):
    """A reply on its way.

    message: before it is masked. received: as the server gets it. nbytes: by entry. state: the client's, with what it
    has still to send.
    """

    message: Message
    received: Message
    nbytes: dict[str, int]
    state: Tree


class Uplink:
    """The way of all replies of a run.

    Args:
        updates: clip and noise; None: none. compression: of updates; None: they are sent as they are.
        secure_sums: masks on what is averaged or summed; None: no masks.
    """

    def __init__(
        self,
        updates: UpdatePrivacy | None = None,
        compression: Compression | None = None,
        secure_sums: SecureSums | None = None,
    ) -> None:
        self.updates, self.compression, self.secure_sums = updates, compression, secure_sums

    def reductions(self, phase: Phase) -> Mapping[str, Reduction]:
        """How the replies of a phase are combined, by entry."""
        return phase.uplink if self.updates is None else self.updates.uplink(phase)

    def masks(self, phase: Phase, entry: str) -> bool:
        """Whether the server gets an entry under masks."""
        return self.secure_sums is not None and is_masked(phase, self.reductions(phase).get(entry))

    def of_phase(self, phase: Phase, round: int, reached: Sequence[Client], common: Message) -> "PhaseUplink":
        """The way of one phase's replies.

        Args:
            reached: the clients that were sent the phase's message. common: what all clients were sent alike.

        Raises MethodError: the updates have no common start where they need one.
        """
        if self.updates is not None:
            self.updates.check_sent(phase, common)
        ids = [client.id for client in reached]
        masked = None if self.secure_sums is None else self.secure_sums.cohort(phase, round, ids)
        return PhaseUplink(self, phase, round, common, masked)

    def scratch_copy(self) -> "Uplink":
        """A copy with a clip of its own, which may move."""
        return Uplink(copy.deepcopy(self.updates), self.compression, self.secure_sums)


class PhaseUplink:
    """The way of one phase's replies; `Uplink.of_phase` makes it."""

    def __init__(self, uplink: Uplink, phase: Phase, round: int, common: Message, masked: MaskedCohort | None) -> None:
        self.updates, self.compression, self.masked = uplink.updates, uplink.compression, masked
        self.phase, self.round, self.common = phase, round, common
        self.reductions = uplink.reductions(phase)

    @property
    def received_reductions(self) -> Mapping[str, Reduction]:
        """How what the server gets is combined: masked entries are added up."""
        return self.reductions if self.masked is None else self.masked.uplink(self.reductions)

    def sent(self, result: VisitResult, states: Mapping[int, Tree]) -> Sent:
        """A visit's reply on its way. states: client id -> its state from before the visit.

        Raises MethodError: see `_refuse_partial`, `UpdatePrivacy.sent`, `Compression.sent` and `MaskedCohort.sent`.
        """
        visit, message, state = result.visit, result.message, result.client_state
        self._refuse_partial(visit, message)
        noisy = self.updates is not None and self.updates.mechanism == "local"
        if self.updates is not None and noisy:
            message = self.updates.sent(visit, message)
        compressed: dict[str, int] = {}
        if self.compression is not None:
            before = states.get(visit.client.id, {}) if self.compression.keeps else {}
            message, compressed, residual = self.compression.sent(visit, message, before.get(RESIDUAL, {}))
            state = {**state, RESIDUAL: residual} if residual else state
        if self.updates is not None and not noisy:
            message = self.updates.sent(visit, message)
        received, nbytes = message, sizes(message) | compressed  # an adaptive clip adds an entry
        if self.masked is not None:
            received = self.masked.sent(visit, message, self.reductions)
            nbytes |= self.masked.nbytes(received, self.reductions)
        return Sent(message, received, nbytes, state)

    def _refuse_partial(self, visit: Visit, message: Message) -> None:
        """MethodError where a client does not send what all are counted for: noise and masks are for all that reply."""
        masked = [entry for entry, how in self.reductions.items() if is_masked(self.phase, how)]
        covered = [] if self.updates is None else combined_entries(self.phase)
        for key, entries in (("secure_sums", masked if self.masked is not None else []), ("mechanism", covered)):
            if missing := [entry for entry in entries if entry != WITHIN and entry not in message]:
                raise MethodError(
                    f"privacy.{key}: {visit.client} sends no {', '.join(missing)} in phase {self.phase.name!r}, "
                    "which all clients that reply have to send: leave it out"
                )

    def combined(self, replies: Replies, expected: float) -> Replies:
        """The combined replies without masks and with the server's noise, the same on every rank.

        expected: the number of replies that a Poisson sample has on average.
        """
        if self.masked is not None:
            replies = self.masked.combined(replies, self.reductions)
        if self.updates is None:
            return replies
        return self.updates.combined(self.phase, replies, self.round, self.common, expected)
