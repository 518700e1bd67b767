"""Streams of the simulated GPU: which accesses something orders, memory that returns to its stream, and graphs.

A stream counts its kernels; `seen` says of each stream how many of its kernels are done before the next one here. Two
accesses to one storage from two streams, one of them a write, are a race unless the later one's stream has seen the
earlier one. Memory that is freed goes back to the stream that made it, as by CUDA's caching allocator: whoever used it
on another stream has to be seen too.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.tape import again

unsimulated = torch._C._DisableTorchDispatch
"""Context in which operations go past the simulation."""

Accesses = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]
"""What an operator reads, writes in place, and returns; the last may be views of what it reads."""


@dataclass(eq=False)
class Stream:
    """A stream, as `torch.cuda.Stream` is used by the suite. number: 0 is the default stream."""

    number: int
    order: "StreamOrder"
    seen: Counter[int] = field(default_factory=Counter)

    def wait_stream(self, other: "Stream") -> None:
        """What comes next here comes after all that `other` has now."""
        self.order.return_freed()
        self.seen |= other.seen

    def synchronize(self) -> None:
        """The host waits."""
        self.order.on_synchronize(self)

    def is_capturing(self) -> bool:
        """Whether a graph is being recorded."""
        return torch.cuda.is_current_stream_capturing()

    @property
    def device(self) -> torch.device:
        """The simulated GPU."""
        return torch.device("cuda", 0)


@dataclass
class Use:
    """The last access of a kind: the stream, its count then, and where."""

    stream: Stream
    count: int
    where: str


@dataclass
class Storage:
    """What is known of some memory: whose it is, its last write, and by stream its reads since and its last use."""

    alive: StorageWeakRef
    maker: Stream
    write: Use | None = None
    reads: dict[int, Use] = field(default_factory=dict)
    last: dict[int, Use] = field(default_factory=dict)


class StreamOrder:
    """What comes after what. races: accesses that nothing orders, by where they are.

    Args:
        tracked: whether accesses are followed at all.
    """

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        self.default = Stream(0, self)
        self.streams = [self.default]
        self.host: Counter[int] = Counter()
        self.storages: dict[int, Storage] = {}
        self.freed: defaultdict[int, list[Use]] = defaultdict(list)  # number of the maker -> uses of what it gets back
        self.races: Counter[str] = Counter()
        self.on_synchronize: Any = None

    def new_stream(self, *_: Any, **__: Any) -> Stream:
        """A stream that comes after what the host has waited for."""
        self.streams.append(Stream(len(self.streams), self, Counter(self.host)))
        return self.streams[-1]

    def kernel(self, stream: Stream, accesses: Accesses, where: str) -> None:
        """A kernel on a stream."""
        if self.tracked:
            read, written = self.keys(stream, accesses)
            self._launch(stream)
            self._use(stream, dict.fromkeys(read, False) | dict.fromkeys(written, True), where)

    def replay(self, stream: Stream, touched: Mapping[int, bool]) -> None:
        """A graph on a stream. touched: address -> whether it is written."""
        if self.tracked:
            self._launch(stream)
            self._use(stream, touched, "a replay")

    def keys(self, stream: Stream, accesses: Accesses) -> tuple[set[int], set[int]]:
        """Addresses of the storages that are read, and of those that are written."""
        read, written, made = ({self.key(x, stream) for x in each} for each in accesses)
        written |= made - read
        return read - written, written

    def _launch(self, stream: Stream) -> None:
        """Counts a kernel; it may overwrite what has been given back to its stream."""
        stream.seen |= self.host
        for use in self.freed.pop(stream.number, ()):
            if stream.seen[use.stream.number] < use.count:
                self.races[f"memory in use on another stream is freed and taken again: {use.where}"] += 1
        stream.seen[stream.number] += 1

    def key(self, x: Tensor, stream: Stream) -> int:
        """The address of a tensor's storage; a new one is the stream's."""
        if not self.tracked:
            return 0
        with unsimulated(), torch._C.DisableTorchFunctionSubclass():
            storage = torch.Tensor.untyped_storage(x)
        address = storage.data_ptr()
        if address in self.storages and self.storages[address].alive.expired():
            self.return_freed()
        if address and address not in self.storages:
            self.storages[address] = Storage(StorageWeakRef(storage), stream)
        return address

    def _use(self, stream: Stream, accesses: Mapping[int, bool], where: str) -> None:
        """The accesses of a kernel or a graph, by address: whether it writes."""
        now = Use(stream, stream.seen[stream.number], where)
        for key, writes in accesses.items():
            if (known := self.storages.get(key)) is None:  # of no bytes
                continue
            for use in (known.write, *(known.reads.values() if writes else ())):
                if use is not None and use.stream is not stream and stream.seen[use.stream.number] < use.count:
                    what = "write" if writes else "read"
                    self.races[f"{what} at {where}, after an access on another stream at {use.where}"] += 1
            known.last[stream.number] = now
            if writes:
                known.write, known.reads = now, {}
            else:
                known.reads[stream.number] = now

    def return_freed(self) -> None:
        """Gives memory that nothing refers to back to the stream that made it."""
        for key in [key for key, known in self.storages.items() if known.alive.expired()]:
            known = self.storages.pop(key)
            uses = [use for number, use in known.last.items() if number != known.maker.number]
            self.freed[known.maker.number] += uses


class Graph:
    """A recorded step, as `torch.cuda.CUDAGraph`: the operators in their order, computed again in place."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.touched: dict[int, bool] = {}  # address -> whether it is written
        self.gpu: Any = None

    def keep(self, given: Sequence[Tensor]) -> None:
        """Remembers values that an operator changes: what is recorded has not happened."""
        with unsimulated():
            self.kept += [(x, x.clone()) for x in given if x.is_cuda]

    def touch(self, order: StreamOrder, stream: Stream, accesses: Accesses) -> None:
        """Remembers what the graph reads and writes."""
        read, written = order.keys(stream, accesses)
        self.touched = dict.fromkeys(read, False) | self.touched | dict.fromkeys(written, True)

    @torch.no_grad()
    def undo(self) -> None:
        """Puts back the values from before the recording."""
        with unsimulated():
            for x, value in reversed(self.kept):
                x.copy_(value)
        self.kept = []

    def replay(self) -> None:
        """Computes all operators again, on the memory of the recording."""
        self.gpu.replays += 1
        with self.gpu.quiet(), unsimulated():
            again(self.operators)
        self.gpu.kernels["graph launch"] += 1
        self.gpu.order.replay(self.gpu.stream, self.touched)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts; called for every operator, so without torch's slow pytree."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [leaf for each in value for leaf in tensors(each)]
