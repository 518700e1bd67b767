"""Lightning Fabric's strategy for ranks that train different clients: gradients are never synchronised."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from benchmark.distributed import heartbeat
from benchmark.distributed.launch import RankProcesses
from benchmark.errors import RankError, first_line

CONNECT_TIMEOUT, COLLECTIVE_TIMEOUT = timedelta(minutes=5), timedelta(days=7)
"""How long ranks wait for each other: at the start, and later, when the heartbeat detects dead ranks sooner."""


class IndependentRanks(DDPStrategy):
    """One process a device, all running the same program; a rank trains its share of the clients on its own.

    Args:
        processes: of the command; runs that share them share their heartbeat.
    """

    def __init__(self, processes: RankProcesses | None = None) -> None:
        super().__init__(timeout=CONNECT_TIMEOUT)
        self.processes = processes or RankProcesses()

    def setup_environment(self) -> None:
        """Connects the ranks and starts the heartbeat between them."""
        try:
            super().setup_environment()
            if self.processes.heartbeat is None:
                self.processes.heartbeat = heartbeat.connect(
                    self.global_rank, self.world_size, self.processes.silence, self.processes.kill_children
                )
        except (RuntimeError, OSError) as error:
            raise RankError(
                f"rank {self.global_rank} of {self.world_size} does not find the others: {first_line(error)}"
            ) from error
        assert dist.group.WORLD is not None
        dist.group.WORLD.set_timeout(COLLECTIVE_TIMEOUT)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """The module unchanged: wrapped in DDP, ranks would average the gradients of different clients."""
        return module

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits for all ranks."""
        with self.processes.collective():
            super().barrier(*args, **kwargs)
