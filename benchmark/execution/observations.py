"""How the messages of one client's batches are combined."""

from collections.abc import Mapping

import torch

from methods import trees
from methods.base import Cat, Message, MethodError, Sum
from methods.trees import Tree


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
