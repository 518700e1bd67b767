"""Where a run lives, what it is called, and that nobody else is writing there."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from lightning.fabric import Fabric

from benchmark.distributed.collectives import raise_on_all_ranks
from benchmark.errors import BusyError

LOCKED_BY_PARENT = "FULCRUM_LOCKED_BY_PARENT"
"""Environment variable: the run folder that a campaign has locked for this process."""


def locks(file: IO[str]) -> bool:
    """Locks an open file for this process, until it is closed or the process ends; False where another has it.

    Somebody who only looks whether it is locked has it for an instant: it is tried for half a second.
    """
    for wait in (0.0, 0.1, 0.2, 0.2):
        time.sleep(wait)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # a file system without locks keeps nobody out
            pass
        return True
    return False


def locked(path: Path) -> bool:
    """Whether a living process has a lock file; the system takes back the locks of a dead one."""
    if not path.exists():
        return False
    with path.open("a+") as file:  # NFS gives a shared lock only to who may read
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
    return False


@contextmanager
def hold(folder: Path, fabric: Fabric) -> Iterator[None]:
    """Keeps a run folder to this run: two processes in one would clear away each other's memories."""
    with raise_on_all_ranks(fabric), ExitStack() as stack:
        if fabric.global_rank == 0 and os.environ.get(LOCKED_BY_PARENT) != str(folder.resolve()):
            folder.mkdir(parents=True, exist_ok=True)
            if not locks(stack.enter_context((folder / "lock").open("w"))):
                raise BusyError(f"{folder} is being used by another process: wait for it, or stop it")
        held = stack.pop_all()
    with held:  # given back at the end, and by the system where the process is killed
        yield
