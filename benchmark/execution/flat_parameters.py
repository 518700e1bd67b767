"""The resident model's parameters and buffers in one flat tensor, so that a visit starts with a copy or two."""

import torch

from methods import trees
from methods.base import FederatedMethod, Tree

ALIGNED = 16
"""Elements after which the tensors that do not travel begin: kernels read 16 bytes at a time."""


class FlatParameters:
    """A method's floating-point tensors in one flat tensor, and the pristine state that every visit starts from.

    The parts that travel come first, so that a message is loaded and a reply summed as one tensor. Tensors of another
    dtype (batch counters, fill counts of queues) stay separate.

    Args:
        method: its present state is the pristine one; its tensors are moved, the Parameter objects stay.
    """

    def __init__(self, method: FederatedMethod) -> None:
        self.method = method
        everything = {tensor.data_ptr(): tensor for tensor in (*method.parameters(), *method.buffers())}
        leaves = trees.in_memory_order(trees.leaves(method.weights()))
        sent = [everything.pop(leaf.data_ptr()) for _, leaf in leaves if leaf.numel() and leaf.data_ptr() in everything]
        padding = torch.zeros(-sum(tensor.numel() for tensor in sent) % ALIGNED)
        rest = [tensor for _, tensor in trees.in_memory_order(((), tensor) for tensor in everything.values())]
        ordered = [*sent, *([padding.to(sent[0])] if sent else []), *rest]
        dtype = ordered[0].dtype if ordered else torch.float32
        moved = {(index,): tensor for index, tensor in enumerate(ordered) if tensor.dtype == dtype and tensor.numel()}
        self.others = [(tensor, tensor.detach().clone()) for tensor in ordered if tensor.dtype != dtype]
        self.flat = torch.zeros(0, dtype=dtype)
        if moved:
            packed = trees.flat(moved.items())
            self.flat = packed.flat
            for path, view in trees.leaves(packed.tree(packed.flat)):
                view.copy_(moved[path].detach())
                moved[path].data = view
        self.pristine = self.flat.clone()
        travelling = trees.span(method.weights())
        self.sent = travelling.layout if travelling is not None else ()

    @torch.no_grad()
    def reset(self, overwritten_by: Tree | None = None) -> None:
        """Restores the pristine state, so that nothing of the previous client is left.

        overwritten_by: weights that are loaded next; the tensors they overwrite are not restored.
        """
        first = trees.span(overwritten_by) if overwritten_by is not None else None
        start = first.flat.numel() if first is not None and first.layout == self.sent else 0
        self.flat[start:].copy_(self.pristine[start:])
        for tensor, before in self.others:
            tensor.copy_(before)
