"""Devices of a campaign's machine, and the start of a run's command on some of them."""

import os
import subprocess
from collections.abc import Sequence
from typing import IO, NamedTuple

import torch

from benchmark.distributed.launch import cores, end_with_parent, under_srun
from benchmark.errors import ConfigError
from benchmark.runtime import program
from benchmark.tracking.provenance import processor


class Machine(NamedTuple):
    """Devices by id: GPUs, or one device for each CPU core.

    name: hardware name; times are compared between machines of one name. threads: CPU threads for each device.
    """

    name: str
    gpu: bool
    devices: tuple[str, ...]
    threads: int


def find_machine(devices: object, accelerator: str) -> Machine:
    """Find the devices that are visible to this process.

    Args:
        devices: how many to use, or auto for all. accelerator: auto, cpu or cuda.

    Raises ConfigError: a launcher started this process, or there is no GPU, or not so many devices.
    """
    if "LOCAL_RANK" in os.environ or under_srun():
        raise ConfigError("a campaign starts its runs' ranks itself: leave torchrun out, and give srun --ntasks=1")
    gpu = torch.cuda.is_available() if accelerator == "auto" else accelerator == "cuda"
    if gpu:
        count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
        ids = (visible.split(",") if visible else [str(k) for k in range(count)])[:count]
    else:
        ids = [str(k) for k in range(cores())]
    if not ids:
        problem = f"accelerator={accelerator}, but there is no GPU here"
        raise ConfigError(f"{problem}: give accelerator=cpu, or another machine")
    if devices != "auto":
        if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= len(ids):
            kind = "GPUs" if gpu else "cores"
            raise ConfigError(f"devices={devices}: give auto, or a number of the {len(ids)} {kind} that are here")
        ids = ids[:devices]
    threads = max(1, cores() // len(ids))
    return Machine(_gpu_name(ids[0]) if gpu else f"{processor()}, {threads} threads", gpu, tuple(ids), threads)


def start_command(
    arguments: Sequence[str],
    machine: Machine,
    devices: Sequence[str],
    log: IO[str],
    lock: IO[str],
    variables: dict[str, str],
) -> subprocess.Popen:
    """Start the suite's command on some of the devices; it is ended when this process ends.

    Args:
        arguments: of the command, without devices and threads.
        lock: an open file whose lock the command inherits. variables: added to its environment.
    """
    if machine.gpu:
        variables = variables | {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    placement = [f"devices={len(devices)}"]
    if not any(argument.startswith("threads=") for argument in arguments):
        placement.append(f"threads={machine.threads}")
    parent = os.getpid()
    return subprocess.Popen(
        program(*arguments, *placement),
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # a terminal's Ctrl-C goes to the campaign, which ends its commands
        preexec_fn=lambda: end_with_parent(parent),
    )


def _gpu_name(device: str) -> str:
    """A GPU's name from the driver: torch would need memory on the device for it."""
    try:
        query = ["nvidia-smi", f"--id={device}", "--query-gpu=name", "--format=csv,noheader"]
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        return output.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "cuda"
