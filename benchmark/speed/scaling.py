"""Whole runs on more ranks, and with more clients at the same cohort."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from benchmark.speed import timing
from benchmark.speed.peer.workload import BATCHES, PATH
from benchmark.speed.timing import ON_CPU, Line, Log, interleaved, ratio, spread, values_of

LAYOUTS = {
    "2 ranks x 1 thread": ("devices=2", "threads=1"),
    "1 rank x 2 threads": ("devices=1", "threads=2"),
    "1 rank x 1 thread": ("devices=1", "threads=1"),
}

POPULATION = Path(__file__).with_name("population.yaml")
"""Scenario of the many clients; each holds two images, so that a visit is the same work whatever their number."""

CLIENTS = (10, 100, 1_000, 10_000, 100_000)

NATURAL = (1_000, 1_000_000)
"""Numbers of clients of natural sizes: log-normal, of four images in the mean and of two at least."""
LARGE = ("data.channels=1", "partition.name=lognormal", "training.steps=5", "federation.rounds=3")

PEAK = (
    "import os, subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdout=sys.stderr); "
    "_, status, usage = os.wait4(child.pid, 0); print(usage.ru_maxrss); sys.exit(os.waitstatus_to_exitcode(status))"
)
"""Runs a command and prints its peak in KiB, in a small process of its own, because a child's peak includes what its
parent held when it was started."""


def ranks(repetitions: int, log: Log) -> list[Line]:
    """Speed of two ranks of one thread over one of two threads, and over one of one thread, at batch 16 and 64."""
    lines = []
    two, threads, single = LAYOUTS
    for size in BATCHES:
        network = f"convnet, batch {size}"
        log(network)
        contenders = {name: partial(_round, f"training.batch_size={size}", *words) for name, words in LAYOUTS.items()}
        values = interleaved(contenders, repetitions, log)
        lines += [
            Line(f"{network}: {two}, speed over {threads}", ratio(values, threads, two), goal=">= 1.00"),
            Line(f"{network}: {two}, speed over {single}", ratio(values, single, two), goal=">= 1.70"),
            *values_of(values, "s", f"{network}: {{}}, a round"),
        ]
    return lines


def _round(*overrides: str) -> float:
    with timing.run_command(PATH, *ON_CPU, "training.channels_last=true", *overrides) as (command, folder):
        timing.run_process(command)
        return timing.median_round(folder)


def scale(repetitions: int, log: Log) -> list[Line]:
    """Times and peaks of the resident memory, and their ratios to those of ten clients."""
    contenders = {f"{clients:,}": partial(_round_and_peak, clients) for clients in CLIENTS}
    runs = interleaved(contenders, repetitions, log, shown=itemgetter(0))
    rounds, peaks = ({name: [run[index] for run in values] for name, values in runs.items()} for index in (0, 1))
    first, *_, last = runs
    return [
        Line(f"{last} clients over {first}: a round", ratio(rounds, last, first), goal="<= 1.10"),
        Line(f"{last} clients over {first}: peak memory", ratio(peaks, last, first), goal="<= 1.05"),
        *values_of(rounds, "s", "{} clients: a round"),
        *values_of(peaks, "MiB", "{} clients: peak memory"),
    ]


def _round_and_peak(clients: int) -> tuple[float, float]:
    """Median seconds of a run's rounds after the first, and its peak in MiB."""
    overrides = (
        f"data.options.examples={clients * 5 // 2}",  # a fifth of them is the test split
        f"partition.clients={clients}",
        f"federation.participation={10 / clients}",
    )
    with timing.run_command(POPULATION, *ON_CPU, "devices=1", "threads=1", *overrides) as (command, folder):
        peak = _peak(command)
        return timing.median_round(folder), peak


def _peak(command: Sequence[str]) -> float:
    """Runs a command and returns the peak of its resident memory in MiB."""
    done = subprocess.run([sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return int(done.stdout.split()[-1]) / 1024


def million(repetitions: int, log: Log) -> list[Line]:
    """First starts, then rounds and memory of the runs killed after a round and resumed, over a thousand clients'."""
    contenders = {f"{clients:,}": partial(_killed_and_resumed, clients) for clients in NATURAL}
    runs = interleaved(contenders, repetitions, log, shown=itemgetter(0))

    def of(field: str) -> dict[str, list[float]]:
        return {name: [getattr(run, field) for run in values] for name, values in runs.items()}

    (few, many), saved = runs, "first start until a round is saved"
    return [
        Line(f"{many} clients over {few}: a round", ratio(of("round"), many, few), goal="<= 1.10"),
        Line(f"{many} clients over {few}: peak memory", ratio(of("peak"), many, few), goal="<= 1.10"),
        Line(f"{many} clients: {saved}, of a core", spread(of("core")[many]), "s", goal="<= 60"),
        Line(f"{few} clients: {saved}, of a core", spread(of("core")[few]), "s"),
        *values_of(of("start"), "s", f"{{}} clients: {saved}"),
        *values_of(of("start_peak"), "MiB", "{} clients: peak memory of the first start"),
        *values_of(of("round"), "s", "{} clients: a round"),
        *values_of(of("peak"), "MiB", "{} clients: peak memory"),
    ]


class Resumed(NamedTuple):
    """A run that was killed after a round, and resumed.

    start: seconds until the round was saved. core: those of a core, of one that other programs use fewer than `start`.
    start_peak, peak: of the resident memory until then and of the resumed run, in MiB. round: the median seconds of the
    rounds after the first.
    """

    start: float
    core: float
    start_peak: float
    round: float
    peak: float


def _killed_and_resumed(clients: int) -> Resumed:
    """Starts a run on no images made before, kills it once a round is saved, and runs it to its end."""
    with tempfile.TemporaryDirectory() as cache:
        overrides = (
            *LARGE,
            f"data.options.examples={clients * 5}",  # a fifth of them is the test split
            f"partition.clients={clients}",
            f"federation.participation={100 / clients}",
            f"data.cache={cache}",  # empty: the first start makes the images
        )
        with timing.run_command(POPULATION, *ON_CPU, "devices=1", "threads=1", *overrides) as (command, folder):
            start, rounds = time.perf_counter(), folder / "rounds.jsonl"
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                while not (rounds.exists() and rounds.stat().st_size):
                    if child.poll() is not None:
                        raise RuntimeError(f"{clients} clients: the first start failed before a round was saved")
                    time.sleep(0.01)
                first = time.perf_counter() - start, *_used(child.pid)
            finally:
                child.kill()
                child.wait()
            peak = _peak(command)
            return Resumed(*first, timing.median_round(folder), peak)


def _used(pid: int) -> tuple[float, float]:
    """Seconds of a core that a process has used, and its peak in MiB, as Linux counts them."""
    import psutil  # of the dev extra

    times = psutil.Process(pid).cpu_times()
    peak = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return times.user + times.system, int(peak[0]) / 1024
