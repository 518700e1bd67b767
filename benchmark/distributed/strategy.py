"""Fabric's strategy for ranks that train different clients."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from benchmark.distributed import heartbeat

GATHERING, PATIENCE = timedelta(minutes=5), timedelta(days=7)
"""How long ranks wait for each other: at the start, and later, when `alive` knows better than a clock who is gone."""


class RankError(ValueError):
    """Ranks that do not find each other; one line for the user."""


class IndependentRanks(DDPStrategy):
    """One process a device, all running the same program; a rank trains its share of the clients on its own."""

    def __init__(self) -> None:
        super().__init__(timeout=GATHERING)

    def setup_environment(self) -> None:
        """Finds the other ranks, and watches them from then on."""
        try:
            super().setup_environment()
            heartbeat.watch(self.global_rank, self.world_size)
        except (RuntimeError, OSError) as error:
            raise RankError(
                f"rank {self.global_rank} of {self.world_size} does not find the others: {str(error).splitlines()[0]}"
            ) from error
        assert dist.group.WORLD is not None
        dist.group.WORLD.set_timeout(PATIENCE)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """The module as it is: wrapped in DDP, ranks would average the gradients of different clients."""
        return module

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits for all ranks."""
        with heartbeat.exchange():
            super().barrier(*args, **kwargs)
