"""Ranks: two of one thread against one of two threads, and against one of one thread; whole runs, interleaved."""

from functools import partial

from benchmark.speed.peer.workload import PATH
from benchmark.speed.timing import ON_CPU, Line, Log, interleaved, median_round, ratio, run_command, run_process, spread

LAYOUTS = {
    "2 ranks x 1 thread": ("devices=2", "threads=1"),
    "1 rank x 2 threads": ("devices=1", "threads=2"),
    "1 rank x 1 thread": ("devices=1", "threads=1"),
}


def ranks(repetitions: int, log: Log) -> list[Line]:
    """Ratios of speeds at batch 16 and 64."""
    lines = []
    two, threads, single = LAYOUTS
    for size in (16, 64):
        network = f"convnet, batch {size}"
        log(network)
        contenders = {name: partial(_round, f"training.batch_size={size}", *words) for name, words in LAYOUTS.items()}
        values = interleaved(contenders, repetitions, log)
        lines += [
            Line(f"{network}: {two}, speed over {threads}", ratio(values, threads, two), goal=">= 1.00"),
            Line(f"{network}: {two}, speed over {single}", ratio(values, single, two), goal=">= 1.70"),
            *(Line(f"{network}: {name}, a round", spread(values[name]), "s") for name in LAYOUTS),
        ]
    return lines


def _round(*overrides: str) -> float:
    with run_command(PATH, *ON_CPU, "training.channels_last=true", *overrides) as (command, folder):
        run_process(command)
        return median_round(folder)
