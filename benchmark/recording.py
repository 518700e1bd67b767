"""Local steps recorded once and repeated on other batches: CUDA graphs, and what has to stay in its place for them.

What a recorded step reads has to lie where it lay when it was recorded: parameters and buffers do (the resident
model's flat buffer), the batch and the rate are copied into place, and so is whatever a visit left on the method
(`context`, an anchor, a stretch). Plain numbers of a method are recorded as they are; where one changes, the step is
recorded anew. A step that branches on values of tensors cannot be recorded; `methods.base` forbids it, and the contract
test repeats every method's recorded steps for another client.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from methods import trees
from methods.base import FederatedMethod, Phase


class Recorder(Protocol):
    """Records what a function asks of a device, and hands out what repeats it."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Records without carrying out; the result carries it out, on the same tensors."""


class CudaGraphs:
    """CUDA graphs on one stream, which share their memory: those of a stream never run at the same time."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream, self.pool = stream, torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of all kernels; other lanes may work meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            function()
        return graph.replay


class Recordings:
    """The recorded steps of one model on one stream.

    A step of a new shape runs as it is, which also prepares libraries and the optimiser's state; it is recorded when
    the shape comes a second time, and from then on repeated.

    Args:
        recorder: of the stream.
        device: where the rates lie.
    """

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        self.recorder, self.device = recorder, device
        self.recorded: dict[Any, tuple[Any, Callable[[], None]] | None] = {}  # shape -> the batch's place, its step
        self.known: Any = None
        self.held: dict[tuple[str, str], Any] = {}
        self.state: Any = None
        self.rates: list[Tensor] = []

    def prepare(self, method: FederatedMethod, phase: Phase, optimizer: torch.optim.Optimizer) -> None:
        """Puts what a visit brought where its steps look for it; forgets the steps where it does not fit."""
        for group in optimizer.param_groups:  # forms of the update that read their rate from the device
            group.update({"fused": True, "foreach": False} if "dampening" in group else {"capturable": True})
        brought = _attributes(method, _is_tree)
        numbers = _attributes(method, lambda value: isinstance(value, bool | int | float | str))
        known = (
            phase.name,
            _settings(optimizer),
            numbers,
            {place: _outline(value) for place, value in brought.items()},
        )
        if known == self.known:
            for place, value in brought.items():
                _copy(self.held[place], value)
            optimizer.state = self.state
            for value in (value for state in self.state.values() for value in state.values()):
                if isinstance(value, Tensor):
                    value.zero_()  # as a fresh optimiser would have it
        else:
            self.recorded, self.known, self.state = {}, known, optimizer.state
            self.held = {
                place: _clone(value) for place, value in brought.items()
            }  # what was brought may be the server's
            self.rates = [torch.zeros((), device=self.device) for _ in optimizer.param_groups]
        for (module, name), value in self.held.items():
            vars(method.get_submodule(module))[name] = value

    def take(self, batch: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]) -> None:
        """One step on this batch: as it is, or recorded."""
        shape = _outline(batch)
        if shape not in self.recorded:
            self.recorded[shape] = None
            step(batch)
            return
        place, repeat = self.recorded[shape] or self._record(shape, batch, optimizer, step)
        for rate, group in zip(self.rates, optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        _copy(place, batch)
        repeat()

    def _record(
        self, shape: Any, batch: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]
    ) -> tuple[Any, Callable[[], None]]:
        place, rates = _clone(batch), [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        recorded = self.recorded[shape] = place, self.recorder(lambda: step(place))
        for group, given in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = given
        return recorded


def recordable(method: FederatedMethod, phase: Phase) -> bool:
    """Whether a phase's steps can be recorded and repeated for another client."""
    if any(isinstance(module, nn.modules.dropout._DropoutNd) for module in method.modules()):
        return False
    optimizer = method.hook("configure_optimizers", phase)()
    plain = all(not group.get("dampening") for group in optimizer.param_groups)
    return plain and type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def _settings(optimizer: torch.optim.Optimizer) -> Any:
    """What a recorded update was made for: all but the rate and the state."""
    return type(optimizer), [
        {key: [id(one) for one in value] if key == "params" else value for key, value in group.items()}
        | {"lr": None, "initial_lr": None}
        for group in optimizer.param_groups
    ]


def _attributes(method: nn.Module, wanted: Callable[[Any], bool]) -> dict[tuple[str, str], Any]:
    """The plain attributes of a method and its modules that are wanted, by (module, name)."""
    return {
        (where, name): value
        for where, module in method.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and wanted(value)
    }


def _is_tree(value: Any) -> bool:
    """Whether a value is made of tensors and dicts alone, and holds a tensor."""
    if not isinstance(value, dict):
        return isinstance(value, Tensor)
    return bool(value) and all(_is_tree(inner) for inner in value.values())


def _outline(value: Any) -> Any:
    """Shapes, dtypes and keys of nested tensors; comparable, and a key where the value holds no dict."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.stride()
    if isinstance(value, dict):
        return tuple((key, _outline(inner)) for key, inner in value.items())
    return tuple(_outline(inner) for inner in value) if isinstance(value, tuple) else value


def _clone(value: Any) -> Any:
    """The same structure over tensors of its own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return trees.clone(value)
    if isinstance(value, tuple):
        inner = map(_clone, value)
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value


def _copy(place: Any, value: Any) -> None:
    """Numbers of `value` into the tensors of `place`, which is built alike."""
    if isinstance(value, Tensor):
        place.copy_(value)
    elif isinstance(value, dict):
        trees.assign(place, value)
    elif isinstance(value, tuple):
        for one, other in zip(place, value, strict=True):
            _copy(one, other)
