"""Combination of the messages that one client's batches give in an observe phase."""

from collections.abc import Mapping

import torch

from methods import trees
from methods.base import Cat, Message, MethodError, Sum
from methods.trees import Tree


def gather_batches(earlier: Message, observed: Message, gather: Mapping[str, Sum | Cat]) -> Message:
    """Adds one batch's message to those of the client's earlier batches, as the phase's `gather` declares."""
    if set(observed) != set(gather):
        raise MethodError(f"observe gave {sorted(observed)}, the phase gathers {sorted(gather)}: they must agree")
    for entry, tree in observed.items():
        how = gather[entry]
        if entry not in earlier:
            earlier[entry] = trees.clone(tree)
        elif isinstance(how, Sum):
            earlier[entry] = trees.map(torch.add, earlier[entry], tree)
        else:
            earlier[entry] = concatenate([earlier[entry], tree])
        if isinstance(how, Cat) and how.last is not None:
            earlier[entry] = trees.map(lambda leaf, last=how.last: leaf[-last:], earlier[entry])
    return earlier


def concatenate(parts: list[Tree]) -> Tree:
    """The Trees' leaves concatenated along the first dimension."""
    return trees.map(lambda *leaves: torch.cat(leaves), parts[0], *parts[1:])
