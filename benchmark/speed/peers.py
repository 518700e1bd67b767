"""The suite against Flower and pfl-research: the same clients, network, loss and two cores, each as it ships.

The whole run of a user is timed, from the start of the process. The others' programs are in `peer/`, run by a Python of
their own that sees this suite's torch. pfl-research's two threads wait for each other by spinning: beside other work it
is far slower.
"""

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

from benchmark import environment
from benchmark.speed import timing
from benchmark.speed.peer.workload import BATCHES, CORES, PATH, ROUNDS, source
from benchmark.speed.timing import ON_CPU, Line, Log, Process, interleaved, ratio, values_of

PEER = PATH.parent
REPOSITORY = PEER.parents[2]

OURS, FLOWER, PFL = "Fulcrum", "Flower", "pfl-research"
PROGRAMS = {FLOWER: "benchmark.speed.peer.flower", PFL: "benchmark.speed.peer.pfl_research"}

SETTINGS = (f"devices={CORES}", "threads=1", "training.channels_last=true", *ON_CPU)
"""Overrides of our run for all views and batch sizes."""

VIEWS = {
    "mirrored": (
        "objective.class=benchmark.speed.peer.mirrored.Mirrored", "views.crop_scale=null", "views.flip=1.0",
        "views.jitter_p=0.0", "views.grayscale=0.0",
    ),
    "simclr": (),
}  # fmt: skip
"""Kinds of views, and the settings of our run that make them."""

GOALS = {
    ("round", "mirrored", FLOWER): "<= 0.65",
    ("round", "mirrored", PFL): "<= 0.80",
    ("round", "simclr", FLOWER): "<= 0.40",
    ("round", "simclr", PFL): "<= 0.33",
    ("first", "mirrored", FLOWER): "<= 0.40",
    ("first", "simclr", FLOWER): "<= 0.40",
    ("peak_mib", "mirrored", FLOWER): "<= 0.55",
    ("peak_mib", "simclr", FLOWER): "<= 0.55",
}
QUANTITIES = {
    "round": ("a round", "s"),
    "first": ("start until the first round is done", "s"),
    "peak_mib": ("peak memory (PSS)", "MiB"),
}
Quantities = dict[str, float]
"""Of a run: each of QUANTITIES."""


def peers(repetitions: int, log: Log) -> list[Line]:
    """All frameworks in turn, for each kind of views and each batch size; a run gives its times and its memory.

    Raises RuntimeError: the others cannot be installed, or a run failed.
    """
    python = environment.install("peers", "Flower and pfl-research", PEER / "requirements.txt", log)
    source()  # decodes the images before the runs that are timed
    lines = []
    for views in VIEWS:
        for batch in BATCHES:
            log(f"{views} views, batch {batch}, seconds a round:")
            runs: dict[str, Callable[[], Quantities]] = {OURS: partial(run_ours, views, batch)}
            runs |= {name: partial(run_peer, python, module, views, batch) for name, module in PROGRAMS.items()}
            lines += compare(views, batch, interleaved(runs, repetitions, log, shown=itemgetter("round")))
    return lines


def compare(views: str, batch: int, runs: Mapping[str, Sequence[Quantities]]) -> list[Line]:
    """For each quantity our ratio to each of the others, then the value of each."""
    lines = []
    for quantity, (what, unit) in QUANTITIES.items():
        values = {name: [run[quantity] for run in finished] for name, finished in runs.items()}
        where = f"{what}, {views} views, batch {batch}"
        lines += [
            Line(f"{where}: {OURS} / {name}", ratio(values, OURS, name), goal=GOALS.get((quantity, views, name), ""))
            for name in PROGRAMS
        ]
        lines += values_of(values, unit, f"{where}: {{}}")
    return lines


def run_ours(views: str, batch: int) -> Quantities:
    """Our run, as a user starts it."""
    overrides = (*SETTINGS, *VIEWS[views], f"training.batch_size={batch}")
    with timing.run_command(PATH, *overrides) as (command, folder), timing.line_times(folder / "rounds.jsonl") as ends:
        process = _run(command)
    return check_rounds(ends, process)


def run_peer(python: Path, module: str, views: str, batch: int) -> Quantities:
    """A run of one of the others; its program prints the times at which its rounds ended."""
    process = _run((str(python), "-m", module, views, str(batch)))
    return check_rounds([float(end) for end in re.findall(r"round over after (\S+) s", process.output)], process)


def _run(command: Sequence[str]) -> Process:
    """Run a command in a temporary folder, with the time of its start as `T0` in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"PYTHONPATH": str(REPOSITORY), "RAY_TMPDIR": folder, "FLWR_HOME": folder}
        return timing.run_process(command, env={**places, "T0": repr(time.time())}, cwd=Path(folder))


def check_rounds(ends: Sequence[float], process: Process) -> Quantities:
    """The run's quantities; RuntimeError unless it finished every round.

    ends: of its rounds, in seconds since the start of the process. A round is the median of all but the first.
    """
    if len(ends) != ROUNDS:
        raise RuntimeError(f"{len(ends)} of {ROUNDS} rounds were seen; the run's output: {process.output[-2000:]}")
    rounds = [end - start for start, end in pairwise(ends)]
    return {"round": statistics.median(rounds), "first": ends[0], "peak_mib": process.peak_mib}
