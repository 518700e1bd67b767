"""Whether a GPU computes what it should: the authors' numbers, and the contract of three methods."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.errors import OutOfTimeError, count
from benchmark.execution.parallel import ParallelExecutor
from benchmark.experiment.experiment import Experiment
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.parity.case import Case
from benchmark.parity.codes import case
from benchmark.parity.compare import compare, needed
from benchmark.parity.files import read
from benchmark.parity.replay import replay
from benchmark.parity.report import result
from benchmark.speed.gpu.cells import Cell, Setting
from benchmark.tracking.progress import Display
from methods import trees
from methods.trees import Tree

METHODS = ("fedavg", "fedema", "scaffold")
ROUNDS = ("evaluation.every=0", "evaluation.protocols=[]", "federation.rounds=2")
TINY = ("federation.participation=0.2", "training.steps=2", "training.batch_size=8")
FLOAT64 = ("training.precision=64-true",)
"""In it rounding, which training amplifies, stays far below any mistake."""
ALLOWED = {"repeated": 0.0, "resumed": 0.0, "side by side": 1e-6, "on the CPU": 1e-6}
"""Largest relative differences: the same bits with deterministic=true, the same numbers in float64."""


def parity(setting: Setting) -> Iterator[Cell]:
    """A cell for each parity file of the checkout, in the precisions it needs; those with fewest steps come first.

    tiny: only the first of those that train.
    """
    files = [read(file) for file in sorted(Path("tests", "parity").glob("*.json"))]
    files.sort(key=lambda file: file.steps)
    for file in [file for file in files if file.steps][:1] if setting.tiny else files:
        yield Cell(file.path.stem, partial(_parity, case(file), setting))


def _parity(case: Case, setting: Setting) -> dict[str, Any]:
    """Whether the file's numbers are met, and the largest differences by precision.

    They are judged in float64 where the file has it: the limits of float32 were measured on CPUs.
    """
    ours = {precision: replay(case, precision, setting.accelerator) for precision in needed(case.file)}
    compared = compare(case, ours)
    judged = [each for each in compared if each.precision == "64-true"] or compared
    found = result(case, compared)
    return {"met": not any(each.beyond for each in judged), "steps": found.steps} | {
        name: asdict(precision) for name, precision in found.precisions.items()
    }


def contract(setting: Setting) -> Iterator[Cell]:
    """A cell for each of METHODS: the same bits again and after a kill, the same numbers on lanes and on the CPU."""
    for method in METHODS:
        yield Cell(method, partial(_contract, method, setting))


def _contract(method: str, setting: Setting) -> dict[str, Any]:
    """Largest relative differences of the server's state, and whether they are allowed."""
    with tempfile.TemporaryDirectory() as name:
        run = partial(_trained, Path(name), method, setting)
        expected = run("whole", "deterministic=true")
        differences = {
            "repeated": _difference(run("repeated", "deterministic=true"), expected),
            "resumed": _difference(run("resumed", "deterministic=true", killed=True), expected),
        }
        expected = run("float64", "executor=sequential", *FLOAT64)
        differences["side by side"] = _difference(run("lanes", "executor=parallel", "lanes=4", *FLOAT64), expected)
        differences["on the CPU"] = _difference(run("cpu", *FLOAT64, accelerator="cpu"), expected)
    met = all(difference <= ALLOWED[what] for what, difference in differences.items())
    return {"met": met, "differences": differences}


class Kill(Callback):
    """Ends a run after its first round."""

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Ends it."""
        raise OutOfTimeError


def _trained(
    folder: Path, method: str, setting: Setting, name: str, *words: str, killed: bool = False, accelerator: str = ""
) -> Tree:
    """The server's state after two rounds, on the CPU."""
    common = (f"output={folder / name}", "logger=csv", "devices=1", *ROUNDS, *(TINY if setting.tiny else ()))
    config = compose("digits", method, [*common, f"accelerator={accelerator or setting.accelerator}", *words])

    def build() -> FederatedLoop:
        return Experiment(config, Display(Console(quiet=True))).build().loop

    if killed:
        loop = build()
        loop.callbacks = [Kill()]
        with contextlib.suppress(OutOfTimeError):
            loop.fit()
        if loop.round != 1:
            raise RuntimeError(f"the run was killed after {count(loop.round, 'round')}, and not after its first")
    loop = build()
    loop.fit()
    refuse_unrecorded(loop, setting)
    return trees.move(loop.server, "cpu")


def refuse_unrecorded(loop: FederatedLoop, setting: Setting) -> None:
    """RuntimeError where steps that were to be recorded on a GPU were not: they ran one by one."""
    if setting.accelerator == "cuda" and isinstance(loop.executor, ParallelExecutor):
        reason = loop.executor.unrecorded_reason()
        if reason is not None:
            raise RuntimeError(f"steps were not recorded: {reason}")


def _difference(tree: Tree, expected: Tree) -> float:
    """The largest difference of a tensor, relative to its largest value."""
    ours = dict(trees.leaves(tree))
    return max(
        float((ours[path].double() - leaf.double()).abs().max() / leaf.double().abs().max().clamp(min=1e-6))
        for path, leaf in trees.leaves(expected)
        if leaf.numel()
    )
