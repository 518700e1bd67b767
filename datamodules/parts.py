"""How a partition is kept: one array of indices a client, or all of them in two arrays."""

from collections.abc import Sequence

import numpy as np

Partition = Sequence[np.ndarray]
"""One sorted int64 index array per client."""


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
            self.sizes = np.fromiter(map(len, partition), dtype=np.int64, count=len(partition))
            self.ends = np.cumsum(self.sizes)
            self.indices = np.concatenate(partition).astype(np.int64, copy=False)

    @classmethod
    def cut(cls, order: np.ndarray, sizes: np.ndarray) -> "Parts":
        """Clients of these sizes, cut from an order of indices, int64, which is sorted in place, client by client."""
        parts = cls.__new__(cls)  # without a copy of the order
        parts.names, parts.indices, parts.sizes, parts.ends = (), order, sizes, np.cumsum(sizes)
        for indices in parts:
            indices.sort()
        return parts

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
