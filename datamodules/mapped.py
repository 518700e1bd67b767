"""Pages of memory-mapped arrays, which count as the process's memory from their first reading on."""

import mmap

import numpy as np


def unmap_pages(array: np.ndarray) -> None:
    """Gives all read pages of an array that is mapped for reading back to the kernel; does nothing to other arrays.

    The kernel keeps the pages of the file as long as it has room, so that reading them again costs microseconds.
    """
    if isinstance(array, np.memmap) and array.mode == "r":
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)
