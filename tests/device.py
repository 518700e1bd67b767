"""A GPU simulated on the CPU: the CPU's numbers under a device's rules, with a record of what would cost time there.

Within `SimulatedGPU`, torch has a device cuda:0. Its tensors are `DeviceTensor`s: memory of the CPU that says it is
the device's. Refused is what a GPU refuses: operands on two devices, a generator of another device, `numpy()` of a
tensor on the device, and waiting while a graph is captured. Recorded are waits of the host, uploads, kernels by name,
values of the CPU that a graph would hold on to, and accesses from two streams that nothing orders. As the numbers are
the CPU's, a run ends bit for bit as on the CPU.

It cannot see kernels that are missing, slow or not deterministic, TF32, cuDNN, NCCL, memory, torch.compile, CUDA's own
lists for autocast, or time. It uses private hooks of torch and belongs to the pinned version.
"""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.device_operators import COPYING, INDEXING, WITHOUT_DETERMINISTIC_FORM, WITHOUT_KERNEL, waits
from tests.device_streams import Accesses, Graph, Stream, StreamOrder, tensors, unsimulated

GPU, CPU = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))), torch.device("cpu")
PACKAGES = tuple(str(Path(__file__).parents[1] / name) for name in ("benchmark", "methods", "eval", "datamodules"))
"""Folders of the suite's code, for `Event.place`."""
DESCRIBING = {"__get__", "dim", "is_contiguous", "is_floating_point", "numel", "size", "storage_offset", "stride"}
"""Functions that make no tensor without a source, most of all that are called."""


class DeviceError(RuntimeError):
    """What CUDA or torch would refuse."""


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        """The device's index."""
        return GPU.index

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if SimulatedGPU.current is None:
            raise DeviceError(f"{func} of a tensor on the device after the simulation")
        return SimulatedGPU.current.dispatch(func, args, kwargs or {})


def on_gpu(x: Tensor) -> Tensor:
    """The same memory as a tensor of the device."""
    if isinstance(x, DeviceTensor):
        return x
    with unsimulated():
        return torch.Tensor._make_subclass(DeviceTensor, x.detach())


def on_cpu(x: Tensor) -> Tensor:
    """The same memory as a tensor of the CPU."""
    if not isinstance(x, DeviceTensor):
        return x
    with unsimulated(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        made = torch.empty(0, dtype=x.dtype)
        return made.set_(torch.Tensor.untyped_storage(x), x.storage_offset(), x.shape, x.stride())


def names_gpu(device: Any) -> bool:
    """Whether an argument `device` means the GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, str | torch.device) and torch.device(device).type == "cuda"


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure with a function of each tensor."""
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


@dataclass(frozen=True)
class Event:
    """Something that costs time on a GPU.

    kind: "wait" of the host, "upload" that is not waited for, "constant" of the CPU in a graph, "random" draw on the
    device. detail: which operator. place: file:line of the suite's innermost frame. functions: of the suite, from
    there outwards. nbytes: that were copied.
    """

    kind: str
    detail: str
    place: str
    functions: tuple[str, ...]
    nbytes: int = 0


class SimulatedGPU(TorchDispatchMode):
    """Context in which torch has one GPU.

    Attributes:
        events: in order. kernels: launched, by operator's name. orders: what streams wait for; see its `races`.
        captures, replays: of graphs.
    """

    current: "SimulatedGPU | None" = None

    def __init__(self, streams: bool = True) -> None:
        """streams: whether accesses are checked for their order, which takes most of the time."""
        super().__init__()
        self.events: list[Event] = []
        self.kernels: Counter[str] = Counter()
        self.order = StreamOrder(streams)
        self.order.on_synchronize = lambda stream: self.wait("stream.synchronize", stream)
        self.stream = self.order.default
        self.capturing: Graph | None = None
        self.captures = self.replays = 0
        self.operations = 0
        self.makes_on_gpu = 0  # depth of calls whose new tensors are the device's
        self.silent = 0
        self.generator = torch.Generator().manual_seed(0)
        self.functions = Functions(self)

    @property
    def races(self) -> Counter[str]:
        """Accesses from two streams that nothing orders."""
        return self.order.races

    def of(self, kind: str) -> list[Event]:
        """The events of a kind."""
        return [event for event in self.events if event.kind == kind]

    def wait(self, detail: str, stream: Stream | None = None, nbytes: int = 0) -> None:
        """The host waits until a stream's work is done."""
        if self.capturing is not None:
            raise DeviceError(f"CUDA error: operation not permitted when stream is capturing ({detail})")
        self.order.host |= (stream or self.stream).seen
        self.log("wait", detail, nbytes)

    def upload(self, nbytes: int) -> None:
        """A copy to the device that the host does not wait for."""
        if self.capturing is not None:
            raise DeviceError("CUDA error: operation not permitted when stream is capturing (copy of pageable memory)")
        self.log("upload", "copy", nbytes)

    def log(self, kind: str, detail: str, nbytes: int = 0) -> None:
        """Add an event."""
        if not self.silent:
            self.events.append(Event(kind, detail, *_place(), nbytes))

    def synchronize(self, *_: Any) -> None:
        """The host waits for all streams."""
        for stream in self.order.streams:
            self.order.host |= stream.seen
        self.log("wait", "synchronize")

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Context without events, kernels and accesses."""
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    @contextlib.contextmanager
    def making_on_gpu(self) -> Iterator[None]:
        """Context in which tensors without a source are the device's."""
        self.makes_on_gpu += 1
        try:
            yield
        finally:
            self.makes_on_gpu -= 1

    def __enter__(self) -> "SimulatedGPU":
        from tests.device_cuda import replacements

        SimulatedGPU.current = self
        self.patches = contextlib.ExitStack()
        self.patches.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        for target, name, value in replacements(self):
            self.patches.enter_context(mock.patch.object(target, name, value))
        super().__enter__()
        self.functions.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.functions.__exit__(*error)
        super().__exit__(*error)
        self.patches.close()
        SimulatedGPU.current = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Carries out an operator: refused, recorded, computed on the CPU."""
        self.operations += 1
        if self.operations % 16 == 0:
            self.order.return_freed()
        name = func._schema.name.split("::")[1]
        given = tensors((args, kwargs))
        if not any(isinstance(x, DeviceTensor) for x in given) and (given or not self.makes_on_gpu):
            made = self._compute(func, args, kwargs)
            # as `zeros_like(outline, device="cuda")` of a tensor on `meta`
            from_outline = bool(given) and all(x.device.type == "meta" for x in given) and made.device.type == "cpu"
            return on_gpu(made) if self.makes_on_gpu and (name == "lift_fresh" or from_outline) else made
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
            return func(*mapped(on_cpu, args), **kwargs)
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != "cuda":
            raise DeviceError(f"Expected a 'cuda' device type for generator but found 'cpu' ({func})")
        self._refuse_two_devices(func, name, args, kwargs)
        if torch.are_deterministic_algorithms_enabled() and name in WITHOUT_DETERMINISTIC_FORM:
            raise DeviceError(f"{name} does not have a deterministic implementation")
        if torch.Tag.nondeterministic_seeded in func.tags and _argument(func, args, kwargs, "dropout_p") != 0:
            self.log("random", name)
        if (reason := waits(func, name, args, kwargs)) is not None:
            self.wait(reason)
        made = self._compute(func, args, kwargs)
        result = on_gpu(made) if isinstance(made, Tensor) else mapped(on_gpu, made)
        launches = name not in WITHOUT_KERNEL and not self.silent
        self.kernels[name] += launches
        if self.capturing is not None:
            self.capturing.operators.append((func, args, kwargs, result))
        if self.order.tracked:
            self._access(func, name, args, kwargs, result, launches)
        return result

    def _access(self, func: Any, name: str, args: Any, kwargs: Any, result: Any, launches: bool) -> None:
        """What an operator does to memory, on its stream or in the graph that is recorded."""
        if not launches:
            for tensor in tensors(result):
                self.order.key(tensor, self.stream)  # made on this stream
        elif self.capturing is not None:
            self.capturing.touch(self.order, self.stream, _accesses(func, args, kwargs, result))
        else:
            self.order.kernel(self.stream, _accesses(func, args, kwargs, result), f"{name}, {_place()[0]}")

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.capturing is not None and (func._schema.is_mutable or "batch_norm" in func.name()):
            self.capturing.keep(tensors((args, kwargs)))
        with unsimulated():
            return func(*args, **kwargs)

    def _refuse_two_devices(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """DeviceError where torch refuses operands on two devices; waits and uploads of those that it takes."""
        others = [x for x in tensors((args, kwargs)) if not isinstance(x, DeviceTensor) and x.device.type == "cpu"]
        if not others:
            if name == "copy_":
                self._copy(*args)
            return
        if self.capturing is not None:
            self.log("constant", name)
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write and name not in COPYING[:3:2]
            if written and any(not isinstance(x, DeviceTensor) for x in tensors(value)):
                raise DeviceError(f"a result on the CPU of operands on cuda:0 ({func})")
        if name in COPYING:
            if name == "copy_":
                self._copy(*args)
            return
        if name in INDEXING and isinstance(args[0], DeviceTensor):
            indices = {id(x) for x in tensors(args[1])}
            if all(id(x) in indices or x.dim() == 0 for x in others):
                self.wait(f"{name} by an index on the CPU")
                return
        takes_numbers = torch.Tag.pointwise in func.tags or name in ("where", "masked_fill", "masked_fill_", "lerp")
        if (takes_numbers or name.startswith(("_foreach_", "_fused_"))) and all(x.dim() == 0 for x in others):
            return
        shapes = [(type(x).__name__, tuple(x.shape)) for x in tensors((args, kwargs))]
        raise DeviceError(f"Expected all tensors to be on the same device, found cuda:0 and cpu! ({func}: {shapes})")

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> None:
        """The wait or the upload of a copy between devices."""
        nbytes = source.numel() * source.element_size()
        if isinstance(source, DeviceTensor) and not isinstance(target, DeviceTensor):
            self.wait("copy_ to the CPU", nbytes=nbytes)
        elif isinstance(target, DeviceTensor) and not isinstance(source, DeviceTensor):
            if non_blocking:
                self.upload(nbytes)
            else:
                self.wait("copy_ to the device", nbytes=nbytes)

    def moved(self, made: Tensor, how: str) -> Tensor:
        """A tensor that has just been copied to the device."""
        made = on_gpu(made)
        if made.numel():
            self.order.kernel(self.stream, ([], [], [made]), f"{how}, {_place()[0]}")
        return made


class Functions(TorchFunctionMode):
    """Python's side of torch: which device a call names, and what leaves the device."""

    def __init__(self, gpu: SimulatedGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in DESCRIBING:
            return func(*args, **kwargs)
        first: Any = args[0] if args else None
        is_on_gpu = isinstance(first, DeviceTensor)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func in (Tensor.cpu, Tensor.cuda, Tensor.type_as):
            return self._to(first, {Tensor.cpu: CPU, Tensor.cuda: GPU}.get(func) or args[1], **kwargs)
        if func is torch._has_compatible_shallow_copy_type and is_on_gpu != isinstance(args[1], DeviceTensor):
            return False
        if is_on_gpu and name in ("numpy", "__array__"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        if is_on_gpu and func is Tensor.tolist:
            self.gpu.wait("tolist")
            return on_cpu(first).tolist()
        if is_on_gpu and func is torch.nn.functional.one_hot and len(args) + len(kwargs) == 2:
            return self._one_hot(first, args[1] if len(args) == 2 else kwargs["num_classes"])
        if is_on_gpu and func in (Tensor.quantile, torch.quantile):
            return self._quantile(first, args[1] if len(args) > 1 else kwargs["q"])
        device = kwargs.get("device")
        if device is not None and names_gpu(device):
            kwargs["device"] = CPU
            if name in ("tensor", "as_tensor", "new_tensor", "asarray"):
                self.gpu.wait(f"{name} to the device")
            with self.gpu.making_on_gpu():
                return func(*args, **kwargs)
        if device is not None and torch.device(device).type == "cpu":
            return func(*mapped(on_cpu, args), **mapped(on_cpu, kwargs))
        if not is_on_gpu and not any(isinstance(x, DeviceTensor) for x in tensors((args, kwargs))):
            return func(*args, **kwargs)
        with self.gpu.making_on_gpu():
            return func(*args, **kwargs)

    def _one_hot(self, labels: Tensor, classes: int) -> Tensor:
        """As on a GPU, which does not look at the labels where the number of classes is given."""
        return on_gpu(torch.zeros(*labels.shape, classes, dtype=torch.long)).scatter_(-1, labels.unsqueeze(-1), 1)

    def _quantile(self, x: Tensor, q: Any) -> Tensor:
        if isinstance(q, Tensor) and not isinstance(q, DeviceTensor):
            raise DeviceError("quantile() q tensor must be on the same device as the input tensor")
        self.gpu.kernels["quantile"] += 6  # sort, gather, lerp
        return on_gpu(on_cpu(x).quantile(on_cpu(q) if isinstance(q, Tensor) else q))

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to` in all its forms."""
        other, device, dtype = kwargs.get("other"), kwargs.get("device"), kwargs.get("dtype")
        flags = [arg for arg in args if isinstance(arg, bool)]
        for arg in args:
            if isinstance(arg, Tensor):
                other = arg
            elif isinstance(arg, torch.dtype):
                dtype = arg
            elif arg is not None and not isinstance(arg, bool):
                device = arg
        if other is not None:
            device, dtype = other.device, other.dtype
        non_blocking, copy, *_ = [*flags, kwargs.get("non_blocking", False), kwargs.get("copy", False)][-2:]
        if flags:
            non_blocking, copy = flags[0], flags[1] if len(flags) > 1 else kwargs.get("copy", False)
        layout = kwargs.get("memory_format")
        more = {} if layout is None else {"memory_format": layout}
        target = x.device if device is None else GPU if names_gpu(device) else torch.device(device)
        dtype, is_on_gpu = dtype or x.dtype, isinstance(x, DeviceTensor)
        if target.type == "meta":
            return on_cpu(x).to("meta", dtype, **more)
        if (target.type == "cuda") == is_on_gpu:
            with self.gpu.making_on_gpu() if is_on_gpu else contextlib.nullcontext():
                return torch.Tensor.to(x, dtype=dtype, copy=copy, **more)
        if x.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError("a gradient across devices")
        nbytes = x.numel() * x.element_size()
        if not is_on_gpu and non_blocking:
            self.gpu.upload(nbytes)
        else:
            self.gpu.wait(f"to the {'CPU' if is_on_gpu else 'device'}", nbytes=nbytes)
        with torch._C.DisableTorchFunctionSubclass(), unsimulated(), torch.no_grad():
            made = on_cpu(x).detach().to(dtype, copy=True, **more)
        return made if is_on_gpu else self.gpu.moved(made, "to the device")


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """The value of an operator's argument, its default where it is not given; None where there is none of the name."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[index] if index < len(args) else kwargs.get(name, argument.default_value)
    return None


def _accesses(func: Any, args: Any, kwargs: Any, result: Any) -> Accesses:
    """Tensors of the device that an operator reads, writes in place, and returns."""
    written = set()
    for index, argument in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {id(x) for x in tensors(value)}
    given = [x for x in tensors((args, kwargs)) if isinstance(x, DeviceTensor) and x.numel()]
    reads = [x for x in given if id(x) not in written]
    made = [x for x in tensors(result) if isinstance(x, DeviceTensor) and x.numel()]
    return reads, [x for x in given if id(x) in written], made


@cache
def _relative(file: str) -> str:
    """The path of a file within the repository."""
    return os.path.relpath(file, Path(__file__).parents[1])


def _place() -> tuple[str, tuple[str, ...]]:
    """file:line of the suite's innermost frame, and the suite's functions from there outwards."""
    frame, place, functions = sys._getframe(1), "", []
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGES):
            place = place or f"{_relative(file)}:{frame.f_lineno}"
            functions.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment] # the outermost has none
    return place, tuple(functions)
