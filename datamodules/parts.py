"""How a partition is kept: one array of indices a client, or all of them in two arrays."""

from collections.abc import Iterator, Sequence

import numpy as np

Partition = Sequence[np.ndarray]
"""One sorted int64 index array per client."""
BLOCK = 1 << 16
"""Clients that are worked on together."""


def sizes_of(partition: Sequence[np.ndarray]) -> np.ndarray:
    """Examples of each client, `[K]` int64."""
    if isinstance(partition, Parts):
        return partition.sizes
    return np.fromiter(map(len, partition), dtype=np.int64, count=len(partition))


class Parts(Sequence[np.ndarray]):
    """A partition stored in two arrays, whatever the number of clients: 100,000 small clients cost 20 MB.

    Args:
        partition: one int64 index array a client. names: of the clients, where they have some.
    """

    def __init__(self, partition: Sequence[np.ndarray], names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self.sizes: np.ndarray
        self.ends: np.ndarray
        self.indices: np.ndarray
        if isinstance(partition, Parts):
            self.sizes, self.ends, self.indices = partition.sizes, partition.ends, partition.indices
        else:
            self.sizes = sizes_of(partition)
            self.ends = np.cumsum(self.sizes)
            self.indices = np.concatenate(partition).astype(np.int64, copy=False)

    @classmethod
    def cut(cls, order: np.ndarray, sizes: np.ndarray) -> "Parts":
        """Clients of these sizes, cut from an order of indices, int64, which is sorted in place, client by client."""
        parts = cls.of_arrays(order, sizes)
        beyond = len(order) + 1
        for few in parts.blocks():  # sorted by client and index, as one number
            clients = np.repeat(np.arange(len(few.sizes)) * beyond, few.sizes)
            few.indices += clients
            few.indices.sort()
            few.indices -= clients
        return parts

    @classmethod
    def of_arrays(cls, indices: np.ndarray, sizes: np.ndarray) -> "Parts":
        """Clients of these sizes, `[K]` int64, whose indices, int64, lie one after another; nothing is copied."""
        parts = cls.__new__(cls)
        parts.names, parts.indices, parts.sizes, parts.ends = (), indices, sizes, np.cumsum(sizes)
        return parts

    def blocks(self) -> Iterator["Parts"]:
        """Views of BLOCK clients each, in order: what is worked out for all clients at once needs memory for these."""
        for start in range(0, len(self), BLOCK):
            sizes = self.sizes[start : start + BLOCK]
            begin = self.ends[start] - self.sizes[start]
            yield Parts.of_arrays(self.indices[begin : begin + sizes.sum()], sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: int) -> np.ndarray:  # type: ignore[override] # clients are never sliced
        """The client's indices, a view."""
        end = self.ends[client]
        return self.indices[end - self.sizes[client] : end]

    @property
    def holders(self) -> np.ndarray:
        """The client of each of `indices`."""
        return np.repeat(np.arange(len(self)), self.sizes)
