"""What a process sets once at its start: glibc's allocator, OpenMP's patience, and Python's collector of cycles.

glibc hands large blocks back to the kernel and fetches them again, so that small models spend a third of their time on
page faults; told to keep them, rounds of a convnet at batch 16 and 64 were 1.2 to 2.1 times as fast on two cores.
Threads that wait for each other spin, 300,000 times by default; where other processes want the cores too, that burns
whole time slices, and a run of two threads took forty times as long beside two busy loops. A thirtieth of it is as fast
on an idle machine and loses nothing on a busy one. The collector looks at all objects again and again while thousands
of modules are imported: without it that takes a quarter less.
"""

import atexit
import ctypes
import gc
import os
import time

BEGAN = time.monotonic()
"""When this process did, but for Python itself."""

_since = BEGAN

SPINS = "10000"
"""How often a thread looks for the others before it sleeps."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def begin(since: float | None) -> None:
    """Says since when the command's time counts, by `time.monotonic`; None: from now on."""
    global _since
    _since = time.monotonic() if since is None else since


def began() -> float:
    """Since when the command's `minutes` count, by `time.monotonic`."""
    return _since


def keep_freed_memory() -> None:
    """No mapping of its own for a large block, no trimming, 64 MiB of padding; called before the first tensor.

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
    """Bounds the spinning of OpenMP's threads; called before torch is imported, and leaves what the user has set."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def collect_from_here() -> None:
    """Turns a collector that was off during the imports on again; what they have made is never looked at.

    Called before a fork, so that no collection in a child writes to the pages it shares.
    """
    if not gc.isenabled():
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries count at the end what of theirs is left
        gc.enable()
