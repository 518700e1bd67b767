"""Carries out what a method declares of its uplink: add a reply, merge ranks, finish.

Mean and Sum are streamed in float64: one copy whatever the cohort, and neither the order of clients nor the number of
ranks shows after rounding to float32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.distributed.collectives import sum_over_ranks
from benchmark.execution.observations import _cat
from methods import trees
from methods.base import Each, Mean, Message, MethodError, Replies, Sum, Visit
from methods.trees import Tree


@dataclass(frozen=True)
class RankReplies:
    """What a rank has of a phase's replies.

    clients: whose. sums: entry -> outline of the running sum, dtypes sent. kept: entry -> client -> its reply.
    """

    clients: list[int]
    sums: dict[str, tuple[Tree, dict[tuple, torch.dtype]]]
    kept: dict[str, dict[int, Tree]]


class Aggregation:
    """The running combination of one phase's replies.

    Args:
        uplink: entry -> Mean | Sum | Cat | Each, as the phase declares.
    """

    def __init__(self, uplink: Mapping[str, Any]) -> None:
        self.uplink = uplink
        self.clients: list[int] = []
        self.sums: dict[str, _Sum] = {}
        self.kept: dict[str, dict[int, Tree]] = {}

    def add(self, visit: Visit, message: Message, server: Tree) -> None:
        """Takes in one client's reply; live tensors are copied or added up at once."""
        undeclared = sorted(set(message) - set(self.uplink))
        if undeclared:
            raise MethodError(
                f"client {visit.client.id} replied with {', '.join(undeclared)}, which phase {visit.phase.name!r} does "
                f"not declare; its uplink is: {', '.join(self.uplink) or 'nothing'}"
            )
        self.clients.append(visit.client.id)
        for entry, tree in message.items():
            how = self.uplink[entry]
            if isinstance(how, Mean):
                weight = _weight(how, visit, message, server)
                self.sums.setdefault(entry, _Sum(entry)).add(tree, weight, visit.client.id)
            elif isinstance(how, Sum):
                self.sums.setdefault(entry, _Sum(entry)).add(tree, 1.0, visit.client.id)
            else:
                self.kept.setdefault(entry, {})[visit.client.id] = trees.clone(tree)

    def staged(self, fabric: Fabric) -> RankReplies:
        """What the other ranks have to know before they can merge; any rows and single replies themselves."""
        alone = fabric.world_size == 1
        return RankReplies(
            self.clients,
            {entry: (trees.map(lambda leaf: leaf.to("meta"), s.parts), s.dtypes) for entry, s in self.sums.items()},
            self.kept
            if alone
            else {entry: {k: _parcel(t) for k, t in kept.items()} for entry, kept in self.kept.items()},
        )

    def merged(self, fabric: Fabric, staged: Sequence[RankReplies]) -> Replies:
        """The combined replies of all ranks, the same on every rank; ranks without a client take part too.

        staged: by every rank, in their order.
        """
        values: dict[str, Tree] = {}
        for entry, how in self.uplink.items():
            if isinstance(how, Mean | Sum):
                outlines = [one.sums[entry] for one in staged if entry in one.sums]
                if outlines:
                    values[entry] = self.sums.get(entry, _Sum(entry)).over_ranks(fabric, outlines).finish(how)
                continue
            kept = {client: tree for one in staged for client, tree in one.kept.get(entry, {}).items()}
            if kept:
                ordered = {client: trees.to(kept[client], fabric.device) for client in sorted(kept)}
                values[entry] = ordered if isinstance(how, Each) else _cat(list(ordered.values()))
        return Replies(values, sorted(client for one in staged for client in one.clients))


CHUNK = 1 << 19
"""Numbers a CPU widens to float64 at a time: a chunk stays in its cache, a whole model would not."""


class _Sum:
    """A weighted sum of Trees of one shape, the sum of the weights, and the number of replies, all in float64."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.parts: Tree = {}
        self.dtypes: dict[tuple, torch.dtype] = {}
        self.home: trees.Span | None = None  # of the total, where replies lie side by side

    def add(self, tree: Tree, weight: Any, client: int) -> None:
        """Adds `weight * tree`; the weight is a number, or a Tree of weights."""
        weights = weight if isinstance(weight, dict) else {"all": torch.tensor(float(weight), dtype=torch.float64)}
        new, first, plain = trees.span(tree), not self.parts, not isinstance(weight, dict)
        if first:
            self._begin(tree, weights, new, torch.empty_like if plain else torch.zeros_like)
        with torch.no_grad():
            if plain and new is not None and self.home is not None and new.layout == self.home.layout:
                factor = float(weight)
                for total, piece in zip(_chunks(self.home.flat), _chunks(new.flat), strict=True):
                    if first:
                        total.copy_(piece).mul_(factor)
                    else:
                        total.add_(piece, alpha=factor)
            elif _shapes(tree) != _shapes(self.parts["total"]):
                raise self._another_architecture(f"client {client}")
            elif not plain:
                trees.map(
                    lambda total, leaf, by: total.add_(leaf.double() * by.double()), self.parts["total"], tree, weight
                )
            else:
                trees.map(lambda total, leaf: total.add_(leaf, alpha=float(weight)), self.parts["total"], tree)
            trees.map(lambda total, by: total.add_(by.double()), self.parts["weight"], weights)
            self.parts["count"]["n"] += 1

    def _begin(self, tree: Tree, weights: Tree, packed: trees.Span | None, make: Callable[..., Tensor]) -> None:
        """Room for the sum, flat where the first reply is: made empty where that is about to be copied there."""
        self.dtypes = {path: leaf.dtype for path, leaf in trees.leaves(tree)}
        if packed is not None:
            self.home = trees.Span(make(packed.flat, dtype=torch.float64), packed.layout)
        self.parts = {
            "total": self.home.tree(self.home.flat) if self.home is not None else _zeros(tree),
            "weight": _zeros(weights),
            "count": {"n": torch.zeros((), dtype=torch.float64)},
        }

    def over_ranks(self, fabric: Fabric, outlines: Sequence[tuple[Tree, dict[tuple, torch.dtype]]]) -> "_Sum":
        """The sum over all ranks, one flat all-reduce; `outlines`: of those that have any, with the dtypes sent."""
        if fabric.world_size == 1:
            return self
        outline, self.dtypes = outlines[0]
        if any(_shapes(other) != _shapes(outline) for other, _ in outlines):
            raise self._another_architecture("a client of another rank")
        together = trees.flat(trees.leaves(outline), fabric.device)
        totals = together.tree(together.flat)
        trees.assign(totals, self.parts)
        sum_over_ranks(fabric, together.flat)
        self.parts = totals
        return self

    def finish(self, how: Mean | Sum) -> Tree:
        """The sum itself, or divided by the weights or the number of clients; in the dtype that was sent."""
        total, by = self.parts["total"], {"all": torch.ones_like(self.parts["count"]["n"])}
        if isinstance(how, Mean):
            by = {"all": self.parts["count"]["n"]} if how.over == "clients" else self.parts["weight"]
        packed, kinds = trees.span(total), set(self.dtypes.values())
        if packed is not None and len(kinds) == 1 and set(by) == {"all"}:
            sent = torch.empty_like(packed.flat, dtype=kinds.pop())
            for piece, wide in zip(_chunks(sent), _chunks(packed.flat), strict=True):
                piece.copy_(wide / by["all"])
            return packed.tree(sent)
        mean = trees.map(torch.div, total, by if set(by) != {"all"} else trees.map(lambda leaf: by["all"], total))
        result: Tree = {}
        for path, leaf in trees.leaves(mean):
            trees.put(result, path, leaf.to(self.dtypes[path]))
        return result

    def _another_architecture(self, who: str) -> MethodError:
        return MethodError(
            f"{who} replied with {self.entry!r} of another shape than the clients before it: "
            "a Mean or Sum needs one architecture; declare Each, or an entry for every architecture"
        )


def _chunks(flat: Tensor) -> Sequence[Tensor]:
    """Pieces to work on one after another; a GPU takes all at once."""
    return flat.split(CHUNK) if flat.device.type == "cpu" else (flat,)


def _parcel(tree: Tree) -> Tree:
    """On the CPU, each leaf with a storage of its own: pickle would send a shared one whole with every leaf."""
    return trees.map(lambda leaf: leaf.cpu().clone(), tree)


def _zeros(tree: Tree) -> Tree:
    return trees.elementwise(lambda leaf: torch.zeros_like(leaf.detach(), dtype=torch.float64), tree)


def _shapes(tree: Tree) -> dict[tuple, torch.Size]:
    return {path: leaf.shape for path, leaf in trees.leaves(tree)}


def _weight(how: Mean, visit: Visit, message: Message, server: Tree) -> Tree | float | Tensor:
    if callable(how.by):
        return how.by(server, message)
    return {"examples": visit.client.examples, "batches": visit.batches, "clients": 1}[how.by]
