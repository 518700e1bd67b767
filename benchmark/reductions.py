"""Carries out what a method declares of its uplink: add a reply, merge ranks, finish.

Mean and Sum are streamed in float64: one copy whatever the cohort, and neither the order of clients nor the number of
ranks shows after rounding to float32.
"""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.strategy import gather, sum_over_ranks
from methods import trees
from methods.base import Cat, Each, Mean, Message, MethodError, Replies, Sum, Visit
from methods.trees import Tree


class Reductions:
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

    def merged(self, fabric: Fabric) -> Replies:
        """The combined replies of all ranks, the same on every rank; ranks without a client take part too."""
        clients = sorted(client for part in gather(fabric, self.clients) for client in part)
        values: dict[str, Tree] = {}
        for entry, how in self.uplink.items():
            if isinstance(how, Mean | Sum):
                total = self.sums.get(entry, _Sum(entry)).over_ranks(fabric)
                if total is not None:
                    values[entry] = total.finish(how)
                continue
            kept = {
                client: tree for part in gather(fabric, self._on_cpu(entry, fabric)) for client, tree in part.items()
            }
            if not kept:
                continue
            ordered = {client: trees.to(kept[client], fabric.device) for client in sorted(kept)}
            values[entry] = ordered if isinstance(how, Each) else _cat(list(ordered.values()))
        return Replies(values, clients)

    def _on_cpu(self, entry: str, fabric: Fabric) -> dict[int, Tree]:
        kept = self.kept.get(entry, {})
        return kept if fabric.world_size == 1 else {client: trees.to(tree, "cpu") for client, tree in kept.items()}


class _Sum:
    """A weighted sum of Trees of one shape in float64, and the sum of the weights."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.total: Tree = {}
        self.weight: Tree | float = 0.0
        self.count = 0
        self.dtypes: dict[tuple, torch.dtype] = {}

    def add(self, tree: Tree, weight: Any, client: int) -> None:
        found = {path: leaf.shape for path, leaf in trees.leaves(tree)}
        if self.count == 0:
            self.total = trees.map(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), tree)
            self.dtypes = {path: leaf.dtype for path, leaf in trees.leaves(tree)}
            self.weight = trees.map(lambda leaf: leaf.double() * 0, weight) if isinstance(weight, dict) else 0.0
        elif found != {path: leaf.shape for path, leaf in trees.leaves(self.total)}:
            raise MethodError(
                f"client {client} replied with {self.entry!r} of another shape than the clients before it: "
                "a Mean or Sum needs one architecture; declare Each, or an entry for every architecture"
            )
        with torch.no_grad():
            if isinstance(weight, dict) and isinstance(self.weight, dict):
                trees.map(lambda total, leaf, by: total.add_(leaf.double() * by.double()), self.total, tree, weight)
                trees.map(lambda total, by: total.add_(by.double()), self.weight, weight)
            else:
                trees.map(lambda total, leaf: total.add_(leaf.detach(), alpha=float(weight)), self.total, tree)
                self.weight = float(self.weight) + float(weight)  # type: ignore[arg-type]
        self.count += 1

    def over_ranks(self, fabric: Fabric) -> "_Sum | None":
        """The sum over all ranks, or None where no rank has any; one flat all-reduce."""
        if fabric.world_size == 1:
            return self if self.count else None
        outlines = gather(fabric, self._outline())
        outline = next((outline for outline in outlines if outline is not None), None)
        if outline is None:
            return None
        if self.count == 0:
            self._empty(outline, fabric.device)
        parts = [leaf for _, leaf in trees.leaves(self.total)]
        weights = [leaf for _, leaf in trees.leaves(self.weight)] if isinstance(self.weight, dict) else []
        flat = torch.cat([*(leaf.reshape(-1).to(fabric.device) for leaf in (*parts, *weights))])
        scalars = torch.tensor(
            [0.0 if isinstance(self.weight, dict) else self.weight, float(self.count)],
            dtype=torch.float64,
            device=fabric.device,
        )
        flat = sum_over_ranks(fabric, torch.cat([flat, scalars]))
        pieces = flat[:-2].split([leaf.numel() for leaf in (*parts, *weights)])
        for leaf, piece in zip((*parts, *weights), pieces, strict=True):
            leaf.copy_(piece.view(leaf.shape))
        if not isinstance(self.weight, dict):
            self.weight = float(flat[-2])
        self.count = int(flat[-1])
        return self

    def _outline(self) -> Any:
        if self.count == 0:
            return None
        weights = (
            [(path, leaf.shape) for path, leaf in trees.leaves(self.weight)] if isinstance(self.weight, dict) else None
        )
        return [(path, leaf.shape, self.dtypes[path]) for path, leaf in trees.leaves(self.total)], weights

    def _empty(self, outline: Any, device: torch.device) -> None:
        """Zeros in the shape another rank has: a rank without a client still takes part."""
        entries, weights = outline
        for path, shape, dtype in entries:
            trees.put(self.total, path, torch.zeros(shape, dtype=torch.float64, device=device))
            self.dtypes[path] = dtype
        if weights is not None:
            self.weight = {}
            for path, shape in weights:
                trees.put(self.weight, path, torch.zeros(shape, dtype=torch.float64, device=device))

    def finish(self, how: Mean | Sum) -> Tree:
        """The sum itself, or divided by the weights or the number of clients; in the dtype that was sent."""
        if isinstance(how, Sum):
            value = self.total
        elif how.over == "clients":
            value = trees.map(lambda total: total / self.count, self.total)
        elif isinstance(self.weight, dict):
            value = trees.map(torch.div, self.total, self.weight)
        else:
            value = trees.map(lambda total: total / self.weight, self.total)
        result: Tree = {}
        for path, leaf in trees.leaves(value):
            trees.put(result, path, leaf.to(self.dtypes[path]))
        return result


def gather_batches(gathered: Message, observed: Message, gather: Mapping[str, Sum | Cat]) -> Message:
    """Adds one batch's message to what the client's earlier batches gave, as the phase's `gather` declares."""
    if set(observed) != set(gather):
        raise MethodError(f"observe gave {sorted(observed)}, the phase gathers {sorted(gather)}: they must agree")
    for entry, tree in observed.items():
        how = gather[entry]
        if entry not in gathered:
            gathered[entry] = trees.clone(tree)
        elif isinstance(how, Sum):
            gathered[entry] = trees.map(torch.add, gathered[entry], tree)
        else:
            gathered[entry] = _cat([gathered[entry], tree])
        if isinstance(how, Cat) and how.last is not None:
            gathered[entry] = trees.map(lambda leaf, last=how.last: leaf[-last:], gathered[entry])
    return gathered


def _cat(parts: list[Tree]) -> Tree:
    return trees.map(lambda *leaves: torch.cat(leaves), parts[0], *parts[1:])


def _weight(how: Mean, visit: Visit, message: Message, server: Tree) -> Tree | float | Tensor:
    if callable(how.by):
        return how.by(server, message)
    return {"examples": visit.client.examples, "batches": visit.batches, "clients": 1}[how.by]
