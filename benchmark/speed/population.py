"""Ten to a hundred thousand clients at a cohort of ten: seconds of a round and the peak of the resident memory.

Every client holds two images, so that a visit is the same work whatever the number of clients.
"""

import subprocess
import sys
from functools import partial
from operator import itemgetter
from pathlib import Path

from benchmark.speed.timing import ON_CPU, Line, Log, interleaved, median_round, ratio, run_command, spread

SCENARIO = Path(__file__).with_name("population.yaml")
CLIENTS = (10, 100, 1_000, 10_000, 100_000)

PEAK = (
    "import os, subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdout=sys.stderr); "
    "_, status, usage = os.wait4(child.pid, 0); print(usage.ru_maxrss); sys.exit(os.waitstatus_to_exitcode(status))"
)
"""Runs a command and prints its peak in KiB, in a small process of its own, because a child's peak includes what its
parent held when it was started."""


def scale(repetitions: int, log: Log) -> list[Line]:
    """Times and peaks, and their ratios to those of ten clients."""
    contenders = {f"{clients:,}": partial(_round_and_peak, clients) for clients in CLIENTS}
    runs = interleaved(contenders, repetitions, log, number=itemgetter(0))
    rounds, peaks = ({name: [run[index] for run in values] for name, values in runs.items()} for index in (0, 1))
    first, *_, last = runs
    return [
        Line(f"{last} clients over {first}: a round", ratio(rounds, last, first), goal="<= 1.10"),
        Line(f"{last} clients over {first}: peak memory", ratio(peaks, last, first), goal="<= 1.05"),
        *(Line(f"{name} clients: a round", spread(rounds[name]), "s") for name in runs),
        *(Line(f"{name} clients: peak memory", spread(peaks[name]), "MiB") for name in runs),
    ]


def _round_and_peak(clients: int) -> tuple[float, float]:
    """Median seconds of a run's rounds after the first, and its peak in MiB."""
    overrides = (
        f"data.options.examples={clients * 5 // 2}",  # a fifth of them is the test split
        f"partition.clients={clients}",
        f"federation.participation={10 / clients}",
    )
    with run_command(SCENARIO, *ON_CPU, "devices=1", "threads=1", *overrides) as (command, folder):
        done = subprocess.run([sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the run with {clients} clients ended with {done.returncode}: {done.stderr[-500:]}")
        return median_round(folder), int(done.stdout.split()[-1]) / 1024
