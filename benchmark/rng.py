"""Every random generator of a run, derived from (seed, round, phase, client, purpose).

A stream depends on this key alone, so neither the order of clients, nor the number of ranks, nor an interruption
changes what is drawn.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


class Streams:
    """A run's generators, by its seed; on the CPU, so that every device sees the same draws."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def seed_for(self, purpose: str, *, round: int = -1, phase: str = "", client: int = -1) -> int:
        """The 63-bit seed of a stream, for libraries with their own generators."""
        key = f"{self.seed}/{round}/{phase}/{client}/{purpose}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self, purpose: str, *, round: int = -1, phase: str = "", client: int = -1) -> torch.Generator:
        """A fresh generator at the start of the stream."""
        return torch.Generator().manual_seed(self.seed_for(purpose, round=round, phase=phase, client=client))

    def cohort(self, round: int, clients: int, participation: float) -> list[int]:
        """Sorted indices of a round's clients: a share `participation`, at least one, drawn without replacement."""
        size = cohort_size(clients, participation)
        if size >= clients:
            return list(range(clients))
        order = torch.randperm(clients, generator=self.generator("cohort", round=round))
        return sorted(order[:size].tolist())


def cohort_size(clients: int, participation: float) -> int:
    """Clients a round: `participation` of all, at least one."""
    return max(1, int(participation * clients + 0.5))  # .5 upwards: Python's `round` goes to the even integer


@contextlib.contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the global generators for one visit and restores them: dropout draws the same on any executor."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also queue work for unused devices
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
