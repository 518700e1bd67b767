"""Whether a GPU computes what it should: the authors' numbers, the contract of three methods, and every method."""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from benchmark.configuration.suites import suite
from benchmark.errors import OutOfTimeError, count
from benchmark.execution.parallel import ParallelExecutor
from benchmark.experiment.experiment import Experiment
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.parity.codes import case
from benchmark.parity.compare import compare, needed
from benchmark.parity.files import read
from benchmark.parity.replay import replay
from benchmark.parity.report import result
from benchmark.speed.gpu.cells import Cell, Setting
from benchmark.tracking.progress import Display
from methods import trees
from methods.trees import Tree

SUITE = "digits"
METHODS = ("fedavg", "fedema", "scaffold")
ROUNDS = ("evaluation.every=0", "evaluation.protocols=[]", "federation.rounds=2")
TINY = ("federation.participation=0.2", "training.steps=2", "training.batch_size=8")
FLOAT64 = ("training.precision=64-true",)
"""In it rounding, which training amplifies, stays far below any mistake."""
LANES = ("executor=parallel", "lanes=4")
FLOAT32 = "side by side in float32"
ALLOWED = {"repeated": 0.0, "resumed": 0.0, "side by side": 1e-6, "on the CPU": 1e-6, FLOAT32: math.inf}
"""Largest relative differences: the same bits with deterministic=true, the same numbers in float64."""


def parity(setting: Setting) -> Iterator[Cell]:
    """A cell for each parity file of the checkout, in the precisions it needs; those with fewest steps come first.

    tiny: only the first of those that train.
    """
    files = [read(file) for file in sorted(Path("tests", "parity").glob("*.json"))]
    files.sort(key=lambda file: file.steps)
    for file in [file for file in files if file.steps][:1] if setting.tiny else files:
        yield Cell(file.path.stem, partial(_parity, file.path, setting))


def _parity(path: Path, setting: Setting) -> dict[str, Any]:
    """Whether the file's numbers are met, and the largest differences by precision.

    They are judged in float64 where the file, or one beside it, has it: the limits of float32 were measured on CPUs.
    """
    of = case(read(path))
    ours = {precision: replay(of, precision, setting.accelerator) for precision in needed(of.file)}
    compared = compare(of, ours)
    exact = [each for each in compared if each.precision == "64-true"]
    beside = path.with_stem(f"{path.stem}-float64").exists()
    judged = exact or ([] if beside else compared)
    found = result(of, compared)
    return {"met": not any(each.beyond for each in judged), "steps": found.steps} | {
        name: asdict(precision) for name, precision in found.precisions.items()
    }


def contract(setting: Setting) -> Iterator[Cell]:
    """A cell for each of METHODS: the same bits again and after a kill, the same numbers on lanes and on the CPU."""
    for method in METHODS:
        yield Cell(method, partial(_contract, method, setting))


def _contract(method: str, setting: Setting) -> dict[str, Any]:
    """Largest relative differences of the state, and whether they are allowed."""
    with tempfile.TemporaryDirectory() as name:
        run = partial(_recorded, Path(name), method, setting)
        expected = run("whole", "deterministic=true")
        differences = {
            "repeated": _difference(run("repeated", "deterministic=true"), expected),
            "resumed": _difference(run("resumed", "deterministic=true", killed=True), expected),
        }
        expected = run("float64", "executor=sequential", *FLOAT64)
        differences["side by side"] = _difference(run("lanes", *LANES, *FLOAT64), expected)
        differences["on the CPU"] = _difference(run("cpu", *FLOAT64, accelerator="cpu"), expected)
    return {"met": _allowed(differences), "differences": differences}


def methods(setting: Setting) -> Iterator[Cell]:
    """A cell for each row of a suite, those under `more` included: every method, objective and variant; tiny: three."""
    for row, mixed in _rows()[:3] if setting.tiny else _rows():
        yield Cell(row, partial(_row, row, mixed, setting))


@cache
def _rows() -> list[tuple[str, bool]]:
    """The rows of the suite, and whether their clients have several architectures."""
    configs = suite(SUITE, {"methods": "all", "seeds": [0]}, [])
    return [(config.row, bool(config.federation.encoders)) for config in configs]


def _row(row: str, mixed: bool, setting: Setting) -> dict[str, Any]:
    """Largest relative differences of the state after a few steps, and why steps were not recorded.

    mixed: clients have several architectures, and are visited one by one in any case.
    """
    small = Setting(setting.accelerator, tiny=True)
    one_by_one, lanes = ((), ()) if mixed else (("executor=sequential",), LANES)
    with tempfile.TemporaryDirectory() as name:
        run = partial(_trained, Path(name), row, small)
        expected, _ = run("one by one", *one_by_one, *FLOAT64)
        found, unrecorded = run("lanes", *lanes, *FLOAT64)
        cpu, _ = run("cpu", *FLOAT64, accelerator="cpu")
        differences = {"side by side": _difference(found, expected), "on the CPU": _difference(cpu, expected)}
        expected, _ = run("float32", *one_by_one)
        differences[FLOAT32] = _difference(run("lanes in float32", *lanes)[0], expected)
    return {"met": _allowed(differences), "differences": differences, "unrecorded": unrecorded}


class Kill(Callback):
    """Ends a run after its first round."""

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Ends it."""
        raise OutOfTimeError


def _trained(
    folder: Path, row: str, setting: Setting, name: str, *words: str, killed: bool = False, accelerator: str = ""
) -> tuple[Tree, str | None]:
    """The server's and the clients' state after two rounds, on the CPU, and why steps were not recorded."""
    common = (f"output={folder / name}", "logger=csv", "devices=1", *ROUNDS, *(TINY if setting.tiny else ()))
    words = (*common, f"accelerator={accelerator or setting.accelerator}", *words)
    (config,) = suite(SUITE, {"methods": row, "seeds": [0]}, list(words))

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
    with float32_rates():
        loop.fit()
    clients = {str(client): loop.client_state[client] for client in loop.client_state}
    return trees.move({"server": loop.server, "clients": clients}, "cpu"), unrecorded_reason(loop, setting)


@contextlib.contextmanager
def float32_rates() -> Iterator[None]:
    """Rounds the learning rate of every update as a recorded one does, whose fused form reads it in float32."""
    given: list[tuple[dict[str, Any], float]] = []

    def rounded(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                given.append((group, group["lr"]))
                group["lr"] = float(torch.tensor(group["lr"], dtype=torch.float32))

    def restored(*_: Any) -> None:
        while given:
            group, rate = given.pop()
            group["lr"] = rate

    handles = register_optimizer_step_pre_hook(rounded), register_optimizer_step_post_hook(restored)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recorded(folder: Path, row: str, setting: Setting, name: str, *words: str, **more: Any) -> Tree:
    """The state that `_trained` ends in; RuntimeError where steps were not recorded."""
    state, reason = _trained(folder, row, setting, name, *words, **more)
    refuse_unrecorded(reason)
    return state


def unrecorded_reason(loop: FederatedLoop, setting: Setting) -> str | None:
    """Why steps that were to be recorded on a GPU ran one by one; None where none did."""
    if setting.accelerator == "cuda" and isinstance(loop.executor, ParallelExecutor):
        return loop.executor.unrecorded_reason()
    return None


def refuse_unrecorded(reason: str | None) -> None:
    """RuntimeError where there is a reason."""
    if reason is not None:
        raise RuntimeError(f"steps were not recorded: {reason}")


def _allowed(differences: Mapping[str, float]) -> bool:
    return all(difference <= ALLOWED[what] for what, difference in differences.items())


def _difference(tree: Tree, expected: Tree) -> float:
    """The largest difference of a tensor, relative to its largest value; nan where one of them is."""
    ours = dict(trees.leaves(tree))
    differences = [
        (ours[path].double() - leaf.double()).abs().max() / leaf.double().abs().max().clamp(min=1e-6)
        for path, leaf in trees.leaves(expected)
        if leaf.numel()
    ]
    return float(torch.stack(differences).max())
