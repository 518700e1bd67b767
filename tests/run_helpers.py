"""Runs of the tiny scenario for tests: in this process, in a child that may be killed, or as two ranks over gloo.

Children come from a server process that has imported everything and computed nothing, so that a test can afford many.
"""

import importlib
import io
import itertools
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.distributed.launch import free_port
from benchmark.execution.base import VisitResult
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.run import Run
from benchmark.federation import checkpoint
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.progress import Display
from leaderboards.schema import Record
from methods import trees

TINY = str(Path(__file__).parent / "tiny.yaml")


def build_run(folder: Path, method: str, *overrides: str, scenario: str = TINY) -> Run:
    """A run before its first round."""
    return build_experiment(folder, method, *overrides, scenario=scenario).build()


def execute_run(folder: Path, method: str, *overrides: str, scenario: str = TINY) -> tuple[Record, Run]:
    """The record of an executed experiment, and a run with the state it ended in."""
    experiment = build_experiment(folder, method, *overrides, scenario=scenario)
    record, run = experiment.execute(), experiment.build()
    run.loop.restore()
    return record, run


def build_experiment(folder: Path, method: str, *overrides: str, scenario: str = TINY) -> Experiment:
    """An experiment whose folder may hold an earlier run of the same config."""
    torch.set_num_threads(1)
    placed = () if any(word.startswith("accelerator=") for word in overrides) else ("accelerator=cpu",)
    common = [f"output={folder}/runs", f"data.cache={folder.parent}/cache", "logger=csv", "threads=1", *placed]
    config = compose(scenario, method, [*common, *overrides])
    experiment = Experiment(config, Display(Console(file=io.StringIO())))
    experiment.refuse_changed_config()
    return experiment


def train_run(folder: Path, method: str, *overrides: str) -> Run:
    """A run after all its rounds, without evaluation."""
    run = build_run(folder, method, *overrides)
    run.loop.fit()
    return run


@cache
def trained(method: str, *overrides: str) -> Run:
    """A finished run that tests of this process share, and none may change; `seen` is an attribute added here.

    seen: the entries of each reply, and those its phase declares.
    """
    run = build_run(Path(_SHARED.name) / str(next(_NUMBERS)), method, *overrides)
    declared = run.loop.uplink.reductions
    run.seen = collect_visits(run, lambda done: (set(done.message), set(declared(done.visit.phase))))
    run.loop.fit()
    return run


_SHARED, _NUMBERS = tempfile.TemporaryDirectory(), itertools.count()


class OnVisitEnd(Callback):
    """Calls a function with each visit's result."""

    def __init__(self, function: Callable[[VisitResult], None]) -> None:
        self.function = function

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        self.function(result)


def collect_visits(run: Run, look: Callable[[Any], Any], phase: str | None = None) -> list[Any]:
    """A list that fills during the run with `look(result)` of each visit, of one phase or of all."""
    seen: list[Any] = []
    run.loop.callbacks = [
        OnVisitEnd(lambda done: seen.append(look(done)) if phase in (None, done.visit.phase.name) else None)
    ]
    return seen


def state(run: Run, activity: bool = True) -> dict[str, Any]:
    """The state of a run after its last completed round, without times; `same` compares it bit for bit.

    activity: with the notes on how much the method's own idea moves, which another method has not.
    """
    loop = run.loop

    def noted(notes: dict[str, Any]) -> dict[str, Any]:
        return {name: note for name, note in notes.items() if activity or name not in loop.method.own_activity}

    return {
        "server": loop.server,
        "memory": {client: loop.client_state[client] for client in loop.client_state},
        "history": [
            {k: v for k, v in row.items() if "seconds" not in k} | {"notes": noted(row.get("notes", {}))}
            for row in loop.history
        ],
        "ledger": loop.ledger.state(),
        "spent": {client: dict(counted) for client, counted in loop.accountant.releases.items()},
    }


def same(first: Any, second: Any) -> bool:
    """Equal bit for bit, tensors included."""
    if isinstance(first, dict):
        return set(first) == set(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return first == second


def apart(first: trees.Tree, second: trees.Tree) -> float:
    """Largest absolute difference between the leaves that two Trees have both."""
    mine, theirs = ({str(path): leaf for path, leaf in trees.leaves(tree)} for tree in (first, second))
    both = mine.keys() & theirs.keys()
    assert both
    return difference({path: mine[path] for path in both}, {path: theirs[path] for path in both})


def difference(first: trees.Tree, second: trees.Tree) -> float:
    """Largest absolute difference between the leaves of two Trees of one shape."""
    mine, theirs = dict(trees.leaves(first)), dict(trees.leaves(second))
    assert mine.keys() == theirs.keys()
    return max((float((mine[path].double() - theirs[path].double()).abs().max()) for path in mine), default=0.0)


CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.run_helpers"])
"""How tests start processes: in a third of a second, where a new one imports torch for many."""


def in_child(function: Callable[..., None], *args: Any, environment: dict[str, str] | None = None) -> Any:
    """Starts `function(*args)` in a process of its own."""
    child = CHILDREN.Process(target=_call, args=(function, args, environment or {}))
    child.start()
    return child


def finish(child: Any, seconds: float = 120) -> int:
    """Waits for a child and returns its exit code; a child that hangs is killed."""
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        raise TimeoutError(f"a child process did not end within {seconds} seconds")
    return child.exitcode


def _call(function: Callable[..., None], args: tuple, environment: dict[str, str]) -> None:
    os.environ.pop("WANDB_SERVICE", None)  # the parent's may end first, and with it what it has not written
    os.environ.update(environment)
    function(*args)


def call_by_name(module: str, name: str, *args: Any) -> None:
    """Calls a function of a module that is imported now, in the child, by whose environment it may go."""
    getattr(importlib.import_module(module), name)(*args)


def by_hand(*environments: dict[str, str]) -> list[dict[str, str]]:
    """Environments of ranks that are started one by one on this machine, with the address where they connect."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(environments))}
    return [common | environment for environment in environments]


def on_two_ranks(folder: Path, method: str, *overrides: str) -> None:
    """Trains a run on two ranks connected by gloo."""
    given = (*overrides, "devices=2", "accelerator=cpu")
    ranks = by_hand(*({"LOCAL_RANK": str(k), "NODE_RANK": "0"} for k in (0, 1)))
    children = [in_child(_train, folder, method, given, environment=rank) for rank in ranks]
    codes = [finish(child) for child in children]
    assert codes == [0, 0], f"ranks ended with {codes}"


def _train(folder: Path, method: str, overrides: tuple[str, ...]) -> None:
    experiment = build_experiment(folder, method, *overrides)
    experiment.build().loop.fit()
    experiment.processes.close()  # in order: a slower rank would take this one for dead


def run_until_killed(folder: Path, method: str, moment: str, round: int, phase: str, *overrides: str) -> None:
    """Trains a run that kills itself (SIGKILL) at a moment of one round and phase; returns when it is dead.

    moment: "visit", within the phase; "reply", between its work and the server's update; "written" or "renamed", before
    or right after the rename of the round's checkpoint.
    """
    child = in_child(_train_until_killed, folder, method, moment, round, phase, overrides)
    code = finish(child)
    assert code == -signal.SIGKILL, f"the run was to be killed at {moment} in phase {phase}, but ended with {code}"


def check_resumed(folder: Path, unbroken: Run, method: str, *overrides: str) -> None:
    """Resumes a killed run: it ends in the unbroken one's state, and leaves no file that does not count."""
    resumed = train_run(folder, method, *overrides)
    assert same(state(resumed), state(unbroken))
    left = {file.name for file in (resumed.folder / "checkpoint" / "memory").glob("*")}
    assert left == set(resumed.loop.client_state.index.values())


def _train_until_killed(
    folder: Path, method: str, moment: str, round: int, phase: str, overrides: tuple[str, ...]
) -> None:
    run = build_run(folder, method, *overrides)
    loop = run.loop

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_in_phase(result: VisitResult) -> None:
        if moment == "visit" and (result.visit.round, result.visit.phase.name) == (round, phase):
            die()

    loop.callbacks = [OnVisitEnd(die_in_phase)]
    hook = type(loop.method).hook

    def deadly_hook(self: Any, name: str, of: Any) -> Any:
        if moment == "reply" and name == "update" and (loop.round, of.name) == (round, phase):
            return die
        return hook(self, name, of)

    type(loop.method).hook = deadly_hook  # type: ignore[method-assign]
    replace = os.replace

    def replaced(source: Any, target: Any) -> None:
        last = loop.round == round + 1  # the round's own checkpoint
        if moment == "written" and last:
            die()
        replace(source, target)
        if moment == "renamed" and last:
            die()

    checkpoint.os.replace = replaced  # type: ignore[attr-defined]
    loop.fit()
