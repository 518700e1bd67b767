"""Golden numbers: losses and a fingerprint of the final weights of every shipped row, trained a few steps on the CPU.

They reveal a change of results. They are computed in double precision, in which even rows that amplify rounding most
agree between processors. CHANGELOG.md has to name the committed ones.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from benchmark.configuration.compose import merge
from benchmark.configuration.suites import rows_of, suite
from benchmark.distributed.launch import cores
from benchmark.errors import ConfigError
from benchmark.experiment.experiment import Experiment
from benchmark.tracking.progress import Display
from leaderboards.generate import moved
from methods import trees
from methods.trees import Tree

FILE = Path("leaderboards") / "golden.json"
CHANGELOG = Path("CHANGELOG.md")
SUITE = "digits"
SETTING = ("federation.rounds=3", "training.steps=2", "federation.participation=0.4")
"""Few steps of the suite's scenario, in which clients are visited again."""
OWN_SETTINGS = {
    "ldawa": ["method.start=1"],
    "fedu": ["method.threshold=0"],
    "flesd-cc": ["federation.rounds=1"],
    "fedmkd": ["method.distil_epochs=1"],
    "orchestra": ["method.server_steps=25"],
    "methods.networks.vit_tiny": ["training.batch_size=8"],
}
"""Row, method or encoder -> overrides: it differs from others in so few rounds, rounds less, or takes less time."""
PINNED = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
"""Environment of a measurement: random weights are drawn in single precision, and differ by the instructions used."""
TOLERANCE = 1e-9
"""Of a number; relative for large ones."""

Numbers = dict[str, Any]


def configs(methods: str, folder: str) -> list[DictConfig]:
    """Configs of the runs. methods: rows, as of a suite; `all` are the suite's own."""
    placement = [
        f"output={folder}",
        "logger=csv",
        "devices=1",
        "threads=1",
        "accelerator=cpu",
        "compile=false",
        "training.precision=64-true",
    ]
    rows = rows_of(SUITE) if methods == "all" else methods
    runs = suite(SUITE, {"methods": rows, "seeds": "0"}, [*SETTING, *placement])
    return [
        merge(config, [word for name, words in OWN_SETTINGS.items() if name in names(config) for word in words])
        for config in runs
    ]


def names(config: DictConfig) -> set[str]:
    """What a row's own settings may be named after: the row, its method and its encoder."""
    return {config.row, config.method.name, config.encoder["class"]}


def measure(display: Display, methods: str = "all") -> dict[str, Numbers]:
    """Measure the golden numbers of rows, in as many processes as there are cores, at most 8."""
    rows, parts = dict[str, Numbers](), min(cores(), 8, len(methods.split(",")) if methods != "all" else 8)
    reading, writing = map(open, os.pipe(), "rw")  # one pipe for all: lines as short as theirs are written whole
    with reading, writing, ExitStack() as children:
        started = []
        for part in range(parts):
            command = [sys.executable, "-m", "benchmark.audit.golden", methods, str(part), str(parts)]
            child = subprocess.Popen(command, env=os.environ | PINNED, stdout=writing)
            started.append(children.enter_context(child))
            children.callback(child.kill)  # before it is waited for, where this process stops early
        writing.close()
        with display.counting("golden numbers", int(next(reading, 0))) as count:
            for line in reading:
                if isinstance(content := json.loads(line), list):
                    row, rows[row] = content
                    count(row)
        failed = [child for child in started if child.wait()]
    if failed:
        raise ConfigError("golden numbers could not be measured; see above for why")
    return rows


def _train(methods: str, part: int, parts: int) -> Iterator[Any]:
    """The number of rows, then each row of one of several equal parts with its numbers, trained in this process."""
    with tempfile.TemporaryDirectory() as folder, Display(Console(quiet=True)) as silent:
        runs = configs(methods, folder)
        yield len(runs)
        for config in runs[part::parts]:
            with Experiment(config, silent).open() as run:
                loop = run.loop
                loop.fit()
                exported = loop.export()
                losses = {key: [line.get(key) for line in loop.history] for key in ("loss", "server_loss")}
                final = {"server": fingerprint(loop.server), "encoders": fingerprint(dict(exported))}
            yield config.row, {key: values for key, values in losses.items() if set(values) != {None}} | final


def fingerprint(tree: Tree) -> dict[str, float]:
    """Norm of a Tree's numbers in the order of their names, and their projection on a fixed wave.

    The projection differs where norms are equal, such as of two weights that changed places.
    """
    leaves = [leaf.detach().double().flatten().cpu() for _, leaf in sorted(trees.leaves(tree))]
    flat = torch.cat(leaves) if leaves else torch.zeros(0, dtype=torch.float64)
    wave = torch.arange(len(flat), dtype=torch.float64).cos()
    return {"norm": float(flat.norm()), "wave": float(flat @ wave / wave.norm().clamp(min=1))}


def mark(rows: Mapping[str, Numbers]) -> str:
    """The name by which CHANGELOG.md mentions these golden numbers."""
    return "golden numbers " + hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:8]


def write(rows: Mapping[str, Numbers], display: Display) -> None:
    """Write rows, of which those that did not move keep their committed numbers to the last digit.

    CHANGELOG.md has to name them: where rows were added or left out its name is replaced here, since no number moved.
    """
    committed = read()
    shared = rows.keys() & committed.keys()
    still = {row for row in shared if not list(moved("", committed[row], rows[row], TOLERANCE))}
    rows = {row: committed[row] if row in still else rows[row] for row in sorted(rows)}
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    display.print(f"{FILE}: {len(rows) - len(still)} of {len(rows)} rows written anew")
    log = CHANGELOG.read_text(encoding="utf-8")
    if still == shared and mark(committed) in log:
        CHANGELOG.write_text(log.replace(mark(committed), mark(rows)), encoding="utf-8")
    elif mark(rows) not in log:
        display.print(f"add to {CHANGELOG}, under what changes numbers, the reason for: {mark(rows)}")


def read(file: Path = FILE) -> dict[str, Numbers]:
    """The committed golden numbers, by row."""
    rows: dict[str, Numbers] = json.loads(file.read_text(encoding="utf-8"))
    return rows


if __name__ == "__main__":
    for line in _train(sys.argv[1], *map(int, sys.argv[2:])):
        print(json.dumps(line), flush=True)  # noqa: T201
