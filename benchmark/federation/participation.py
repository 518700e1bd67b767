"""Who takes part in a round: clients are drawn among those that are there, and some of the drawn ones never reply.

A client that never replies is sent the message of the first phase that the cohort takes part in, which is counted, and
has no further part in the round: its memory stays that of its last reply. Phases that reach all clients, such as the
start of Orchestra, reach all of them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from benchmark.rng import Streams, cohort_size

SPREAD = 0.5
"""Standard deviation of the logarithm of a client's speed: of 100 clients the fastest is twelve times the slowest."""


@dataclass(frozen=True)
class Participation:
    """A round's clients and those of them that reply; every draw is from the run's streams.

    share: of all clients that is drawn. poisson: each client is drawn by itself, with that probability,
    so that a round may have no client; False: always the same number. availability: probability that a client is there
    to be drawn; if fewer are there than are asked for, all of them are drawn. dropout: probability that a drawn client
    never replies. deadline: longest visit, over the median client's; a client that needs more never replies, in any
    round. Each client has a speed of its own, log-normal, and needs the images of a visit over its speed. Unless it is
    `poisson`, at least one client is there, and one replies, even if it is late.
    """

    share: float = 1.0
    availability: float = 1.0
    dropout: float = 0.0
    deadline: float | None = None
    poisson: bool = False

    def expected(self, clients: int) -> float:
        """The mean number of replies in a round, of `clients` that meet the deadline, where it is `poisson`."""
        return clients * self.share * self.availability * (1 - self.dropout)

    def drawn(self, streams: Streams, round: int, clients: int) -> list[int]:
        """Sorted indices of the clients drawn for a round, of `clients`."""
        if self.poisson:
            chance = torch.rand(clients, generator=streams.generator("cohort", round=round))
            return (chance < self.share * self.availability).nonzero().squeeze(1).tolist()
        if self.availability == 1:
            return streams.cohort(round, clients, self.share)
        chance = torch.rand(clients, generator=streams.generator("availability", round=round))
        there = (chance < self.availability).nonzero().squeeze(1)
        there = there if len(there) else chance.argmin().view(1)
        order = torch.randperm(len(there), generator=streams.generator("cohort", round=round))
        return sorted(there[order[: cohort_size(clients, self.share)]].tolist())

    def replying(self, streams: Streams, round: int, drawn: Sequence[int], late: Collection[int] = ()) -> list[int]:
        """Those of the drawn clients that reply. late: clients that miss the deadline."""
        chance = torch.rand(len(drawn), generator=streams.generator("dropout", round=round)).tolist()
        staying = [k for k, value in zip(drawn, chance, strict=True) if value >= self.dropout and k not in late]
        return staying if staying or self.poisson else [max(zip(chance, drawn, strict=True))[1]]

    def late(self, streams: Streams, images: Sequence[int]) -> frozenset[int]:
        """Clients whose visits are longer than the deadline. images: of a visit of every client."""
        assert self.deadline is not None
        speed = torch.empty(len(images)).log_normal_(0, SPREAD, generator=streams.generator("speed"))
        needed = torch.tensor(images, dtype=torch.float32) / speed
        return frozenset((needed > self.deadline * needed.median()).nonzero().squeeze(1).tolist())
