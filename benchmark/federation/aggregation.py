"""Aggregation of the clients' replies, as a method declares it: Mean, Sum, Cat and Each, over all ranks.

Mean and Sum are accumulated in float64: one copy whatever the size of the cohort, and after rounding to float32 the
result depends neither on the order of clients nor on the number of ranks. Replies in float64 are kept and added in the
order of clients, for the same reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.distributed.collectives import sum_over_ranks
from benchmark.execution.observations import concatenate
from methods import trees
from methods.base import Each, Mean, Message, MethodError, Replies, Sum, Visit
from methods.trees import Tree


@dataclass(frozen=True)
class RankReplies:
    """One rank's replies of a phase, as the other ranks need them before they merge.

    clients: ids. sums: entry -> outline of the running sum, dtypes sent. single: entry -> client -> its reply.
    """

    clients: list[int]
    sums: dict[str, tuple[Tree, dict[tuple, torch.dtype]]]
    single: dict[str, dict[int, Tree]]


class Aggregation:
    """Running combination of one phase's replies.

    Args:
        reductions: entry -> Mean | Sum | Cat | Each, as the phase declares and the stages of `uplink` change it.
    """

    def __init__(self, reductions: Mapping[str, Any]) -> None:
        self.reductions = reductions
        self.clients: list[int] = []
        self.sums: dict[str, _Sum] = {}
        self.single: dict[str, dict[int, Tree]] = {}

    def add(self, visit: Visit, message: Message, server: Tree) -> None:
        """Adds one client's reply; live tensors are copied or summed at once."""
        undeclared = sorted(set(message) - set(self.reductions))
        if undeclared:
            raise MethodError(
                f"{visit.client} replied with {', '.join(undeclared)}, which phase {visit.phase.name!r} does "
                f"not declare; its uplink is: {', '.join(self.reductions) or 'nothing'}"
            )
        self.clients.append(visit.client.id)
        for entry, tree in message.items():
            how = self.reductions[entry]
            if isinstance(how, Mean | Sum):
                weights = _weights(how, visit, message, server)
                if any(leaf.dtype == torch.float64 for _, leaf in trees.leaves(tree)):
                    self.single.setdefault(entry, {})[visit.client.id] = trees.clone({"reply": tree, "by": weights})
                else:
                    self.sums.setdefault(entry, _Sum(entry)).add(tree, weights, visit.client.id)
            else:
                self.single.setdefault(entry, {})[visit.client.id] = trees.clone(tree)

    def staged(self, fabric: Fabric) -> RankReplies:
        """What the other ranks need before they can merge: outlines of sums, and the single replies themselves."""
        single = self.single
        if fabric.world_size > 1:
            single = {entry: {k: _detached(t) for k, t in replies.items()} for entry, replies in single.items()}
        return RankReplies(
            self.clients,
            {entry: (trees.map(lambda leaf: leaf.to("meta"), s.parts), s.dtypes) for entry, s in self.sums.items()},
            single,
        )

    def merged(self, fabric: Fabric, staged: Sequence[RankReplies]) -> Replies:
        """The combined replies of all ranks, equal on every rank; ranks without a client take part too.

        staged: of every rank, in the order of ranks.
        """
        values: dict[str, Tree] = {}
        for entry, how in self.reductions.items():
            outlines = [replies.sums[entry] for replies in staged if entry in replies.sums]
            if outlines:
                values[entry] = self.sums.get(entry, _Sum(entry)).over_ranks(fabric, outlines).finish(how)
                continue
            single = {client: tree for replies in staged for client, tree in replies.single.get(entry, {}).items()}
            ordered = {client: trees.to(single[client], fabric.device) for client in sorted(single)}
            if isinstance(how, Mean | Sum) and ordered:
                total = _Sum(entry)
                for client, kept in ordered.items():
                    total.add(kept["reply"], kept["by"], client)
                values[entry] = total.finish(how)
            elif ordered:
                values[entry] = ordered if isinstance(how, Each) else concatenate(list(ordered.values()))
        return Replies(values, sorted(client for replies in staged for client in replies.clients))


CHUNK = 1 << 19
"""Values that a CPU converts to float64 at a time: a chunk fits its cache, a whole model does not."""


class _Sum:
    """A weighted sum of Trees of one shape, the sum of the weights, and the number of replies, all in float64."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.parts: Tree = {}
        self.dtypes: dict[tuple, torch.dtype] = {}
        self.span: trees.Span | None = None  # of the total, where replies are contiguous

    def add(self, tree: Tree, weights: Tree, client: int) -> None:
        """Adds `weights * tree`; weights: shaped like the tree, or {"all": one weight}."""
        new, first, plain = trees.span(tree), not self.parts, set(weights) == {"all"}
        if first:
            self._begin(tree, weights, new, torch.empty_like if plain else torch.zeros_like)
        with torch.no_grad():
            if plain and new is not None and self.span is not None and new.layout == self.span.layout:
                factor = float(weights["all"])
                for total, piece in zip(_chunks(self.span.flat), _chunks(new.flat), strict=True):
                    if first:
                        total.copy_(piece).mul_(factor)
                    else:
                        total.add_(piece, alpha=factor)
            elif _shapes(tree) != _shapes(self.parts["total"]):
                raise self._another_architecture(f"client {client}")
            elif not plain:
                trees.map(
                    lambda total, leaf, by: total.add_(leaf.double() * by.double()), self.parts["total"], tree, weights
                )
            else:
                trees.map(lambda total, leaf: total.add_(leaf, alpha=float(weights["all"])), self.parts["total"], tree)
            trees.map(lambda total, by: total.add_(by.double()), self.parts["weight"], weights)
            self.parts["count"]["n"] += 1

    def _begin(self, tree: Tree, weights: Tree, packed: trees.Span | None, make: Callable[..., Tensor]) -> None:
        """Allocates the sum, flat where the first reply is; make: `empty_like` where that reply is copied into it."""
        self.dtypes = {path: leaf.dtype for path, leaf in trees.leaves(tree)}
        if packed is not None:
            self.span = trees.Span(make(packed.flat, dtype=torch.float64), packed.layout)
        self.parts = {
            "total": self.span.tree(self.span.flat) if self.span is not None else _zeros(tree),
            "weight": _zeros(weights),
            "count": {"n": torch.zeros((), dtype=torch.float64)},
        }

    def over_ranks(self, fabric: Fabric, outlines: Sequence[tuple[Tree, dict[tuple, torch.dtype]]]) -> "_Sum":
        """The sum over all ranks by one flat all-reduce; outlines: of the ranks that have any, with the dtypes sent."""
        if fabric.world_size == 1:
            return self
        outline, self.dtypes = outlines[0]
        if any(_shapes(other) != _shapes(outline) for other, _ in outlines):
            raise self._another_architecture("a client of another rank")
        packed = trees.flat(trees.leaves(outline), fabric.device)
        totals = packed.tree(packed.flat)
        trees.assign(totals, self.parts)
        sum_over_ranks(fabric, packed.flat)
        self.parts = totals
        return self

    def finish(self, how: Mean | Sum) -> Tree:
        """The sum, or the sum over the weights or the number of clients; in the dtype that was sent."""
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
    """Pieces to work on one after another; a GPU works on all at once."""
    return flat.split(CHUNK) if flat.device.type == "cpu" else (flat,)


def _detached(tree: Tree) -> Tree:
    """A copy on the CPU, each leaf with its own storage: pickle would send a shared storage whole with every leaf."""
    return trees.map(lambda leaf: leaf.cpu().clone(), tree)


def _zeros(tree: Tree) -> Tree:
    return trees.elementwise(lambda leaf: torch.zeros_like(leaf.detach(), dtype=torch.float64), tree)


def _shapes(tree: Tree) -> dict[tuple, torch.Size]:
    return {path: leaf.shape for path, leaf in trees.leaves(tree)}


def _weights(how: Mean | Sum, visit: Visit, message: Message, server: Tree) -> Tree:
    """A Tree of weights shaped like the entry, or {"all": one weight}."""
    if isinstance(how, Mean) and callable(how.by):
        weight = how.by(server, message)
    else:
        weight = visit.weight(str(how.by) if isinstance(how, Mean) else "clients")
    return weight if isinstance(weight, dict) else {"all": torch.tensor(float(weight), dtype=torch.float64)}
