"""Local steps recorded once and repeated on other batches: CUDA graphs, and what has to stay in its place for them.

What a recorded step reads has to lie where it lay when it was recorded: parameters and buffers do (the resident
model's flat buffer), the batch and the rate are copied into place, and so are the tensors a visit leaves on the method
(`context`, an anchor, a stretch). Plain numbers are recorded as they are; where one changes, the step is recorded anew.
A visit that leaves a tensor where it cannot be copied in place, in a list or on another device, is not recorded; other
objects are taken to stay as they are. A step that branches on values of
tensors cannot be; `methods.base` forbids it, and the contract test repeats every method's recorded steps for another
client.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from methods import trees
from methods.base import FederatedMethod

SHAPES = 4
"""Shapes of batches that are recorded, at most: clients may end in as many sizes of short batches as there are."""

PLAIN = (bool, int, float, str, type(None))
INTERNAL = {*vars(LightningModule()), "places"} - {"training"}
"""Attributes of a module that are Lightning's, torch's and the base class's own affair."""


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


class RecordedSteps:
    """The recorded steps of one phase on one lane.

    A step of a new shape runs as it is, which also prepares libraries and the optimiser's state; it is recorded when
    the shape comes a second time, and from then on repeated.

    Args:
        make: a fresh recorder, with memory of its own.
        device: where the steps run.
    """

    def __init__(self, make: Callable[[], Recorder], device: torch.device) -> None:
        self.make, self.device = make, device
        self.recorder = make()
        self.recorded: dict[Any, tuple[Any, Callable[[], None]] | None] = {}  # shape -> the batch's place, its step
        self.known: Any = None
        self.held: dict[tuple[str, str], Any] = {}
        self.state: Any = None
        self.rates: list[Tensor] = []
        self.failed = False

    def prepare(self, method: FederatedMethod, optimizer: torch.optim.Optimizer) -> bool:
        """Puts what a visit brought where its steps look for it; forgets the steps where it does not fit.

        Returns whether this visit's steps can be recorded or repeated.
        """
        found = _left_on(method, optimizer, self.device)
        if self.failed or found is None or not _is_known(optimizer):
            return False
        brought, numbers = found
        for group in optimizer.param_groups:  # forms of the update that read their rate from the device
            on_gpu = {"capturable": True} if "capturable" in group and self.device.type == "cuda" else {}
            group.update({"fused": True, "foreach": False, **on_gpu})
        places = [tensor.data_ptr() for tensor in (*method.parameters(), *method.buffers())]
        outlines = {place: _outline(value) for place, value in brought.items()}
        known = (_settings(optimizer), numbers, places, outlines)
        if known == self.known:
            for place, value in brought.items():
                _copy(self.held[place], value)
            optimizer.state = self.state
            for value in (value for state in self.state.values() for value in state.values()):
                if isinstance(value, Tensor):
                    value.zero_()  # as a fresh optimiser would have it
        else:
            self.recorded, self.known, self.state, self.recorder = {}, known, optimizer.state, self.make()
            # what was brought may be the server's
            self.held = {place: _clone(value) for place, value in brought.items()}
            self.rates = [torch.zeros((), device=self.device) for _ in optimizer.param_groups]
        for (module, name), value in self.held.items():
            vars(method.get_submodule(module))[name] = value
        return True

    def take(self, batch: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]) -> None:
        """One step on this batch: as it is, or recorded."""
        shape = _outline(batch)
        recorded = self.recorded.get(shape)
        if recorded is None and shape in self.recorded:
            recorded = self.recorded[shape] = self._record(batch, optimizer, step)
        if recorded is None:
            if len(self.recorded) < SHAPES and not self.failed:
                self.recorded.setdefault(shape, None)
            step(batch)
            return
        place, repeat = recorded
        for rate, group in zip(self.rates, optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        _copy(place, batch)
        repeat()

    def _record(
        self, batch: Any, optimizer: torch.optim.Optimizer, step: Callable[[Any], None]
    ) -> tuple[Any, Callable[[], None]] | None:
        """The batch's place and the recorded step; None where the device refuses to record it."""
        place, rates = _clone(batch), [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        try:
            return place, self.recorder(lambda: step(place))
        except RuntimeError:  # a step that waits for the device, or allocates on another: it runs, unrecorded
            optimizer.zero_grad(set_to_none=True)  # what was being recorded was never computed
            self.failed, self.recorded = True, {}
            return None
        finally:
            for group, given in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = given


def has_dropout(method: nn.Module) -> bool:
    """Whether networks draw as they go: what they draw would depend on the lanes."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) for module in method.modules())


def _is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fresh state of the optimiser is one of zeros."""
    plain = all(not group.get("dampening") for group in optimizer.param_groups)
    return plain and type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def _settings(optimizer: torch.optim.Optimizer) -> Any:
    """What a recorded update was made for: all but the rate and the state."""
    return type(optimizer), [
        {key: [id(one) for one in value] if key == "params" else value for key, value in group.items()}
        | {"lr": None, "initial_lr": None}
        for group in optimizer.param_groups
    ]


def _left_on(
    method: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], Any]] | None:
    """What lies on a method and its modules as plain attributes: Trees and tensors, and numbers, by (module, name).

    None where a tensor lies in something else, or on another device: it could not be copied into place. The model's own
    tensors stay where they are, and `_settings` tells of the optimiser's.
    """
    own = {id(tensor) for tensor in (*method.parameters(), *method.buffers())}
    tensors: dict[tuple[str, str], Any] = {}
    numbers: dict[tuple[str, str], Any] = {}
    for where, module in method.named_modules():
        for name, value in vars(module).items():
            if name in INTERNAL or any(value is group for group in optimizer.param_groups):
                continue
            parts = [part for part in _parts(value) if id(part) not in own]
            if any(isinstance(part, Tensor) for part in parts):
                if not all(isinstance(part, Tensor) and part.device == device for part in parts):
                    return None
                if not isinstance(value, Tensor | dict):
                    return None
                tensors[where, name] = value
            elif parts and all(isinstance(part, PLAIN) for part in parts):
                numbers[where, name] = value
    return tensors, numbers


def _parts(value: Any) -> Iterator[Any]:
    """What nested dicts, lists and tuples are made of."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _parts(inner)
    else:
        yield value


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
