"""Compression of clients' updates: fewer bits a number, or fewer numbers.

| name | what a client sends of n numbers | bytes |
|---|---|---|
| float16 | all, in half precision | 2 n |
| int8, int4 | all, as whole multiples of the largest size over 127 or 7 | n or n / 2, and 4 for the step |
| top-k | the largest `share` of them, and their positions | 8 for each |

Decisions
- Compressed is a client's update, its reply less what it was sent, of the entries that are averaged or summed after
  training. Other entries are sent as they are, as are whole numbers and running statistics.
- int8 and int4 round at random to a neighbouring multiple, so that the mean over clients is unbiased (Alistarh et al.
  2017, QSGD, with one step a tensor). Every tensor has its own step.
- top-k chooses among all numbers of an entry, and a client keeps what it did not send and adds it to its next update
  (Stich et al. 2018).
- Under `privacy.mechanism=central` an update is compressed and then clipped, which scales the step, so that its norm
  stays within the clip; under `local` it is compressed after the noise was added, which changes no guarantee.
- The message down is not compressed.
"""

import math
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from benchmark.federation.stages import Exchange, Reply, Stage
from benchmark.federation.updates import combined_entries, start_of
from benchmark.rng import Streams
from methods import trees
from methods.base import MethodError, Tree

RESIDUAL = "residual"
"""Key of a client's state for what it has not sent yet."""


class Compression(Stage):
    """How the updates of a run are compressed.

    Args:
        name: of the table above. share: of an entry's numbers that top-k sends, in (0, 1].
        statistics: paths of running statistics, which are sent as they are: a variance could become negative.
        streams: of the run, from which the rounding is drawn.
    """

    def __init__(self, name: str, share: float, statistics: Collection[tuple], streams: Streams) -> None:
        self.name, self.share, self.statistics, self.streams = name, share, statistics, streams

    @property
    def keeps(self) -> bool:
        """Whether a client keeps what it has not sent."""
        return self.name == "top-k"

    @torch.no_grad()
    def client(self, reply: Reply, exchange: Exchange) -> Reply:
        """A reply behind this stage: compressed; under top-k the client's state has what it has still to send."""
        visit, message, phase, client = reply.visit, reply.message, exchange.phase.name, reply.visit.client.id
        residual = exchange.states.get(client, {}).get(RESIDUAL, {}) if self.keeps else {}
        stream = self.streams.generator("compression", round=visit.round, phase=phase, client=client)
        nbytes, kept = dict[str, int](), dict(residual)
        compressible = {entry: self._compressible(message.get(entry, {})) for entry in combined_entries(visit.phase)}
        if compressible and not any(compressible.values()):
            raise MethodError(
                f"compression.name={self.name}: of what clients send in phase {phase!r}, only running statistics are "
                "averaged or summed, and those are sent as they are: leave it out"
            )
        for entry, chosen in compressible.items():
            if not chosen:
                continue
            start = trees.select(start_of(visit.message, message, entry), chosen)
            update = trees.subtract(chosen, start)
            if self.keeps:
                update = trees.add(update, kept[entry]) if entry in kept else update
                received, size = largest(update, self.share)
                kept[entry] = trees.subtract(update, received)
            else:
                received, size = self._rounded(update, stream)
            nbytes[entry] = trees.nbytes(message[entry]) - trees.nbytes(chosen) + size
            message = {**message, entry: trees.overlay(message[entry], trees.add(start, received))}
        state = {**reply.state, RESIDUAL: kept} if kept else reply.state
        return replace(reply, message=message, sent={**reply.sent, **nbytes}, state=state)

    def _compressible(self, reply: Tree) -> Tree:
        """The leaves of an entry that are compressed."""
        chosen: Tree = {}
        for path, leaf in trees.leaves(reply):
            if leaf.is_floating_point() and path not in self.statistics:
                trees.put(chosen, path, leaf)
        return chosen

    def _rounded(self, update: Tree, stream: torch.Generator) -> tuple[Tree, int]:
        """The update with fewer bits a number, and its bytes."""
        if self.name == "float16":
            return trees.map(lambda leaf: leaf.half().to(leaf), update), 2 * _numbers(update)
        bits = int(self.name.removeprefix("int"))
        size = sum(math.ceil(leaf.numel() * bits / 8) + leaf.element_size() for _, leaf in trees.leaves(update))
        return trees.map_in_order(lambda leaf: multiples(leaf, bits, stream), update), size


def _numbers(tree: Tree) -> int:
    return sum(leaf.numel() for _, leaf in trees.leaves(tree))


def multiples(leaf: Tensor, bits: int, stream: torch.Generator) -> Tensor:
    """Numbers rounded at random to whole multiples of a step, of at most `bits` bits with the sign; unbiased.

    >>> multiples(torch.tensor([127.0, -3.0, 0.0]), 8, torch.Generator())
    tensor([127.,  -3.,   0.])
    """
    largest = 2 ** (bits - 1) - 1
    step = leaf.abs().max() / largest if leaf.numel() else leaf.new_zeros(())
    if step == 0:
        return leaf
    chance = torch.rand(leaf.shape, generator=stream).to(leaf)
    return (leaf / step + chance).floor().clamp(-largest, largest) * step


def largest(update: Tree, share: float) -> tuple[Tree, int]:
    """The update with all but the largest `share` of its numbers 0, at least one; and the bytes of those.

    >>> largest({"w": torch.tensor([1.0, -5.0, 2.0, 0.5])}, 0.5)
    ({'w': tensor([ 0., -5.,  2.,  0.])}, 16)
    """
    leaves = [leaf for _, leaf in trees.leaves(update)]
    flat = torch.cat([leaf.flatten().abs().float() for leaf in leaves])
    count = max(1, round(share * len(flat)))
    chosen = torch.zeros_like(flat, dtype=torch.bool).scatter_(0, flat.topk(count).indices, True)
    masks = iter(chosen.split([leaf.numel() for leaf in leaves]))
    size = 4 + max(leaf.element_size() for leaf in leaves)  # a position and a number
    return trees.map(lambda leaf: leaf * next(masks).view(leaf.shape), update), count * size
