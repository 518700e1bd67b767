"""Devices of a campaign's machine, and the start of a run's command on some of them."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.context import ForkProcess
from typing import IO, NamedTuple

import torch

from benchmark import runtime
from benchmark.distributed.launch import cores, end_with_parent, under_srun
from benchmark.errors import ConfigError
from benchmark.tracking.provenance import processor
from benchmark.tracking.wandb_run import silence


class Machine(NamedTuple):
    """Devices by id: GPUs, or one device for each CPU core.

    name: hardware name; times are compared between machines of one name. threads: CPU threads for each device.
    """

    name: str
    gpu: bool
    devices: tuple[str, ...]
    threads: int


def find_machine(devices: object, accelerator: str, key: str = "devices") -> Machine:
    """Find the devices that are visible to this process.

    Args:
        devices: how many to use, or auto for all. accelerator: auto, cpu or cuda. key: that `devices` was given by.

    Raises ConfigError: a launcher started this process, or there is no GPU, or not so many devices.
    """
    if "LOCAL_RANK" in os.environ or under_srun():
        raise ConfigError("this command starts its runs itself: leave torchrun out, and give srun --ntasks=1")
    refuse_without_gpu(accelerator)
    gpu = torch.cuda.is_available() if accelerator == "auto" else accelerator == "cuda"
    if gpu:
        count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
        ids = (visible.split(",") if visible else [str(k) for k in range(count)])[:count]
    else:
        ids = [str(k) for k in range(cores())]
    if devices != "auto":
        if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= len(ids):
            kind = "GPUs" if gpu else "cores"
            raise ConfigError(f"{key}={devices}: give auto, or a number of the {len(ids)} {kind} that are here")
        ids = ids[:devices]
    threads = max(1, cores() // len(ids))
    return Machine(_gpu_name(ids[0]) if gpu else f"{processor()}, {threads} threads", gpu, tuple(ids), threads)


def refuse_without_gpu(accelerator: str) -> None:
    """ConfigError where a GPU is asked for and none is visible."""
    if accelerator == "cuda" and not torch.cuda.device_count():
        problem = f"accelerator={accelerator}, but there is no GPU here"
        raise ConfigError(f"{problem}: give accelerator=cpu, or another machine")


class ForkedCommand(ForkProcess):
    """The suite's command in a fork of this process, which has imported everything; used like a `Popen`."""

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self.exitcode

    returncode = property(poll)


def can_fork(machine: Machine) -> bool:
    """Whether runs may be forked: on CPUs of a Linux machine, from the command, which computes with one thread."""
    return not machine.gpu and sys.platform == "linux" and runtime.is_program


def preload(*, wandb: bool) -> None:
    """Imports what runs need once for all forks; this process computes with one thread from here on."""
    torch.set_num_threads(1)  # threads of a parallel operation would be missing in a fork
    modules = ["benchmark.experiment.experiment"]
    if wandb:
        silence()
        modules += ["wandb.apis.public", "pandas", "requests"]  # all that W&B imports when a run begins
    for module in modules:
        importlib.import_module(module)
    runtime.enable_garbage_collection()


def start_command(
    arguments: Sequence[str],
    machine: Machine,
    devices: Sequence[str],
    log: IO[str],
    lock: IO[str],
    variables: dict[str, str],
    forked: Callable[[list[str]], int] | None = None,
) -> subprocess.Popen | ForkedCommand:
    """Start the suite's command on some of the devices; it is ended when this process ends.

    Args:
        arguments: of the command, without devices and threads.
        lock: an open file whose lock the command inherits. variables: added to its environment.
        forked: does what the command would do, in a fork of this process; None: the program is started again.
    """
    if machine.gpu:
        variables = variables | {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    placement = [f"devices={len(devices)}"]
    if not any(argument.startswith("threads=") for argument in arguments):
        placement.append(f"threads={machine.threads}")
    parent = os.getpid()
    if forked is not None:
        child = ForkedCommand(target=_in_fork, args=(partial(forked, [*arguments, *placement]), log, parent, variables))
        child.start()
        return child
    return subprocess.Popen(
        runtime.program(*arguments, *placement),
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # a terminal's Ctrl-C goes to the campaign, which ends its commands
        preexec_fn=lambda: end_with_parent(parent),
    )


def _in_fork(command: Callable[[], int], log: IO[str], parent: int, variables: dict[str, str]) -> None:
    """Sets a forked process up as `start_command` does a new one, and ends it with the command's exit code."""
    os.setsid()
    end_with_parent(parent)
    os.environ.update(variables)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    runtime.open_standard_streams()
    sys.exit(command())


def _gpu_name(device: str) -> str:
    """A GPU's name from the driver: torch would need memory on the device for it."""
    try:
        query = ["nvidia-smi", f"--id={device}", "--query-gpu=name", "--format=csv,noheader"]
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        return output.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "cuda"
