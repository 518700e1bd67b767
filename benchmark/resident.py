"""The resident model: all its numbers in one flat buffer, so that a visit begins with a copy or two."""

import torch
from torch import Tensor

from methods import trees
from methods.base import FederatedMethod


class Resident:
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
        sent = [everything.pop(leaf.data_ptr()) for _, leaf in trees.leaves(method.weights()) if leaf.numel()]
        ordered: list[Tensor] = [*sent, *everything.values()]
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

    @torch.no_grad()
    def reset(self) -> None:
        """Back to the pristine state: nothing of the client before is left."""
        self.flat.copy_(self.pristine)
        for tensor, before in self.others:
            tensor.copy_(before)
