"""The resident model: all its numbers in one flat buffer, so that a visit begins with a copy or two."""

import torch

from methods import trees
from methods.base import FederatedMethod, Tree


class FlatParameters:
    """A method whose floating-point parameters and buffers lie side by side, and the state every visit starts from.

    What travels comes first, in the order in which it is sent, so that a message is loaded and a reply added up as one
    tensor. Numbers of another dtype than the first (counters of batches, fill counts of queues) keep places of their
    own.

    Args:
        method: its present state is the pristine one; its tensors are moved, not replaced.
    """

    def __init__(self, method: FederatedMethod) -> None:
        self.method = method
        everything = {tensor.data_ptr(): tensor for tensor in (*method.parameters(), *method.buffers())}
        sent = [everything.pop(leaf.data_ptr(), None) for _, leaf in trees.leaves(method.weights()) if leaf.numel()]
        ordered = [tensor for tensor in (*sent, *everything.values()) if tensor is not None]
        dtype = ordered[0].dtype if ordered else torch.float32
        moved = {(place,): tensor for place, tensor in enumerate(ordered) if tensor.dtype == dtype and tensor.numel()}
        self.others = [(tensor, tensor.detach().clone()) for tensor in ordered if tensor.dtype != dtype]
        self.flat = torch.zeros(0, dtype=dtype)
        if moved:
            home = trees.flat(moved.items())
            self.flat = home.flat
            for path, view in trees.leaves(home.tree(home.flat)):
                view.copy_(moved[path].detach())
                moved[path].data = view
        self.pristine = self.flat.clone()
        travelling = trees.span(method.weights())
        self.sent = travelling.layout if travelling is not None else ()

    @torch.no_grad()
    def reset(self, coming: Tree | None = None) -> None:
        """Back to the pristine state: nothing of the client before is left.

        coming: the weights that are loaded next, before anybody looks; what they overwrite is left as it is.
        """
        first = trees.span(coming) if coming is not None else None
        start = first.flat.numel() if first is not None and first.layout == self.sent else 0
        self.flat[start:].copy_(self.pristine[start:])
        for tensor, before in self.others:
            tensor.copy_(before)
