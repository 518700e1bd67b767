"""Ranks: two of one thread against one of two threads, and against one of one thread; whole runs, interleaved."""

import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmark.speed.peer.workload import PATH
from benchmark.speed.timing import Line, Say, a_round, interleaved, process, ratio, spread

TITLE = "One rank more"
WAYS = {
    "2 ranks x 1 thread": ("devices=2", "threads=1"),
    "1 rank x 2 threads": ("devices=1", "threads=2"),
    "1 rank x 1 thread": ("devices=1", "threads=1"),
}


def measure(repetitions: int, say: Say) -> list[Line]:
    """Ratios of speeds, batch 16 and 64."""
    lines = []
    for size in (16, 64):
        say(f"batch {size}")
        ways = {name: partial(rounds, f"training.batch_size={size}", *overrides) for name, overrides in WAYS.items()}
        figures = interleaved(ways, repetitions, say)
        two, threads, alone = WAYS
        lines += [
            Line(f"convnet, batch {size}: {two}, speed over {threads}", ratio(figures, threads, two), "x", ">= 1.00"),
            Line(f"convnet, batch {size}: {two}, speed over {alone}", ratio(figures, alone, two), "x", ">= 1.70"),
            *(Line(f"convnet, batch {size}: {name}, a round", spread(figures[name]), "s") for name in WAYS),
        ]
    return lines


def rounds(*overrides: str) -> float:
    """The median seconds of a run's rounds after the first, which warms up."""
    with tempfile.TemporaryDirectory() as folder:
        common = (f"output={folder}", "logger=csv", "accelerator=cpu", "training.channels_last=true")
        run = (str(PATH), "fedavg", "evaluation.every=0", "evaluation.protocols=[]", "scenario=ranks", "row=fedavg")
        command = [sys.executable, "-m", "benchmark", "run", *run, *common, *overrides]
        process(command)
        return a_round(Path(folder) / "ranks" / "fedavg" / "seed0")
