"""Locks that reserve a run folder for one process; the system releases the locks of a dead process."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchmark.errors import BusyError
from benchmark.runtime import LOCKED_BY_PARENT

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def try_lock(file: IO[str]) -> bool:
    """Locks an open file until it is closed or the process ends; False where another process holds it.

    `is_locked` holds the lock for an instant, so it is tried for half a second.
    """
    for wait in (0.0, 0.1, 0.2, 0.2):
        time.sleep(wait)
        if _flock(file, fcntl.LOCK_EX):
            return True
    return False


def is_locked(path: Path) -> bool:
    """Whether a living process holds a lock file."""
    if not path.exists():
        return False
    with path.open("a+") as file:  # NFS gives a shared lock only to readers
        return not _flock(file, fcntl.LOCK_SH)


def _flock(file: IO[str], kind: int) -> bool:
    """Whether the lock was taken; a file system without locks excludes no process."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


@contextmanager
def lock_folder(folder: Path, fabric: "Fabric") -> Iterator[None]:
    """Reserves a run folder for this run: two processes in one would delete each other's client states."""
    from benchmark.distributed.collectives import raise_on_all_ranks  # imports torch: locks of others do without

    with raise_on_all_ranks(fabric), ExitStack() as stack:
        if fabric.global_rank == 0 and os.environ.get(LOCKED_BY_PARENT) != str(folder.resolve()):
            folder.mkdir(parents=True, exist_ok=True)
            if not try_lock(stack.enter_context((folder / "lock").open("w"))):
                raise BusyError(f"{folder} is being used by another process: wait for it, or stop it")
        lock = stack.pop_all()
    with lock:
        yield
