"""Operations and memory of a piece of a client's work, counted without doing it.

The work is done on fake tensors (torch's `FakeTensorMode`), which have shapes and storages but no values: a batch of
1,024 images through a ResNet takes a second and no memory, and the numbers are those of a real step on a CPU.

Operations are those that `torch.utils.flop_counter` counts: two for each multiplication with its addition, of matrix
products, convolutions and attention, forward and backward; what works element by element does not count. Memory is that
of the tensors that live at once, by their storages. Each convolution also counts a copy of what it reads, in the layout
of its kernel, as oneDNN makes them; other workspaces of kernels, and torch itself, do not count.
"""

import copy
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor, ops
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from methods.base import FederatedMethod

Work = Callable[[FederatedMethod, Any], Any]
"""A function of a method and its inputs, such as a batch."""


class Count(NamedTuple):
    """What a piece of work takes.

    flops: operations. peak: bytes of all tensors that it makes and that live at once, its inputs included.
    activations: bytes that its forward pass keeps for the backward pass. gradients: bytes of the parameters' gradients.
    """

    flops: int
    peak: int
    activations: int
    gradients: int


def count(method: FederatedMethod, work: Work, inputs: Any) -> Count:
    """What `work(method, inputs)` takes; the method and the inputs stay as they are.

    inputs: nested tensors, of the size that is asked about. Work that branches on values, as no step does, is done.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        return _count(method, work, inputs, mode.from_tensor, mode)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return _count(method, work, inputs, lambda tensor: tensor.detach().clone(), nullcontext())


def _count(
    method: FederatedMethod,
    work: Work,
    inputs: Any,
    copied: Callable[[Tensor], Tensor],
    mode: AbstractContextManager[Any],
) -> Count:
    """Does the work on a copy. copied: makes that of a tensor."""
    own = {id(tensor): _copy_of(tensor, copied) for tensor in tensors_of(method)}
    twin = copy.deepcopy(method, dict(own))  # its tensors are those of `own`
    given = tree_map_only(Tensor, copied, inputs)
    brought = [each for each in tree_leaves(given) if isinstance(each, Tensor)]
    live, flops = LiveBytes([*own.values(), *brought]), flop_counter()
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (place := place_of(tensor)) not in live.outside:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with mode, live, flops, saved_tensors_hooks(keep, lambda tensor: tensor):
        work(twin, given)
    gradients = sum(each.grad.nbytes for each in twin.parameters() if each.grad is not None)
    peak = live.peak + sum(each.nbytes for each in brought)
    return Count(int(flops.get_total_flops()), peak, sum(kept.values()), gradients)


def flop_counter() -> FlopCounterMode:
    """Torch's, which also counts the kernel of attention on a CPU: torch 2.11's own does not."""
    mode, name = FlopCounterMode(display=False), "_scaled_dot_product_flash_attention"
    for end in ("", "_backward"):
        mode.flop_registry[getattr(ops.aten, f"{name}_for_cpu{end}")] = flop_registry[getattr(ops.aten, f"{name}{end}")]
    return mode


def _copy_of(tensor: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy that is a parameter where the tensor is one."""
    made = copied(tensor)
    if isinstance(tensor, Parameter) and not isinstance(made, Parameter):
        return Parameter(made, tensor.requires_grad)
    return made


def operations(work: Callable[[], Any]) -> tuple[Any, int]:
    """The result of real work, and its operations."""
    with flop_counter() as flops:
        result = work()
    return result, flops.get_total_flops()


def tensors_of(method: FederatedMethod) -> list[Tensor]:
    """All tensors that a method and its modules hold, each once: parameters, buffers, context and plain attributes."""
    found = [each for module in method.modules() for each in tree_leaves(dict(vars(module)))]
    return [*{id(each): each for each in found if isinstance(each, Tensor)}.values()]


def place_of(tensor: Tensor) -> int:
    """Identifies a tensor's storage among those that are alive."""
    return int(tensor.untyped_storage()._cdata)


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors that operations make, as long as they live.

    live, peak: now, and at most so far. outside: storages that do not count.
    """

    def __init__(self, outside: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.outside = set(map(place_of, outside))
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation, then adds what it made."""
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and not {place_of(each)} & (self.outside | self.sizes.keys()):
                self._add(each)
        read = args if "convolution" in func.name() else ()
        copies = sum(each.nbytes for each in tree_leaves(read) if isinstance(each, Tensor))
        self.peak = max(self.peak, self.live + copies)
        return made

    def _add(self, tensor: Tensor) -> None:
        storage, place = tensor.untyped_storage(), place_of(tensor)
        self.sizes[place] = storage.nbytes()
        self.live += storage.nbytes()
        weakref.finalize(storage, self._drop, place)

    def _drop(self, place: int) -> None:
        self.live -= self.sizes.pop(place)
