"""Secure aggregation: the server sees replies only under masks, which cancel in the sum (Bonawitz et al. 2017).

A client multiplies what is averaged or summed by its weight, rounds it to whole multiples of a step, and adds to every
number a mask modulo 2^32 for each of its neighbours: of every pair one adds the mask that the other subtracts. A masked
number is uniform whatever it hides. The sum has no masks left, and is turned back into numbers.

Decisions
- The arithmetic is simulated, not the protocol: masks come from the run's streams instead of keys that clients agree
  on, and the masks of a client that never replies are taken out by the server instead of from shares of its key.
- Neighbours are the DEGREE nearest in the order of the cohort, as a ring; up to DEGREE + 1 clients are all neighbours.
  Bell et al. (2020) draw as few, at random.
- A step is K R / (2^31 - K), for K clients of the cohort and numbers of at most R, so that no sum of rounded numbers
  overflows. Weights are divided by the largest that a client may have, and summed under masks too.
- Entries that the server needs one by one (`Each`, `Cat`) are sent as they are. Methods whose server reads or weighs
  the updates of single clients are refused.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmark.errors import DivergedError
from benchmark.federation.divergence import DIVERGENCE_HINT, last_good_round
from benchmark.federation.stages import Exchange, Reply, Stage, refuse_partial
from benchmark.federation.updates import refuse_whole_numbers
from benchmark.rng import Streams
from methods import trees
from methods.base import Mean, MethodError, Phase, Reduction, Replies, Sum, Tree, Visit

KEY = "privacy.secure_aggregation"
DEGREE = 10
"""Neighbours that a client shares a mask with."""
MODULUS = 2**32


def is_masked(phase: Phase, how: Reduction | None) -> bool:
    """Whether an entry that is combined like this is masked."""
    return phase.where == "clients" and (isinstance(how, Sum) or (isinstance(how, Mean) and not how.single))


class SecureAggregation(Stage):
    """Masked sums of a run.

    Args:
        largest: R > 0, the largest size of a number times its client's weight.
        weights: kind of weight -> the largest that a client may have: "examples", "batches", "clients".
        dtype: of the sums. streams: of the run, from which the masks are drawn.
    """

    def __init__(self, largest: float, weights: Mapping[str, float], dtype: torch.dtype, streams: Streams) -> None:
        self.largest, self.weights, self.dtype, self.streams = largest, weights, dtype, streams

    def cohort(self, phase: Phase, round: int, clients: Iterable[int]) -> "MaskedCohort":
        """The clients of a phase that share masks. clients: ids of all that were sent its message."""
        return MaskedCohort(self, phase, round, sorted(clients))

    def reductions(self, phase: Phase, reductions: Mapping[str, Reduction]) -> Mapping[str, Reduction]:
        """Masked entries are added up."""
        return {entry: Sum() if is_masked(phase, how) else how for entry, how in reductions.items()}

    @torch.no_grad()
    def client(self, reply: Reply, exchange: Exchange) -> Reply:
        """A reply with what is added up under masks: four bytes a number, and the weight.

        Raises:
            MethodError: a number or a weight is larger than was agreed on, or whole numbers are sent.
        """
        hows = {entry: how for entry, how in exchange.reductions.items() if is_masked(exchange.phase, how)}
        refuse_partial(KEY, [*hows], reply)
        cohort = self.cohort(exchange.phase, exchange.round, exchange.reached)
        masked = {entry: cohort.masked(reply.visit, entry, reply.message[entry], how) for entry, how in hows.items()}
        nbytes = {entry: sum(4 * leaf.numel() for _, leaf in trees.leaves(tree)) for entry, tree in masked.items()}
        return replace(reply, encoded={**reply.message, **masked}, sent={**reply.sent, **nbytes})

    @torch.no_grad()
    def server(self, replies: Replies, exchange: Exchange) -> Replies:
        """The sums without masks, divided where a mean is asked for; equal to the plain ones but for rounding."""
        cohort, values = self.cohort(exchange.phase, exchange.round, exchange.reached), dict(replies)
        for entry, how in exchange.reductions.items():
            if entry in values and is_masked(exchange.phase, how):
                values[entry] = cohort.opened(entry, values[entry], how, replies.clients)
        return Replies(values, replies.clients)


class MaskedCohort:
    """The clients of one phase that share masks; `SecureAggregation.cohort` makes it."""

    def __init__(self, sums: SecureAggregation, phase: Phase, round: int, clients: Sequence[int]) -> None:
        self.sums, self.phase, self.round, self.clients = sums, phase, round, clients
        self.step = len(clients) * sums.largest / (MODULUS // 2 - len(clients))

    def masked(self, visit: Visit, entry: str, tree: Tree, how: Reduction) -> Tree:
        """An entry as whole numbers modulo 2^32, with its weight beside the numbers of a mean."""
        weight = 1.0
        if isinstance(how, Mean):
            weight = visit.weight(str(how.by)) / self.sums.weights[str(how.by)]
            if weight > 1:
                raise MethodError(f"{KEY}: {visit.client} weighs more in {entry!r} than was agreed on")
        refuse_whole_numbers(entry, tree, KEY)
        for path, leaf in trees.leaves(tree):
            size = weight * float(leaf.abs().max()) if leaf.numel() else 0.0
            if not math.isfinite(size):
                raise DivergedError(
                    f"what {visit.client} replied as {entry!r} is not finite in round {visit.round + 1}, phase "
                    f"{visit.phase.name!r}; {last_good_round(visit.round)}: {DIVERGENCE_HINT}"
                )
            if size > self.sums.largest:
                raise MethodError(
                    f"{KEY}: {visit.client} sends {size:.3g} in {'.'.join(map(str, path))} of {entry!r}, "
                    f"and no number may be larger than privacy.range={self.sums.largest:g}: raise it"
                )
        content = {"sum": tree, **({"weight": {"all": torch.ones(())}} if isinstance(how, Mean) else {})}
        masks = self._masks(entry, visit.client.id, self._neighbours(visit.client.id), content)
        return trees.map(
            lambda leaf, mask: ((leaf.double() * weight / self.step).round().long() + mask) % MODULUS,
            content,
            masks,
        )

    def opened(self, entry: str, total: Tree, how: Reduction, clients: Sequence[int]) -> Tree:
        """A masked sum as numbers, without the masks that were meant for clients which have not replied."""
        absent = set(self.clients) - set(clients)
        for client in clients if absent else ():
            left = [other for other in self._neighbours(client) if other in absent]
            total = trees.subtract(total, self._masks(entry, client, left, total))

        def number(leaf: Tensor) -> Tensor:
            signed = (leaf + MODULUS // 2) % MODULUS - MODULUS // 2
            return signed.double() * self.step

        total = trees.map(number, total)
        weight = total["weight"]["all"] if isinstance(how, Mean) else torch.ones(())
        return trees.map(lambda leaf: (leaf / weight.to(leaf)).to(self.sums.dtype), total["sum"])

    def _neighbours(self, client: int) -> list[int]:
        """The clients that one shares masks with, itself not among them."""
        count, place = len(self.clients), self.clients.index(client)
        if count <= DEGREE + 1:
            return [other for other in self.clients if other != client]
        reach = DEGREE // 2
        return [self.clients[(place + shift) % count] for shift in range(-reach, reach + 1) if shift]

    def _masks(self, entry: str, client: int, others: Iterable[int], like: Tree) -> Tree:
        """The sum of a client's masks with others; the lower id of a pair adds, the higher one subtracts."""
        masks = trees.map(lambda leaf: torch.zeros(leaf.shape, dtype=torch.int64), like)
        for other in others:
            pair = f"mask of {entry}: {min(client, other)} and {max(client, other)}"
            stream = self.sums.streams.generator(pair, round=self.round, phase=self.phase.name)
            sign = 1 if client < other else -1
            for _, leaf in trees.in_order(masks):
                leaf += sign * torch.randint(MODULUS, leaf.shape, generator=stream)
        return trees.map(lambda mask, leaf: mask.to(leaf.device), masks, like)
