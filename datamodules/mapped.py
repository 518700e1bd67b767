"""Memory-mapped arrays: pages that have been read count as the process's memory until they are given back."""

import mmap

import numpy as np

AT_ONCE = 8
"""Rows that are read before their pages are given back: the kernel may map 2 MiB for one of them."""


def rows_of(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A copy of some rows of an array `[N, ...]`; of a mapped one no page stays in the process's memory."""
    copied = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
    for start in range(0, len(rows), AT_ONCE):
        copied[start : start + AT_ONCE] = array[rows[start : start + AT_ONCE]]
        unmap_pages(array)
    return copied


def unmap_pages(array: np.ndarray) -> None:
    """Gives all read pages of an array that is mapped for reading back to the kernel; does nothing to other arrays.

    The kernel keeps the pages of the file as long as it has room, so that reading them again costs microseconds.
    """
    if not isinstance(array, np.memmap) or array.mode != "r":
        return
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
