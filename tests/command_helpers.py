"""Commands in child processes, whose ranks may die in the middle of a round.

Child processes are forked from a server process that has imported everything, as in `run_helpers`.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.cli.main import main
from benchmark.distributed import launch
from methods.base import Message, Tree, Visit
from methods.fedavg import FedAvg
from tests import run_helpers
from tests.run_helpers import TINY


class Fated(FedAvg):
    """FedAvg in which the rank DEAD of the environment is killed, stopped or terminated in round 2, or sleeps.

    FATE: kill, stop, term or sleep.

    BUSY: seconds that each visit of the other ranks takes longer in that round.
    """

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        env = os.environ
        if "PIDS" in env:
            (Path(env["PIDS"]) / str(os.getpid())).touch()
        if visit.round == 1 and "FATE" in env:
            if env.get("DEAD") != env.get("LOCAL_RANK", "0"):
                time.sleep(float(env.get("BUSY", "0")))
            elif env["FATE"] == "sleep":
                time.sleep(float(env["SECONDS"]))
            else:
                os.kill(os.getpid(), FATES[env["FATE"]])
        return super().reply(visit)


FATES = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}

OWN = (
    "fedavg", "method.class=tests.command_helpers.Fated", "row=own", "scenario=all", "federation.participation=1",
)  # fmt: skip


def command(words: Sequence[str], out: Path, forking: bool) -> None:
    """Runs a command and ends the process; with `forking`, like `python -m benchmark` on two cores."""
    stream = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    torch.set_num_threads(1)
    launch._is_program, launch.cores = lambda: forking, lambda: 2
    sys.exit(main(words))


class Job:
    """A command in child processes, with its exit codes, errors and checkpoint.

    overrides: of the run. environments: one for each process to start; None: one process, which forks.
    """

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        words: Sequence[str] = (TINY, *OWN),
        environments: Iterable[Mapping[str, str]] | None = None,
        start: bool = True,
        **environment: str,
    ) -> None:
        self.folder, self.out, self.children = folder, folder / "out", []
        (folder / "pids").mkdir(parents=True, exist_ok=True)
        common = {"output": folder / "runs", "data.cache": folder.parent / "cache", "logger": "csv", "threads": 1}
        common |= {"accelerator": "cpu"} | dict(override.split("=") for override in overrides)
        self.words = ["run", *words, *(f"{key}={value}" for key, value in common.items())]
        for environment_of_rank in environments or [{}] if start else []:
            mine = environment | environment_of_rank | {"PIDS": str(folder / "pids")}
            self.children.append(
                run_helpers.in_child(command, self.words, self.out, environments is None, environment=mine)
            )

    def end(self, seconds: float = 60) -> list[int]:
        """Exit codes of the processes; fails if a rank still runs a second later."""
        codes = [run_helpers.finish(child, seconds) for child in self.children]
        deadline = time.monotonic() + 1
        while left := [pid for pid in self.pids() if running(pid)]:
            assert time.monotonic() < deadline, f"{left} are left"
            time.sleep(0.05)
        return codes

    def pids(self) -> list[int]:
        """Ids of the ranks that have visited a client."""
        return [int(file.name) for file in (self.folder / "pids").iterdir()]

    def begun(self, count: int) -> "Job":
        """Waits until `count` ranks have visited a client."""
        deadline = time.monotonic() + 30
        while len(self.pids()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    @property
    def errors(self) -> list[str]:
        """Output lines that report an error or an interruption."""
        return [line for line in self.out.read_text().splitlines() if "error" in line.lower() or "interrupt" in line]

    @property
    def state(self) -> dict[str, Any]:
        """The checkpoint without times."""
        state = torch.load(self.folder / "runs/all/own/seed0/checkpoint/state.pt", weights_only=True)
        history = [{key: value for key, value in row.items() if "seconds" not in key} for row in state["history"]]
        return {key: state[key] for key in ("round", "server", "memory", "ledger")} | {"history": history}


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
