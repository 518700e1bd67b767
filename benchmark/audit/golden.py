"""Golden numbers: every shipped row, seeded, a few steps on the CPU: its losses, and a fingerprint of its end.

They hold what a change of the code must not move unnoticed. They are played in a process of their own, with the
instructions that every recent x86 processor has, so that another machine gets the same numbers. CHANGELOG.md has to
name those that are committed.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from benchmark.configuration.compose import merge
from benchmark.configuration.suites import suite
from benchmark.errors import ConfigError
from benchmark.experiment.run import Run
from benchmark.federation.client_state import LocalParts
from benchmark.tracking.progress import Display
from methods import trees
from methods.trees import Tree

FILE = Path("leaderboards") / "golden.json"
SUITE = "digits"
SETTING = ("federation.rounds=3", "training.steps=2", "federation.participation=0.4")
"""So few steps of the suite's scenario, and clients that are visited again."""
APART = {
    "ldawa": ["method.start=1"],
    "fedu": ["method.threshold=0"],
    "fedu-fedx": ["method.threshold=0"],
    "flesd-cc": ["federation.rounds=1"],
}
"""Row -> what makes it do in so few rounds what sets it apart from others."""
PINNED = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
"""What a processor may choose otherwise rounds otherwise."""
TOLERANCE = 1e-5
"""Of a number, relative where it is large."""

Numbers = dict[str, Any]


def configs(only: str, folder: str) -> list[DictConfig]:
    """The runs. only: rows as a suite's `methods`."""
    where = [f"output={folder}", "logger=csv", "devices=1", "threads=1", "accelerator=cpu", "compile=false"]
    found = suite(SUITE, {"methods": only, "seeds": "0"}, [*SETTING, *where])
    return [merge(config, APART.get(config.row, [])) for config in found]


def measured(display: Display, only: str = "all") -> dict[str, Numbers]:
    """Row -> its golden numbers, measured now."""
    found: dict[str, Numbers] = {}
    command = [sys.executable, "-m", "benchmark.audit.golden", only]
    with subprocess.Popen(command, env=os.environ | PINNED, stdout=subprocess.PIPE, text=True) as child:
        said = iter(child.stdout or ())
        with display.counting("golden numbers", int(next(said, 0))) as tell:
            for line in said:
                row, numbers = json.loads(line)
                tell(row)
                found[row] = numbers
    if child.returncode:
        raise ConfigError("golden numbers could not be played; why is said above")
    return found


def play(only: str) -> Iterator[Any]:
    """How many rows there are, then each with its numbers, as they are played in this process."""
    with tempfile.TemporaryDirectory() as folder, Display(Console(quiet=True)) as silent:
        runs = configs(only, folder)
        yield len(runs)
        for config in runs:
            with Run(config, silent).prepared() as loop:
                loop.fit()
                exported = loop.method.export(loop.server, LocalParts(loop.memory))
                losses = {key: [line.get(key) for line in loop.history] for key in ("loss", "server_loss")}
                ended = {"server": fingerprint(loop.server), "encoders": fingerprint(dict(exported))}
            yield config.row, {key: seen for key, seen in losses.items() if seen != [None] * len(seen)} | ended


def fingerprint(tree: Tree) -> dict[str, float]:
    """Of a Tree's numbers in the order of their names: their norm, and their mean on a fixed wave.

    The wave tells apart what has the same norm, such as two weights that changed places.
    """
    leaves = [leaf.detach().double().flatten().cpu() for _, leaf in sorted(trees.leaves(tree))]
    flat = torch.cat(leaves) if leaves else torch.zeros(0, dtype=torch.float64)
    wave = torch.arange(len(flat), dtype=torch.float64).cos()
    return {"norm": float(flat.norm()), "wave": float(flat @ wave / wave.norm().clamp(min=1))}


def mark(rows: Mapping[str, Numbers]) -> str:
    """What CHANGELOG.md calls these golden numbers."""
    return "golden numbers " + hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:8]


def moved(golden: Mapping[str, Numbers], found: Mapping[str, Numbers]) -> list[tuple[str, str, str]]:
    """(what, golden, now) of every number that is not where it was, and of rows that came or went."""
    lines = [(row, "-", "new row") for row in sorted(found.keys() - golden.keys())]
    lines += [(row, "golden", "gone") for row in sorted(golden.keys() - found.keys())]
    for row in sorted(golden.keys() & found.keys()):
        old, new = dict(_flat(golden[row])), dict(_flat(found[row]))
        for name in sorted(old.keys() | new.keys()):
            if not _close(old.get(name), new.get(name)):
                lines.append((f"{row} {name}", _told(old.get(name)), _told(new.get(name))))
    return lines


def _flat(numbers: Any, name: str = "") -> Iterator[tuple[str, float | None]]:
    """Name -> number, of nested ones."""
    if isinstance(numbers, Mapping | list):
        items = numbers.items() if isinstance(numbers, Mapping) else enumerate(numbers, 1)
        for key, value in items:
            yield from _flat(value, f"{name} {key}".strip())
    else:
        yield name, numbers


def _close(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is new
    return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _told(number: float | None) -> str:
    return "-" if number is None else f"{number:.8g}"


def read(file: Path = FILE) -> dict[str, Numbers]:
    """The committed golden numbers, by row."""
    rows: dict[str, Numbers] = json.loads(file.read_text(encoding="utf-8"))
    return rows


def write(rows: Mapping[str, Numbers], file: Path = FILE) -> None:
    """Puts the golden numbers on disk."""
    file.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for line in play(sys.argv[1]):
        print(json.dumps(line), flush=True)  # noqa: T201
