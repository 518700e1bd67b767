"""Runs killed (SIGKILL) at random moments end in the bits of an undisturbed run; so do two that share cache and folder.

Minutes long: `pytest -m long tests/fuzz`. KILLS and SOAK_SECONDS say how much.
"""

import contextlib
import io
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.cli.main import main
from benchmark.federation import checkpoint, client_state
from datamodules import cache
from leaderboards import store
from tests.run_helpers import TINY, finish, in_child, same

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

METHODS = ("fedavg", "scaffold", "fedema", "ssd", "orchestra", "flesd", "fedsc", "fedx")
OVERRIDES = {"orchestra": ("objective=orchestra",), "flesd": ("public.name=client",)}
MOMENTS = ("decoding", "state of a client", "checkpoint", "checkpoint renamed", "record", "record renamed")
"""Writes that a run can be killed in."""
KILLS, SOAK_SECONDS = int(os.environ.get("KILLS", "100")), float(os.environ.get("SOAK_SECONDS", "600"))
IN_WRITES = 0.4
"""Share of the attempts that are killed in the middle of a write."""
Undisturbed = tuple[dict[str, Any], dict[str, float]]
"""Method -> outcome of its run that nothing interrupts, and method -> its seconds."""


def words(root: Path, method: str, *more: str) -> list[str]:
    """A run of 12 rounds."""
    own = ["scenario=tiny", f"row={method}", "federation.rounds=12", f"output={root}/runs", f"data.cache={root}/cache"]
    own += ["logger=csv", "threads=1", "accelerator=cpu", "minutes=null"]
    return ["run", TINY, method, *own, *OVERRIDES.get(method, ()), *more]


def command(arguments: list[str], moment: str | None, countdown: int) -> None:
    """Runs a command, silently; kills itself at a moment's `countdown`-th time."""
    torch.set_num_threads(1)
    if moment is not None:
        die_at(moment, countdown)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    if code:
        os.write(2, err.getvalue().encode())
    os._exit(code)


def die_at(moment: str, countdown: int) -> None:
    """Has this process killed in the middle of a write."""
    left = [countdown]

    def killing(function: Callable[..., Any], before: bool, when: Callable[..., bool]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when(*args):
                left[0] -= 1
                if left[0] <= 0 and before:
                    os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if when(*args) and left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    def written(*names: str) -> Callable[..., bool]:
        return lambda source, target: str(target).endswith(names)

    def always(*_: Any) -> bool:
        return True

    match moment:
        case "decoding":
            cache.eight_bits = killing(cache.eight_bits, True, always)  # type: ignore[assignment]
        case "state of a client":
            client_state._hash = killing(client_state._hash, False, always)  # type: ignore[assignment]
        case "checkpoint" | "checkpoint renamed":
            checkpoint.os.replace = killing(os.replace, moment == "checkpoint", written("state.pt"))  # type: ignore[attr-defined]
        case "record" | "record renamed":
            store.os.replace = killing(os.replace, moment == "record", written("result.json", "partial.json"))  # type: ignore[attr-defined]


def outcome(root: Path, method: str) -> dict[str, Any]:
    """Server, memories, ledger and scores of a finished run."""
    folder = root / "runs" / "tiny" / method / "seed0"
    state = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)
    memory = {
        client: torch.load(folder / "checkpoint" / "memory" / name, weights_only=True)
        for client, name in state["memory"].items()
    }
    history = [{key: value for key, value in line.items() if "seconds" not in key} for line in state["history"]]
    scores = store.read(folder / "result.json")["scores"]
    return {key: state[key] for key in ("server", "ledger")} | {"memory": memory, "history": history, "scores": scores}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Runs every method once."""
    root, outcomes, seconds = tmp_path_factory.mktemp("undisturbed"), {}, {}
    for method in METHODS:
        started = time.monotonic()
        assert finish(in_child(command, words(root, method), None, 0)) == 0
        outcomes[method], seconds[method] = outcome(root, method), time.monotonic() - started
    return outcomes, seconds


def test_kills_change_nothing(undisturbed: Undisturbed, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    outcomes, seconds = undisturbed
    draw, kills, runs = random.Random(0), dict.fromkeys((*MOMENTS, "any moment"), 0), 0
    while sum(kills.values()) < KILLS or sum(kills[moment] for moment in MOMENTS) < KILLS / 4:
        for method in METHODS:
            root = tmp_path / f"{method}{runs}"
            for attempt in range(5):
                moment = None
                if draw.random() < IN_WRITES:  # the first attempt decodes; later ones find the images in the cache
                    moment = draw.choice(MOMENTS[:1] if attempt == 0 else MOMENTS[1:])
                countdown = draw.randint(1, {"decoding": 80, "record": 1, "record renamed": 1}.get(moment or "", 5))
                child = in_child(command, words(root, method), moment, countdown)
                if moment is None:
                    time.sleep(draw.uniform(0.1, 0.7) * seconds[method])
                    child.kill()
                if (code := finish(child)) == 0:
                    break
                assert code == -signal.SIGKILL, (method, moment, code)
                kills[moment or "any moment"] += 1
            assert finish(in_child(command, words(root, method), None, 0)) == 0
            assert same(outcome(root, method), outcomes[method]), method
            runs += 1
    with capsys.disabled():
        print(f"\n{sum(kills.values())} kills in {runs} runs of {len(METHODS)} methods: {json.dumps(kills)}")  # noqa: T201


def test_two_processes_in_one_folder_with_one_cache(
    undisturbed: Undisturbed, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each does whatever runs are not done; either is killed and started again at random moments."""
    outcomes, seconds = undisturbed
    draw, started, ends = random.Random(1), time.monotonic(), {"killed": 0, "done": 0, "busy": 0}
    cycle, children, deadlines = 0, [None, None], [0.0, 0.0]
    while time.monotonic() < started + SOAK_SECONDS:
        root = tmp_path / f"cycle{cycle}"
        finished = [m for m in METHODS if (root / "runs" / "tiny" / m / "seed0" / "result.json").exists()]
        if len(finished) == len(METHODS) and not any(child is not None and child.is_alive() for child in children):
            for method in METHODS:
                assert same(outcome(root, method), outcomes[method]), method
            cycle += 1
            continue
        for index, child in enumerate(children):
            if child is not None and child.is_alive():
                if time.monotonic() > deadlines[index]:
                    child.kill()
                continue
            if len(finished) == len(METHODS):
                continue
            if child is not None:
                code = finish(child)
                assert code in (0, 75, -signal.SIGKILL), code
                ends["done" if code == 0 else "busy" if code == 75 else "killed"] += 1
            method = draw.choice([method for method in METHODS if method not in finished])
            children[index] = in_child(command, words(root, method), None, 0)
            deadlines[index] = time.monotonic() + draw.uniform(0.1, 1.5) * seconds[method]
        time.sleep(0.05)
    for child in children:
        if child is not None:
            child.kill()
            finish(child)
    with capsys.disabled():
        print(f"\n{cycle} times all methods in {SOAK_SECONDS:g} s, two processes: {json.dumps(ends)}")  # noqa: T201
    assert cycle >= 1
    for index in range(cycle):  # each board has the scores of the undisturbed runs
        board = tmp_path / f"board{index}"
        arguments = ["board", f"collect={tmp_path}/cycle{index}/runs", f"folder={board}"]
        assert finish(in_child(command, arguments, None, 0)) == 0
        records = store.collect(board / "results")
        assert {record["row"]: record["scores"] for record in records} == {m: outcomes[m]["scores"] for m in METHODS}
