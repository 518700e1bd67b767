"""A stand-in for CUDA graphs on a CPU: records the tensor operations of a function and repeats them in place.

As with a graph, a replay does not run Python again: operations read and write the recorded tensors, Python numbers keep
their recorded values, and `looks` names the operations that needed the value of a tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
"""Operations that wait for the device, because Python or a shape depends on a value."""


class Tape(TorchDispatchMode):
    """Operations in their order, with the tensors they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Runs and records an operation, with copies of the tensors it may overwrite."""
        if func._schema.is_mutable or "batch_norm" in func.name():  # updates running statistics
            self.before += [(leaf, leaf.clone()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    @property
    def looks(self) -> list[str]:
        """Names of the operations that waited for a value."""
        return [func.name() for func, *_ in self.operations if func.name().startswith(LOOKS)]

    @torch.no_grad()
    def undo(self) -> None:
        """Restores the overwritten tensors."""
        for tensor, value in reversed(self.before):
            tensor.copy_(value)

    def replay(self) -> None:
        """Repeats the operations on the same tensors."""
        self.replays += 1
        again(self.operations)


@torch.no_grad()
def again(operations: list[tuple[Any, tuple, dict, Any]]) -> None:
    """Repeats operations in place. operations: function, arguments, keywords and result of each."""
    for func, args, kwargs, before in operations:
        returns = func._schema.returns
        if returns and all(returned.alias_info is not None for returned in returns) and not func._schema.is_mutable:
            continue  # a view shares the memory of its base
        after = func(*args, **kwargs)
        several = isinstance(before, tuple | list) and len(returns) > 1
        pairs = zip(before, after, strict=True) if several else [(before, after)]
        for returned, (old, new) in zip(returns, pairs, strict=False):
            for slot, value in zip(tree_leaves(old), tree_leaves(new), strict=True):
                if returned.alias_info is None and isinstance(value, Tensor):
                    slot.copy_(value)


def recorder(tapes: list[Tape]) -> Callable[[object], Callable[[Callable[[], None]], Callable[[], None]]]:
    """A factory of recorders for `benchmark.execution.parallel`; it appends every tape to `tapes`.

    As with a graph, recording leaves all tensors unchanged.
    """

    def record(function: Callable[[], None]) -> Callable[[], None]:
        with Tape() as tape:
            function()
        tape.undo()
        tapes.append(tape)
        return tape.replay

    return lambda stream: record
