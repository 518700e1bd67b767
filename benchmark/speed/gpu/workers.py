"""Cells that are not timed, measured side by side by processes of their own: a GPU machine has cores for them."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from benchmark.errors import first_line
from benchmark.experiment.factory import set_numerics
from benchmark.speed.gpu.cells import Cell, Setting

MOST = 8
"""Processes; each has a CUDA context of its own, of half a GiB."""

Measured = tuple[Cell, dict[str, Any], float]
"""A cell, what it gave or its `error`, and the seconds it took."""


def most_jobs(setting: Setting) -> int:
    """As many as there are pairs of cores, on a GPU; a rehearsal on a CPU has one process."""
    return 1 if setting.tiny else max(1, min(MOST, (os.cpu_count() or 1) // 2))


def measured(cell: Cell, clock: Callable[[], float] = time.monotonic) -> tuple[dict[str, Any], float]:
    """What a cell gives and the seconds it took; where it fails, its `error`."""
    set_numerics(tf32=False, deterministic=False)  # an earlier cell's run may have set others
    begun = clock()
    try:
        numbers = cell.measure()
    except Exception as error:  # the half hour goes on
        numbers = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return numbers, clock() - begun


def device_error(setting: Setting) -> str | None:
    """The error of a GPU that a failed kernel has made useless for this process; None while it works."""
    try:
        float(torch.zeros((), device=setting.device) + 1)
    except RuntimeError as error:
        return first_line(error)
    return None


class Workers:
    """Processes that measure cells side by side. jobs: how many."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.pool: ProcessPoolExecutor | None = None  # kept from part to part: a process takes seconds to begin

    def measure(self, cells: Sequence[Cell], setting: Setting, may_begin: Callable[[], bool]) -> Iterator[Measured]:
        """What each cell gave, as it ends; none begins once `may_begin` is False.

        A process that ends takes the cells of its pool with it: each is given an error, and a new pool goes on.
        """
        waiting = list(cells)
        running: dict[Future[tuple[dict[str, Any], float]], Cell] = {}
        while running or (waiting and may_begin()):
            while waiting and len(running) < self.jobs and may_begin() and self._submit(waiting[0], setting, running):
                waiting.pop(0)
            done = wait(running, return_when=FIRST_COMPLETED).done
            broken = any(isinstance(future.exception(), BrokenProcessPool) for future in done)
            for future in list(running) if broken else done:
                cell, error = running.pop(future), future.exception() if future.done() else BrokenProcessPool()
                yield cell, *(future.result() if error is None else (self._lost(error), 0.0))
            if broken:
                self.close()

    def _submit(self, cell: Cell, setting: Setting, running: dict[Future[Any], Cell]) -> bool:
        """Begins a cell; False where a process of the pool has ended meanwhile."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"))
        try:
            running[self.pool.submit(_in_worker, cell, setting)] = cell
        except BrokenProcessPool:
            if not running:
                self.close()
            return False
        return True

    @staticmethod
    def _lost(error: BaseException) -> dict[str, Any]:
        if isinstance(error, BrokenProcessPool):
            return {"error": "its process ended, or one beside it"}
        raise error

    def close(self) -> None:
        """Ends the processes, after what they measure."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _in_worker(cell: Cell, setting: Setting) -> tuple[dict[str, Any], float]:
    """`measured`; the process ends where the GPU refuses all further work of it."""
    torch.set_num_threads(2)
    numbers, seconds = measured(cell)
    if "error" in numbers and device_error(setting) is not None:
        os._exit(1)
    return numbers, seconds
