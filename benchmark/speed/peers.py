"""The suite against Flower and pfl-research: the same clients, network, loss and two cores, each as it ships.

A user's whole run is timed, from the start of the process: ours is `python -m benchmark run`, the others' are the
programs in `peer/`, run by a Python of their own that sees this suite's torch. The workload is `peer/scenario.yaml`;
views are either an image and its mirror image, which leaves the engine's own cost, or SimCLR's, which the others' users
make with torchvision, image by image. Allocators are left as each framework has them; telemetry is off. Two cores are
two ranks of one thread here (with `training.channels_last`), two Ray actors of one thread in Flower, and two threads of
the one process of pfl-research, whose threads wait for each other by spinning: beside other work it is far slower.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmark.speed.peer.workload import CORES, PATH, ROUNDS, source
from benchmark.speed.timing import Line, Process, Say, arrivals, interleaved, process, ratio, spread

TITLE = "Whole runs beside Flower and pfl-research, as shipped, on two CPU cores"

PEER = PATH.parent
REPOSITORY = PEER.parents[2]
HOME = Path("~/.cache/fulcrum/peers").expanduser()

OURS, FLOWER, PFL = "Fulcrum", "Flower", "pfl-research"
PROGRAMS = {FLOWER: "benchmark.speed.peer.flower", PFL: "benchmark.speed.peer.pfl_research"}
BATCHES = (16, 64)

SETTINGS = (
    f"devices={CORES}", "threads=1", "accelerator=cpu", "training.channels_last=true", "logger=csv",
    "evaluation.protocols=[]", "evaluation.every=0", "scenario=peers", "row=fulcrum",
)  # fmt: skip
"""Of our run, whatever the views and the batch."""

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


@dataclass(frozen=True)
class Played:
    """A finished run.

    ends: when each round was over, seconds since the start of the process. peak_mib: proportional, of all processes.
    """

    ends: tuple[float, ...]
    peak_mib: float

    @property
    def round(self) -> float:
        """Seconds of a round: the median of all but the first."""
        return statistics.median(end - began for began, end in pairwise(self.ends))

    @property
    def first(self) -> float:
        """Seconds until the first round is done."""
        return self.ends[0]


def measure(repetitions: int, say: Say) -> list[Line]:
    """Everyone in turn, for each kind of views and each batch size; a run gives its times and its memory.

    Raises:
        RuntimeError: the others cannot be installed, or a run failed.
    """
    python = install(say)
    source()  # decoded now, so that nobody's run pays for it
    lines = []
    for views in VIEWS:
        for batch in BATCHES:
            say(f"{views} views, batch {batch}, seconds a round:")
            plays: dict[str, Callable[[], Played]] = {OURS: partial(play, views, batch)}
            plays |= {name: partial(play_peer, python, module, views, batch) for name, module in PROGRAMS.items()}
            lines += compare(views, batch, contest(plays, repetitions, say))
    return lines


def contest(plays: Mapping[str, Callable[[], Played]], repetitions: int, say: Say) -> dict[str, list[Played]]:
    """Name -> its runs, one a repetition, all contenders in turn."""
    played: dict[str, list[Played]] = {name: [] for name in plays}

    def once(name: str) -> float:
        played[name].append(plays[name]())
        return played[name][-1].round

    interleaved({name: partial(once, name) for name in plays}, repetitions, say)
    return played


def compare(views: str, batch: int, played: Mapping[str, Sequence[Played]]) -> list[Line]:
    """For each quantity our ratio to each of the others, then everyone's own."""
    lines = []
    for quantity, (what, unit) in QUANTITIES.items():
        figures = {name: [getattr(run, quantity) for run in runs] for name, runs in played.items()}
        where = f"{what}, {views} views, batch {batch}"
        lines += [
            Line(f"{where}: {OURS} / {name}", ratio(figures, OURS, name), goal=GOALS.get((quantity, views, name), ""))
            for name in PROGRAMS
        ]
        lines += [Line(f"{where}: {name}", spread(values), unit) for name, values in figures.items()]
    return lines


def play(views: str, batch: int) -> Played:
    """Our run, as a user starts it."""
    with tempfile.TemporaryDirectory() as scratch:
        given = (*SETTINGS, *VIEWS[views], f"training.batch_size={batch}", f"output={scratch}")
        command = (sys.executable, "-m", "benchmark", "run", str(PATH), "fedavg", *given)
        with arrivals(Path(scratch) / "peers" / "fulcrum" / "seed0" / "rounds.jsonl") as ends:
            run = started(command, scratch)
    return checked(ends, run)


def play_peer(python: Path, module: str, views: str, batch: int) -> Played:
    """A run of one of the others; its program says when its rounds were over."""
    with tempfile.TemporaryDirectory() as scratch:
        run = started((str(python), "-m", module, views, str(batch)), scratch)
    said = re.findall(r'\{"ends": \[.*?\]\}', run.output)
    return checked(json.loads(said[-1])["ends"] if said else [], run)


def started(command: Sequence[str], scratch: str) -> Process:
    """A whole process; `T0` tells it when it was started, and what it leaves behind goes to the scratch folder."""
    places = {"PYTHONPATH": str(REPOSITORY), "RAY_TMPDIR": scratch, "FLWR_HOME": scratch}
    return process(command, env={**places, "T0": repr(time.time())}, cwd=Path(scratch))


def checked(ends: Sequence[float], run: Process) -> Played:
    """The run, if it played every round."""
    if len(ends) != ROUNDS:
        raise RuntimeError(f"{len(ends)} of {ROUNDS} rounds were seen; the run said: {run.output[-2000:]}")
    return Played(tuple(ends), run.peak_mib)


def install(say: Say) -> Path:
    """The others' Python, made the first time and whenever `peer/requirements.txt` or our own environment is another.

    A .pth file shows it our packages: everyone runs the very same torch, and it is not downloaded twice.

    Raises:
        RuntimeError: it cannot be made; one line.
    """
    requirements, ours = PEER / "requirements.txt", sysconfig.get_path("purelib")
    python, stamp, wanted = HOME / "bin" / "python", HOME / "installed.txt", f"{ours}\n{requirements.read_text()}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    say(f"installing Flower and pfl-research into {HOME}")
    shutil.rmtree(HOME, ignore_errors=True)
    _succeed(sys.executable, "-m", "venv", str(HOME))
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(HOME)}))
    (site / "fulcrum.pth").write_text(f"{ours}\n")
    _succeed(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements))
    stamp.write_text(wanted)
    return python


def _succeed(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        said = done.stdout.splitlines() or ["it said nothing"]
        why = next((line for line in said if line.startswith("ERROR:")), said[-1])
        raise RuntimeError(f"Flower and pfl-research cannot be installed into {HOME}: {why}")
