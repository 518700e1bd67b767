"""Who takes part in a round: clients are drawn among those that are there, and some of the drawn ones never reply.

A client that never replies has been sent the round's first message, which is counted, and has no further part in the
round: it trains for nothing, and its memory stays that of its last reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmark.rng import Streams, cohort_size

SPREAD = 0.5
"""Standard deviation of the logarithm of a client's speed: of 100 clients the fastest is ten times the slowest."""


@dataclass(frozen=True)
class Attendance:
    """A round's clients and those of them that reply; every draw is from the run's streams.

    participation: share of all clients that is drawn. availability: probability that a client is there to be drawn; if
    fewer are there than are asked for, all of them are drawn. dropout: probability that a drawn client never replies.
    deadline: longest visit, over the median client's; a client that needs more never replies. Each client has a speed
    of its own, log-normal, and needs its number of images over its speed. At least one client is there and one replies.
    """

    participation: float = 1.0
    availability: float = 1.0
    dropout: float = 0.0
    deadline: float | None = None

    def drawn(self, streams: Streams, round: int, clients: int) -> list[int]:
        """Sorted indices of the clients drawn for a round, of `clients`."""
        if self.availability == 1:
            return streams.cohort(round, clients, self.participation)
        chance = torch.rand(clients, generator=streams.generator("availability", round=round))
        there = (chance < self.availability).nonzero().squeeze(1)
        there = there if len(there) else chance.argmin().view(1)
        order = torch.randperm(len(there), generator=streams.generator("cohort", round=round))
        return sorted(there[order[: cohort_size(clients, self.participation)]].tolist())

    def replying(self, streams: Streams, round: int, drawn: Sequence[int], examples: Sequence[int]) -> list[int]:
        """Those of the drawn clients that reply. examples: number of images of every client."""
        chance = torch.rand(len(drawn), generator=streams.generator("dropout", round=round)).tolist()
        late = self.late(streams, examples) if self.deadline is not None else set()
        staying = [k for k, value in zip(drawn, chance, strict=True) if value >= self.dropout and k not in late]
        return staying or [max(zip(chance, drawn, strict=True))[1]]

    def late(self, streams: Streams, examples: Sequence[int]) -> set[int]:
        """Clients whose visits are longer than the deadline, in every round."""
        assert self.deadline is not None
        speed = torch.empty(len(examples)).log_normal_(0, SPREAD, generator=streams.generator("speed"))
        needed = torch.tensor(examples, dtype=torch.float32) / speed
        return set((needed > self.deadline * needed.median()).nonzero().squeeze(1).tolist())
