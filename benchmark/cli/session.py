"""What the commands of one process share: the console, the time it started, and the ranks it runs on."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from rich.console import Console

from benchmark.runtime import is_first_rank

if TYPE_CHECKING:
    from benchmark.distributed.launch import RankProcesses
    from benchmark.tracking.progress import Display

FILE_WIDTH = 110
"""Columns of output that is not a terminal."""


class Session:
    """A command's console and ranks.

    Args:
        started: by `time.monotonic`, from which `minutes` counts. main: does another command and returns its exit code.
    """

    def __init__(self, started: float, main: Callable[..., int]) -> None:
        self.started, self.main = started, main
        self.console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, quiet=not is_first_rank())
        self.processes: RankProcesses | None = None

    def launch(self, configs: Iterable[DictConfig]) -> "RankProcesses":
        """Starts the ranks of these runs; where they are forked, this returns once in each, all but the first quiet."""
        from benchmark.distributed.launch import launch

        self.processes = launch(configs)
        self.console.quiet = not is_first_rank()
        return self.processes

    def display(self, total: int = 1) -> "Display":
        """Progress of `total` runs; to be made after `launch`, as its thread would not survive a fork."""
        from benchmark.tracking.progress import Display

        return Display(self.console, total)

    def close(self) -> None:
        """Ends the ranks."""
        if self.processes is not None:
            self.processes.close()
