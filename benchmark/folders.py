"""Where a run lives, and that nobody else is writing there."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lightning.fabric import Fabric
from omegaconf import DictConfig

from benchmark.config import ConfigError
from benchmark.strategy import together


def folder(config: DictConfig) -> Path:
    """Where a run lives: <output>/<scenario>/<row>/seed<k>."""
    return Path(config.output).expanduser() / config.scenario / config.row / f"seed{config.seed}"


@contextmanager
def hold(folder: Path, fabric: Fabric) -> Iterator[None]:
    """Keeps a run folder to this run: two processes in one would clear away each other's memories."""
    with together(fabric), ExitStack() as stack:
        if fabric.global_rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / "lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"{folder} is being used by another process: wait for it, or stop it") from error
            except OSError:  # a file system without locks keeps nobody out
                pass
        held = stack.pop_all()
    with held:  # given back at the end, and by the system where the process is killed
        yield
