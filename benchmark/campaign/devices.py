"""Devices of a campaign's machine, and the start of a run's command on some of them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, NamedTuple

import torch

from benchmark.distributed.launch import cores, end_with_parent, launched_layout, under_srun
from benchmark.errors import ConfigError
from benchmark.tracking.provenance import processor

LAUNCHER_PREFIXES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCHELASTIC_",
    "SLURM_",
)  # fmt: skip
"""Prefixes of the variables by which launchers number ranks; removed, because a campaign's run starts its own ranks."""

MIG = "MIG-"
"""Prefix of the ids of a partitioned GPU's instances."""


class Machine(NamedTuple):
    """Devices by id: GPUs, or one device for each CPU core.

    name: hardware name; times are compared between machines of one name. threads: CPU threads for each device.
    """

    name: str
    gpu: bool
    devices: tuple[str, ...]
    threads: int

    @property
    def max_devices_per_run(self) -> int:
        """Devices that one run can use: a process sees no more than one instance of a partitioned GPU."""
        return 1 if self.devices[0].startswith(MIG) else len(self.devices)


def find_machine(devices: object, accelerator: str) -> Machine:
    """Find the machine's devices, or this process's part of them if a launcher started several processes here.

    Args:
        devices: how many to use, or auto for all. accelerator: auto, cpu or cuda.

    Raises:
        ConfigError: there is no GPU, or not so many devices.
    """
    gpu = torch.cuda.is_available() if accelerator == "auto" else accelerator == "cuda"
    if gpu:
        visible, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
        ids = visible.split(",") if visible else [str(k) for k in range(count)]
        if not any(device.startswith(MIG) for device in ids):  # torch counts one MIG instance, whatever is visible
            ids = ids[:count]
        bound = "SLURM_GPUS_PER_TASK" in os.environ or len(ids) < _gpus_of_step()
    else:
        ids = [str(k) for k in range(cores())]
        bound = under_srun() and cores() < (os.cpu_count() or 1)
    if not ids:
        problem = f"accelerator={accelerator}, but there is no GPU here"
        raise ConfigError(f"{problem}: give accelerator=cpu, or another machine")
    layout, processes = launched_layout(), 1
    # bound devices are this process's already
    if layout is not None and not bound and len(ids) >= layout.ranks_per_node:
        processes = layout.ranks_per_node
        local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "0"))
        ids = ids[local_rank :: layout.ranks_per_node]
    if devices != "auto":
        if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= len(ids):
            kind = "GPUs" if gpu else "cores"
            raise ConfigError(f"devices={devices}: give auto, or a number of the {len(ids)} {kind} that are here")
        ids = ids[:devices]
    threads = max(1, cores() // (len(ids) * processes))
    return Machine(_gpu_name(ids[0]) if gpu else f"{processor()}, {threads} threads", gpu, tuple(ids), threads)


def start_command(
    arguments: Sequence[str],
    machine: Machine,
    devices: Sequence[str],
    log: IO[str],
    lock: IO[str],
    variables: dict[str, str],
) -> subprocess.Popen:
    """Start `python -m benchmark` on some of the devices; it is ended when this process ends.

    Args:
        arguments: of the command, without devices and threads.
        lock: an open file whose lock the command inherits. variables: added to its environment.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_PREFIXES)}
    if machine.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    placement = [f"devices={len(devices)}"]
    if not any(argument.startswith("threads=") for argument in arguments):
        placement.append(f"threads={machine.threads}")
    parent = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-m", "benchmark", *arguments, *placement],
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # a terminal's Ctrl-C goes to the campaign, which ends its commands
        preexec_fn=lambda: end_with_parent(parent),
    )


def _gpus_of_step() -> int:
    """GPUs that SLURM gave this step, or this job, on this machine; a task that sees fewer has its own."""
    step = os.environ.get("SLURM_STEP_GPUS")
    return len(step.split(",")) if step else int(os.environ.get("SLURM_GPUS_ON_NODE", "0"))


def _gpu_name(device: str) -> str:
    """A GPU's name from the driver: torch would need memory on the device for it."""
    try:
        query = ["nvidia-smi", f"--id={device}", "--query-gpu=name", "--format=csv,noheader"]
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        return output.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "cuda"
