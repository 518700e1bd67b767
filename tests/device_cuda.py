"""What torch.cuda and its surroundings are while a GPU is simulated."""

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from torch import Tensor
from torch.utils import _foreach_utils as foreach
from torch.utils._pytree import tree_map

from tests.device import GPU, DeviceError, DeviceTensor, SimulatedGPU, mapped, names_gpu, on_cpu
from tests.device_streams import Graph, Stream

Replacement = tuple[Any, str, Any]
"""An object, the name of its attribute, and what this is for the time of the simulation."""


def replacements(gpu: SimulatedGPU) -> Iterator[Replacement]:
    """Everything that is replaced."""
    cuda = torch.cuda
    yield from _queries(cuda)
    yield from _random_numbers(gpu, cuda)
    yield from _streams_and_graphs(gpu, cuda)
    yield from _files(gpu)
    yield from _optimizers_and_autocast()


def _queries(cuda: Any) -> Iterator[Replacement]:
    """One GPU a process."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    yield cuda, "is_available", lambda: True
    yield cuda, "device_count", lambda: ranks
    yield cuda, "current_device", lambda: GPU.index
    yield cuda, "set_device", lambda *_: None
    yield cuda, "get_device_name", lambda *_: "simulated GPU"
    yield cuda, "get_device_capability", lambda *_: (9, 0)
    yield cuda, "get_device_properties", lambda *_: SimpleNamespace(name="simulated GPU", major=9, minor=0)
    yield cuda, "is_initialized", lambda: True
    yield cuda, "is_bf16_supported", lambda *_, **__: True
    yield cuda, "_lazy_init", lambda: None
    yield cuda, "empty_cache", lambda: None
    yield cuda, "reset_peak_memory_stats", lambda *_: None
    yield cuda, "max_memory_reserved", lambda *_: 0
    yield torch.accelerator, "current_accelerator", lambda *_, **__: GPU
    yield torch.accelerator, "is_available", lambda: True


def _random_numbers(gpu: SimulatedGPU, cuda: Any) -> Iterator[Replacement]:
    def seed(number: int) -> None:
        if gpu.capturing is not None:
            raise DeviceError("Cannot call CUDAGeneratorImpl::set_current_seed during CUDA graph capture.")
        gpu.generator.manual_seed(number)

    yield cuda, "manual_seed", seed
    yield cuda, "manual_seed_all", seed
    yield cuda, "get_rng_state", lambda *_: gpu.generator.get_state()
    yield cuda, "set_rng_state", lambda state, *_: gpu.generator.set_state(state)


def _streams_and_graphs(gpu: SimulatedGPU, cuda: Any) -> Iterator[Replacement]:
    @contextlib.contextmanager
    def on_stream(stream: Stream | None) -> Iterator[None]:
        before = gpu.stream
        gpu.stream = before if stream is None else stream
        try:
            yield
        finally:
            gpu.stream = before

    @contextlib.contextmanager
    def capture(graph: Graph, pool: Any = None, stream: Stream | None = None, **_: Any) -> Iterator[None]:
        gpu.synchronize()
        with on_stream(stream):
            if gpu.stream is gpu.order.default:
                raise DeviceError("CUDA graphs must be captured on a non-default stream.")
            gpu.captures += 1
            gpu.capturing = graph
            graph.gpu = gpu
            try:
                yield
            finally:
                gpu.capturing = None
                graph.undo()

    yield cuda, "synchronize", gpu.synchronize
    yield cuda, "Stream", gpu.order.new_stream
    yield cuda, "stream", on_stream
    yield cuda, "current_stream", lambda *_: gpu.stream
    yield cuda, "default_stream", lambda *_: gpu.order.default
    yield cuda, "graph_pool_handle", lambda: (0, 1)
    yield cuda, "CUDAGraph", Graph
    yield cuda, "graph", capture
    yield cuda, "is_current_stream_capturing", lambda: gpu.capturing is not None
    yield torch.accelerator, "current_stream", lambda *_: gpu.stream


def _files(gpu: SimulatedGPU) -> Iterator[Replacement]:
    load, save = torch.load, torch.save

    def load_to(*args: Any, map_location: Any = None, **kwargs: Any) -> Any:
        found = load(*args, **{**kwargs, "map_location": "cpu"})
        if map_location is None or not names_gpu(map_location):
            return found

        def moved(x: Tensor) -> Tensor:
            gpu.log("upload", "load", x.numel() * x.element_size())
            return gpu.moved(x, "load")

        return mapped(moved, found)

    def save_from(value: Any, *args: Any, **kwargs: Any) -> Any:
        def copied(x: Any) -> Any:
            if isinstance(x, DeviceTensor):
                gpu.wait("save", nbytes=x.numel() * x.element_size())
                return on_cpu(x)
            return x

        return save(tree_map(copied, value), *args, **kwargs)

    yield torch, "load", load_to
    yield torch, "save", save_from


def _optimizers_and_autocast() -> Iterator[Replacement]:
    group = torch._C._group_tensors_by_device_and_dtype

    class Autocast(torch.autocast):
        """The CPU's lists stand in for CUDA's."""

        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        devices = {x.device for one in lists for x in one if x is not None and x.dim()}
        if len(devices) > 1:
            raise DeviceError(f"an optimiser's tensors lie on {devices}")
        found = group(lists, with_indices)
        return {((*devices, torch.device("cpu"))[0], dtype): rest for (_, dtype), rest in found.items()}

    yield torch, "autocast", Autocast
    yield torch.amp, "autocast", Autocast
    yield torch._C, "_group_tensors_by_device_and_dtype", grouped
    for module in (optimizers, foreach):
        yield module, "_foreach_supported_types", [*module._foreach_supported_types, DeviceTensor]
