"""Ten to a hundred thousand clients at a cohort of ten: seconds of a round and the peak of the resident memory.

Every client holds two images, so that a visit is the same work whatever the number of clients.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmark.speed.timing import Line, Say, a_round, ratio, spread

TITLE = "From 10 to 100,000 clients at a cohort of 10"
SCENARIO = str(Path(__file__).with_name("population.yaml"))
CLIENTS = (10, 100, 1_000, 10_000, 100_000)

PEAK = (
    "import os, subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdout=sys.stderr); "
    "_, status, usage = os.wait4(child.pid, 0); print(usage.ru_maxrss); sys.exit(os.waitstatus_to_exitcode(status))"
)
"""Runs a command and prints its peak in KiB. A process of its own, and a small one: a child's peak begins with what its
parent held when it was started."""


def measure(repetitions: int, say: Say) -> list[Line]:
    """Times and peaks, and their ratios to those of ten clients."""
    taken: dict[str, list[float]] = {f"{count:,}": [] for count in CLIENTS}
    peaks: dict[str, list[float]] = {name: [] for name in taken}
    for repetition in range(repetitions):
        turns = list(zip(CLIENTS, taken, strict=True))
        for count, name in turns if repetition % 2 == 0 else reversed(turns):
            took, peak = played(count)
            taken[name].append(took)
            peaks[name].append(peak)
        say(f"repetition {repetition + 1}/{repetitions}: " + ", ".join(f"{n} {taken[n][-1]:.3f} s" for n in taken))
    first, *_, last = taken
    return [
        Line(f"{last} clients over {first}: a round", ratio(taken, last, first), "x", "<= 1.10"),
        Line(f"{last} clients over {first}: peak memory", ratio(peaks, last, first), "x", "<= 1.05"),
        *(Line(f"{name} clients: a round", spread(taken[name]), "s") for name in taken),
        *(Line(f"{name} clients: peak memory", spread(peaks[name]), "MiB") for name in taken),
    ]


def played(clients: int) -> tuple[float, float]:
    """The median seconds of a run's rounds after the first, and its peak in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        common = (f"output={folder}", "logger=csv", "accelerator=cpu", "devices=1", "threads=1", "scenario=scale")
        asked = (
            f"data.options.examples={clients * 5 // 2}",  # a fifth of them is the test split
            f"partition.clients={clients}",
            f"federation.participation={10 / clients}",
            "row=fedavg",
        )
        command = [sys.executable, "-m", "benchmark", "run", SCENARIO, "fedavg", *common, *asked]
        done = subprocess.run([sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the run with {clients} clients ended with {done.returncode}: {done.stderr[-500:]}")
        peak = int(done.stdout.split()[-1])
        return a_round(Path(folder) / "scale" / "fedavg" / "seed0"), peak / 1024
