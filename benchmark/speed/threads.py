"""Steps of a linear probe of 100 classes: on one thread, as `eval.linear` computes them, and shared by all threads.

Once on the machine as it is, and once beside a busy process for each core, as where several runs share a machine.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from benchmark.speed.timing import Line, Log, interleaved, ratio, seconds, spread
from eval import linear
from eval.features import Features
from eval.protocol import PROTOCOLS

TRAIN, WIDTH, CLASSES, EPOCHS = 50_000, 256, 100, 4
"""CIFAR-100 through the encoder of `cifar10-micro`; EPOCHS of the probe's are timed."""
ONE, ALL, BUSY = "one thread", "all threads", ", beside busy processes"


def threads(repetitions: int, log: Log) -> list[Line]:
    """Ratios of a probe on all threads to one on one thread, and seconds of all its epochs."""
    values = interleaved(_contenders(), repetitions, log)
    what = "100 classes: linear/v1, steps on all threads / on one, as shipped"
    return [
        Line(what, ratio(values, ALL, ONE)),
        Line(f"the same{BUSY}", ratio(values, ALL + BUSY, ONE + BUSY), goal=">= 2"),
        *(Line(f"100 classes: linear/v1 on {name} (from {EPOCHS})", spread(values[name]), "s") for name in values),
    ]


def _contenders() -> dict[str, Callable[[], float]]:
    """Seconds of the probe's epochs with steps on one thread and on all, on an idle and on a busy machine."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (TRAIN,), generator=generator)
    x = (torch.randn(CLASSES, WIDTH, generator=generator)[y] + torch.randn(TRAIN, WIDTH, generator=generator)).relu()
    features = Features(train_x=x, train_y=y, test_x=x[:1], test_y=y[:1], num_classes=CLASSES)

    def busy(shared_step: float) -> float:
        with busy_cores():
            return _seconds(features, shared_step)

    one, every = linear.SHARED_STEP, 0.0
    return {
        ONE: partial(_seconds, features, one),
        ALL: partial(_seconds, features, every),
        ONE + BUSY: partial(busy, one),
        ALL + BUSY: partial(busy, every),
    }


def _seconds(features: Features, shared_step: float) -> float:
    """Seconds of all epochs of linear/v1, from EPOCHS of them; shared_step: see `eval.linear.SHARED_STEP`."""
    probe = PROTOCOLS["linear/v1"].settings["probe"]
    before, linear.SHARED_STEP = linear.SHARED_STEP, shared_step
    try:
        short = replace(probe, epochs=EPOCHS)
        taken = seconds(lambda: linear.linear_probe(features, short, torch.Generator().manual_seed(0)))
    finally:
        linear.SHARED_STEP = before
    return taken * probe.epochs / EPOCHS


@contextmanager
def busy_cores() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps as many processes as there are cores computing until the block is left; yields them."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
