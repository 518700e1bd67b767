"""The mean of products of low rank: LoRA's `average: product`.

A client sends the factors A and B of s B A, which trains beside a frozen matrix W. The product of the mean factors is
not the mean of the products (Sun et al. 2024). So the server computes each client's product, and adds to W what the
mean of the products has beyond the product of the mean factors, with which the next round starts (Singhal et al. 2024,
FedEx-LoRA). W + s B A is then the mean of the clients', to rounding.

Decisions
- Up go the factors alone; down also the matrices W, as they change every round.
- The server has to read each client's factors: clip, noise, compression and masks are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmark.federation.stages import Exchange, Reply, Stage
from benchmark.federation.updates import trains_clients
from methods import trees
from methods.base import FederatedMethod, Mean, MethodError, Replies, Tree

ENTRY = "weights"


class Factors(NamedTuple):
    """A layer with factors: the paths of W, A and B in the weights, and s."""

    base: tuple[str, str]
    a: tuple[str, str]
    b: tuple[str, str]
    scale: float

    def product(self, weights: Tree) -> Tensor:
        """s B A in float64, in the shape of W; of a convolution, B is of 1 x 1 pixels."""
        leaves = dict(trees.leaves(weights))
        product = leaves[self.b].double().flatten(1) @ leaves[self.a].double().flatten(1)
        return self.scale * product.view_as(leaves[self.base])

    def moved(self, weights: Tree, sign: int) -> Tensor:
        """W + sign s B A, in the type of W."""
        base = dict(trees.leaves(weights))[self.base]
        return (base.double() + sign * self.product(weights)).to(base)


class ProductAverage(Stage):
    """Replies get W + s B A in the place of W; of their mean remains what the mean factors have not.

    Args:
        factors: of all layers that have some.
    """

    def __init__(self, factors: Sequence[Factors]) -> None:
        self.factors = factors

    @torch.no_grad()
    def client(self, reply: Reply, exchange: Exchange) -> Reply:
        """What the server makes of a reply; the matrices, which have not changed, are not sent."""
        if not trains_clients(exchange.phase) or ENTRY not in reply.message:
            return reply
        weights = reply.message[ENTRY]
        unsent = sum(dict(trees.leaves(weights))[each.base].nbytes for each in self.factors)
        message = {**reply.message, ENTRY: self._with_bases(weights, 1)}
        return replace(reply, encoded=message, sent={**reply.sent, ENTRY: trees.nbytes(weights) - unsent})

    @torch.no_grad()
    def server(self, replies: Replies, exchange: Exchange) -> Replies:
        """The mean of W + s B A, less the product of the mean factors."""
        if not trains_clients(exchange.phase) or ENTRY not in replies:
            return replies
        return Replies({**replies, ENTRY: self._with_bases(replies[ENTRY], -1)}, replies.clients)

    def _with_bases(self, weights: Tree, sign: int) -> Tree:
        moved: Tree = {}
        for each in self.factors:
            trees.put(moved, each.base, each.moved(weights, sign))
        return trees.overlay(weights, moved)


def adapted(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, layer) of the layers with an adapter of peft."""
    return (each for each in module.named_modules() if hasattr(each[1], "adapter_layer_names"))


def check_product(method: FederatedMethod, rounds: int, others: Sequence[str]) -> None:
    """MethodError where the method takes no plain mean of weights, or where another setting changes what is averaged.

    others: keys of such settings.
    """
    key, name = "encoder.adapter.average=product", type(method).__name__
    if others:
        raise MethodError(f"{key} does not go with {others[0]}: choose average: freeze-a, whose mean is exact as well")
    twice = [part for part in method.travelling if part != "encoder" and any(adapted(method.part(part)))]
    if twice or "encoder" in method.staying:
        what = f"averages {twice[0]} by factors" if twice else "keeps some of the encoder at its clients"
        raise MethodError(f"{key} is of the encoder that all clients are sent, and {name} {what}: choose freeze-a")
    for phase in (phase for round in range(max(1, rounds)) for phase in method.plan(round) if trains_clients(phase)):
        how = phase.uplink.get(ENTRY)
        if not isinstance(how, Mean) or how.single or "encoder" not in method.travelling:
            raise MethodError(
                f"{key} is the server's mean of the encoder's weights, and {name} takes another or none in phase "
                f"{phase.name!r}: choose average: factors or freeze-a"
            )
