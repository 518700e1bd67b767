"""Whether a GPU computes what it should: the authors' numbers, and the contract of three methods."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.experiment.experiment import Experiment
from benchmark.federation.loop import Callback, FederatedLoop
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
SIDE_BY_SIDE = 1e-4
"""Largest relative difference of recorded steps on several lanes."""


def parity(setting: Setting) -> Iterator[Cell]:
    """A cell for each parity file of the checkout, in float64 and float32; those with fewest steps come first."""
    files = [read(file) for file in Path("tests", "parity").glob("*.json")]
    files.sort(key=lambda file: sum(map(len, next(iter(file.sections.values())).losses.values())))
    for file in files[:1] if setting.tiny else files:
        yield Cell(file.path.stem, partial(_parity, case(file), setting))


def _parity(case: Case, setting: Setting) -> dict[str, Any]:
    """Whether the file's numbers are met, and the largest differences by precision."""
    ours = {precision: replay(case, precision, setting.accelerator) for precision in needed(case.file)}
    found = result(case, compare(case, ours))
    return {"met": found.met, "steps": found.steps} | {
        name: asdict(precision) for name, precision in found.precisions.items()
    }


def contract(setting: Setting) -> Iterator[Cell]:
    """A cell for each of METHODS: the same bits again and after a kill, the same numbers on lanes and on the CPU."""
    for method in METHODS:
        yield Cell(method, partial(_contract, method, setting))


def _contract(method: str, setting: Setting) -> dict[str, Any]:
    """Largest relative difference of the server's state from that of a run one by one; whether all are allowed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = partial(_trained, folder, method, setting)
        expected = run("whole", "deterministic=true")
        found = {
            "repeated": run("repeated", "deterministic=true"),
            "resumed": run("resumed", "deterministic=true", killed=True),
            "side by side": run("lanes", "executor=side-by-side", "lanes=4"),
            "on the CPU": run("cpu", accelerator="cpu"),
        }
    differences = {what: _difference(tree, expected) for what, tree in found.items()}
    met = not differences["repeated"] and not differences["resumed"] and differences["side by side"] < SIDE_BY_SIDE
    return {"met": met, "differences": differences}


class KilledError(Exception):
    """Ends a run after its first round."""


class Kill(Callback):
    """Ends a run after its first round."""

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Ends it."""
        raise KilledError


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
        _until_killed(loop.fit)
    loop = build()
    loop.fit()
    return trees.move(loop.server, "cpu")


def _until_killed(call: Callable[[], object]) -> None:
    try:
        call()
    except KilledError:
        return
    raise RuntimeError("the run did not come to the end of its first round")


def _difference(tree: Tree, expected: Tree) -> float:
    """The largest difference of a tensor, relative to its largest value."""
    pairs = [(dict(trees.leaves(tree))[path].double(), leaf.double()) for path, leaf in trees.leaves(expected)]
    return max(
        float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6))
        for ours, theirs in pairs
        if theirs.numel()
    )
