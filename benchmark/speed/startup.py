"""From the command to the first step: a run of one client and one step, until its round stands in `rounds.jsonl`."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark.speed.timing import Line, Say, arrivals, interleaved, process, ratio, spread

TITLE = "Start-up to the first step"


def measure(repetitions: int, say: Say) -> list[Line]:
    """The command over the import of torch and lightning alone."""
    figures = interleaved({"first step": first_step, "imports": imports}, repetitions, say)
    return [
        Line("digits: first step / `import torch, lightning`", ratio(figures, "first step", "imports"), "x", "<= 2.50"),
        *(Line(name, spread(figures[name]), "s") for name in figures),
    ]


def imports() -> float:
    """Seconds until the two imports are done that every part of this suite rests on."""
    began = time.time()
    command = [sys.executable, "-c", "import torch, lightning, time; print(time.time())"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) - began


def first_step() -> float:
    """Seconds until the first round is written down, with its checkpoint before it."""
    with tempfile.TemporaryDirectory() as folder:
        own = (f"output={folder}", "scenario=startup", "row=fedavg", "evaluation.protocols=[]", "evaluation.every=0")
        short = ("federation.rounds=1", "federation.participation=0.1", "training.steps=1")
        rounds = Path(folder) / "startup" / "fedavg" / "seed0" / "rounds.jsonl"
        command = [sys.executable, "-m", "benchmark", "run", "digits", "fedavg", *own, *short]
        with arrivals(rounds) as ends:
            process(command)
    return ends[0]
