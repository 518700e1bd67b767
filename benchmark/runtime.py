"""Settings of the process at its start: standard streams, glibc's allocator, OpenMP's spinning, garbage collector.

Where glibc keeps large blocks instead of returning them to the kernel, rounds of a convnet at batch 16 and 64 were 1.2
to 2.1 times as fast on two cores. Threads that wait spin 300,000 times by default, and a run of two threads took forty
times as long beside two busy loops; a thirtieth of it is as fast on an idle machine and loses nothing on a busy one.
Without the garbage collector the imports take a quarter less time, and without SciPy a tenth, and 50 MiB less.
"""

import atexit
import contextlib
import ctypes
import gc
import io
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from benchmark import IS_CHECKOUT, ROOT

STARTED = time.monotonic()
"""When this process began, after Python's own start."""

SPINS = "10000"
"""Checks of a waiting thread before it sleeps."""

FILE = "fulcrum.py" if IS_CHECKOUT else "__init__.py"
"""The command's file, in the folder of the packages."""

is_program = False
"""Whether this process is the command; called from Python, as by a notebook, the suite starts no processes."""

LOCKED_BY_PARENT = "FULCRUM_LOCKED_BY_PARENT"
"""Environment variable: the run folder that a scheduler has locked for this process."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def program(*words: str) -> list[str]:
    """The command with these words, to be started from any folder; nothing in that folder is taken for the suite's."""
    return [sys.executable, "-P", str(Path(ROOT) / FILE), *words]


def put_working_folder_last() -> None:
    """Makes the working folder the last but one that modules are looked for in, before the suite's own.

    `python -m` puts it first, where a `datasets/` or a `random.py` of the user's would be taken for the library's. The
    suite's packages are imported by now; its tests and examples are not to hide the user's.
    """
    with contextlib.suppress(OSError):  # the folder was deleted
        here = os.getcwd()
        if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
            del sys.path[0]
        if here not in sys.path:
            sys.path.append(here)
    if ROOT in sys.path:
        sys.path.remove(ROOT)
        sys.path.append(ROOT)


def open_standard_streams() -> None:
    """Makes stdin, stdout and stderr such that no read or print can fail. Call before any file is opened.

    A closed one becomes the null device; else the next file would get its number, and be printed into.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _unfailing(sys.stdout, 1, "<stdout>", "replace")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unfailing(sys.stderr, 2, "<stderr>", "backslashreplace")  # type: ignore[misc]


def _unfailing(stream: Any, number: int, name: str, errors: str) -> io.TextIOWrapper:
    """A stream like Python's on a file descriptor, that drops what cannot be written. stream: Python's; None: none."""
    raw = DroppingFile(number, "w", closefd=False)
    raw.name = name
    unbuffered = isinstance(getattr(stream, "buffer", None), io.RawIOBase)  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=errors,
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=unbuffered,
    )


class DroppingFile(io.FileIO):
    """A file that becomes the null device at the first write that fails: nobody reads it, or its disk is full."""

    def write(self, data: Any) -> int:
        """Writes or drops all of it; waits where another program has made the file not blocking."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                if (written := super().write(left)) is None:
                    select.select([], [self], [])
                left = left[written or 0 :]
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
        return size


def draw_to_files() -> None:
    """Sets matplotlib's backend to the one for files; a name of the user's that it does not know would stop a run."""
    os.environ["MPLBACKEND"] = "agg"


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks: no mappings for large ones, no trimming, 64 MiB of padding. Call before torch.

    Nothing happens where another allocator is preloaded or the C library is not glibc.
    """
    if os.environ.get("LD_PRELOAD"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 << 20)


def spin_briefly() -> None:
    """Bounds the spinning of OpenMP's threads, unless the user has set it. Call before torch is imported."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def enable_garbage_collection() -> None:
    """Enables a collector that was off during the imports, whose objects it then ignores.

    Call before a fork, so that no collection in a child writes to shared pages.
    """
    if not gc.isenabled():
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries count their objects at exit
        gc.enable()


def is_first_rank() -> bool:
    """Whether this process is the first rank by the launchers' variables, before anything is set up.

    A variable that is no number counts as 0: `cli.main` refuses it, and the message has to be seen.
    """
    values = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))
    return all(not value.isdecimal() or int(value) == 0 for value in values)
