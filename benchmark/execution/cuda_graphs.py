"""Local steps recorded once as CUDA graphs and replayed on other batches.

A recorded step reads fixed addresses: parameters and buffers keep theirs (the resident model's flat tensor); the batch,
the learning rate and the tensors a visit leaves on the method (`context`, an anchor) are copied to theirs. Plain
numbers are constants of a recording, so the step is recorded again where one changes; objects of other types are
assumed not to change. A step must not branch on values of tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from methods import trees
from methods.base import FederatedMethod
from methods.optimizers import LARS

SHAPES = 4
"""Largest number of batch shapes that are recorded: clients may end in many sizes of short batches."""

PLAIN = (bool, int, float, str, type(None))
INTERNAL = {*vars(LightningModule()), "places"} - {"training"}
"""Attributes of a module that belong to Lightning, torch and the base class."""


Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the kernels of a function without running it; returns a function that replays them on the same tensors."""


class CudaGraphs:
    """CUDA graphs on one stream; they share memory, since those of a stream never run at the same time."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream, self.pool = stream, torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of all kernels; other lanes may work meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            function()
        return graph.replay


class RecordedSteps:
    """The recorded steps of one phase on one lane.

    A step of a new shape runs unrecorded, which also prepares libraries and the optimiser's state; it is recorded when
    the shape occurs a second time, and replayed from then on.

    Args:
        make: returns a fresh recorder with its own memory.
        device: where the steps run.
    """

    def __init__(self, make: Callable[[], Recorder], device: torch.device) -> None:
        self.make, self.device = make, device
        self.recorder = make()
        self.recorded: dict[Any, tuple[Any, Callable[[], None]] | None] = {}  # shape -> static batch, its step
        self.known: Any = None
        self.static: dict[tuple[str, str], Any] = {}
        self.state: Any = None
        self.rates: list[Tensor] = []
        self.failed = ""  # why a step could not be recorded

    def prepare(self, method: FederatedMethod, optimizer: torch.optim.Optimizer) -> bool:
        """Copies a visit's tensors to the addresses its steps read; drops the recordings where they do not fit.

        Returns whether this visit's steps can be recorded or replayed.
        """
        attributes = _visit_attributes(method, optimizer, self.device)
        if self.failed or attributes is None or not _starts_at_zero(optimizer):
            return False
        tensors, constants = attributes
        for group in optimizer.param_groups:  # forms of the update that read the learning rate from the device
            on_gpu = {"capturable": True} if "capturable" in group and self.device.type == "cuda" else {}
            group.update({"fused": True, "foreach": False, **on_gpu})
        addresses = [tensor.data_ptr() for tensor in (*method.parameters(), *method.buffers())]
        outlines = {name: _outline(value) for name, value in tensors.items()}
        known = (_settings(optimizer), constants, addresses, outlines)
        if known == self.known:
            for key, value in tensors.items():
                _copy(self.static[key], value)
            optimizer.state = self.state
            for value in (value for state in self.state.values() for value in state.values()):
                if isinstance(value, Tensor):
                    value.zero_()  # as in a fresh optimiser
        else:
            self.recorded, self.known, self.state, self.recorder = {}, known, optimizer.state, self.make()
            # clones, because the tensors may be the server's
            self.static = {name: _clone(value) for name, value in tensors.items()}
            self.rates = [torch.zeros((), device=self.device) for _ in optimizer.param_groups]
        for (module, name), value in self.static.items():
            vars(method.get_submodule(module))[name] = value
        return True

    def take(self, batch: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]) -> None:
        """One step on this batch, unrecorded or replayed."""
        shape = _outline(batch)
        recorded = self.recorded.get(shape)
        if recorded is None and shape in self.recorded:
            recorded = self.recorded[shape] = self._record(batch, optimizer, step)
        if recorded is None:
            if len(self.recorded) < SHAPES and not self.failed:
                self.recorded.setdefault(shape, None)
            step(batch)
            return
        static_batch, replay = recorded
        for rate, group in zip(self.rates, optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        _copy(static_batch, batch)
        replay()

    def _record(
        self, batch: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]
    ) -> tuple[Any, Callable[[], None]] | None:
        """The static batch and the recorded step, None where the device refuses to record it."""
        static_batch, rates = _clone(batch), [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        try:
            return static_batch, self.recorder(lambda: step(static_batch))
        except RuntimeError as error:  # the step waits for the device, or allocates on another: it runs unrecorded
            optimizer.zero_grad(set_to_none=True)  # recorded gradients were not computed
            self.failed, self.recorded = f"{type(error).__name__}: {error}", {}
            return None
        finally:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


def _starts_at_zero(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fresh state of the optimiser is all zeros."""
    plain = all(not group.get("dampening") for group in optimizer.param_groups)
    return plain and type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, LARS)


def _settings(optimizer: torch.optim.Optimizer) -> Any:
    """Settings that a recorded update depends on: all but the learning rate and the state."""
    return type(optimizer), [
        {key: [id(parameter) for parameter in value] if key == "params" else value for key, value in group.items()}
        | {"lr": None, "initial_lr": None}
        for group in optimizer.param_groups
    ]


def _visit_attributes(
    method: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], Any]] | None:
    """Plain attributes of a method and its modules by (module, name): Trees and tensors, and plain values.

    None where a tensor is inside another type or on another device, so that it could not be copied in place. The
    model's parameters and buffers are left out, and `_settings` covers the optimiser's.
    """
    model = {id(tensor) for tensor in (*method.parameters(), *method.buffers())}
    tensors: dict[tuple[str, str], Any] = {}
    constants: dict[tuple[str, str], Any] = {}
    for where, module in method.named_modules():
        for name, value in vars(module).items():
            if name in INTERNAL or any(value is group for group in optimizer.param_groups):
                continue
            items = [item for item in tree_leaves(value) if id(item) not in model]
            if any(isinstance(item, Tensor) for item in items):
                if not all(isinstance(item, Tensor) and item.device == device for item in items):
                    return None
                if not isinstance(value, Tensor | dict):
                    return None
                tensors[where, name] = value
            elif items and all(isinstance(item, PLAIN) for item in items):
                constants[where, name] = value
    return tensors, constants


def _outline(value: Any) -> Any:
    """Shapes, dtypes and keys of nested tensors; comparable, and a key where the value holds no dict."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.stride()
    if isinstance(value, dict):
        return tuple((key, _outline(inner)) for key, inner in value.items())
    return tuple(_outline(inner) for inner in value) if isinstance(value, tuple) else value


def _clone(value: Any) -> Any:
    """The same structure with copied tensors."""

    def clone(item: Any) -> Any:
        if isinstance(item, dict):
            return trees.clone(item)
        return item.detach().clone() if isinstance(item, Tensor) else item

    return tree_map(clone, value, is_leaf=lambda item: isinstance(item, dict))


def _copy(target: Any, value: Any) -> None:
    """Copies the tensors of `value` into those of `target`, which has the same structure."""
    if isinstance(value, Tensor):
        target.copy_(value)
    elif isinstance(value, dict):
        trees.assign(target, value)
    elif isinstance(value, tuple):
        for inner, source in zip(target, value, strict=True):
            _copy(inner, source)
