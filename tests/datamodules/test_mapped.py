"""Pages of mapped arrays that are given back."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from datamodules.mapped import rows_of, unmap_pages

MIB = 1 << 20


def mapped_mib() -> float:
    """Pages of files in this process's memory."""
    return int(re.findall(r"RssFile:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_read_pages_are_no_memory_of_the_process_any_more(tmp_path):
    np.save(tmp_path / "images.npy", np.arange(32 * MIB, dtype=np.uint8))
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    before, content = mapped_mib(), images[:: MIB // 8].tolist()
    images.sum(dtype=np.int64)
    assert mapped_mib() > before + 30
    unmap_pages(images[MIB:])  # a part of an array counts as the array
    assert mapped_mib() < before + 2
    assert images[:: MIB // 8].tolist() == content


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_are_copied_without_the_rest_of_the_file(tmp_path):
    array = np.arange(16 * MIB, dtype=np.uint16).reshape(-1, 4, 2)
    np.save(tmp_path / "images.npy", array)
    images, rows = np.load(tmp_path / "images.npy", mmap_mode="r"), np.arange(0, len(array), len(array) // 99)
    before = mapped_mib()
    copied = rows_of(images, rows)
    assert mapped_mib() < before + 1
    assert (type(copied), copied.dtype) == (np.ndarray, np.uint16)
    assert np.array_equal(copied, array[rows])
    assert np.array_equal(rows_of(array, rows[::-1]), array[rows[::-1]])
    assert rows_of(array, rows[:0]).shape == (0, 4, 2)


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_an_array_that_can_be_written_keeps_what_was_written(tmp_path, mode):
    np.save(tmp_path / "labels.npy", np.zeros(10))
    labels = np.load(tmp_path / "labels.npy", mmap_mode=mode)
    labels[:] = 1
    for array in (labels, np.asarray(labels), np.ones(3)):
        unmap_pages(array)
    assert labels.sum() == 10
