"""A stand-in for CUDA graphs on a CPU: records the tensor operations of a function and repeats them in place.

As with a graph, Python is not run again: what is repeated reads and writes the tensors of the recording, numbers that
came from Python stay what they were, and a step that looked at a value of a tensor shows.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
"""Operations by which a program waits for a device to know a value."""


class Tape(TorchDispatchMode):
    """Operations in their order, with the tensors they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Carries an operation out and notes it, and what it is about to overwrite."""
        if func._schema.is_mutable or "batch_norm" in func.name():  # which moves its running statistics unannounced
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
        """Puts back what was overwritten."""
        for tensor, value in reversed(self.before):
            tensor.copy_(value)

    @torch.no_grad()
    def replay(self) -> None:
        """The same operations on the same tensors."""
        self.replays += 1
        for func, args, kwargs, before in self.operations:
            returns = func._schema.returns
            if returns and all(one.alias_info is not None for one in returns) and not func._schema.is_mutable:
                continue  # a view: it sees what its base has become
            after = func(*args, **kwargs)
            several = isinstance(before, tuple | list) and len(returns) > 1
            pairs = zip(before, after, strict=True) if several else [(before, after)]
            for one, (old, new) in zip(returns, pairs, strict=False):
                for place, value in zip(tree_leaves(old), tree_leaves(new), strict=True):
                    if one.alias_info is None and isinstance(value, Tensor):
                        place.copy_(value)


def recorder(tapes: list[Tape]) -> Callable[[object], Callable[[Callable[[], None]], Callable[[], None]]]:
    """Makes recorders for `benchmark.execution.parallel`, whose tapes are put on the list.

    As with a graph, recording leaves everything as it was.
    """

    def record(function: Callable[[], None]) -> Callable[[], None]:
        with Tape() as tape:
            function()
        tape.undo()
        tapes.append(tape)
        return tape.replay

    return lambda stream: record
