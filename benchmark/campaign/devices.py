"""What a campaign may use of a machine: devices, what they are called, and how a run is started on some of them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, NamedTuple

import torch

from benchmark.distributed.launch import cores, end_with, launched, under_srun
from benchmark.errors import ConfigError
from benchmark.tracking.provenance import processor

LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCHELASTIC_",
    "SLURM_",
)  # fmt: skip
"""Beginnings of the variables by which launchers number processes: a campaign's runs are nobody's ranks."""

MIG = "MIG-"
"""How the ids of a partitioned GPU's instances begin."""


class Machine(NamedTuple):
    """Devices by id: GPUs, or as many shares of the CPU's cores.

    name: of their kind, by which times compare. threads: of the CPU for each device.
    """

    name: str
    gpu: bool
    devices: tuple[str, ...]
    threads: int

    @property
    def most(self) -> int:
        """Devices that one run can have: a process sees no more than one instance of a partitioned GPU."""
        return 1 if self.devices[0].startswith(MIG) else len(self.devices)


def machine(devices: object, accelerator: str) -> Machine:
    """The machine's devices, or this process's share of them where a launcher has started several on it.

    Args:
        devices: how many, or auto for all. accelerator: auto, cpu or cuda.
    """
    gpu = torch.cuda.is_available() if accelerator == "auto" else accelerator == "cuda"
    if gpu:
        visible, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
        every = visible.split(",") if visible else [str(k) for k in range(count)]
        if not any(one.startswith(MIG) for one in every):  # of which a process counts one, whatever is visible
            every = every[:count]
        given = "SLURM_GPUS_PER_TASK" in os.environ or len(every) < _of_step()
    else:
        every = [str(k) for k in range(cores())]
        given = under_srun() and cores() < (os.cpu_count() or 1)
    if not every:
        raise ConfigError(
            f"accelerator={accelerator}, but there is no GPU here: give accelerator=cpu, or another machine"
        )
    started, processes = launched(), 1
    if started is not None and not given and len(every) >= started.here:  # else they are this process's own already
        processes = started.here
        place = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "0"))
        every = every[place :: started.here]
    if devices != "auto":
        if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= len(every):
            what = "GPUs" if gpu else "cores"
            raise ConfigError(f"devices={devices}: give auto, or a number of the {len(every)} {what} that are here")
        every = every[:devices]
    threads = max(1, cores() // (len(every) * processes))
    return Machine(_gpu(every[0]) if gpu else f"{processor()}, {threads} threads", gpu, tuple(every), threads)


def start(words: Sequence[str], on: Machine, devices: Sequence[str], log: IO[str]) -> subprocess.Popen:
    """Starts `python -m benchmark` on some of the devices; it ends with this process, whatever ends that.

    words: of the command, without devices and threads.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
    own = [f"devices={len(devices)}"]
    if on.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if not any(word.startswith("threads=") for word in words):
        own.append(f"threads={on.threads}")
    parent = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-m", "benchmark", *words, *own],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a terminal's Ctrl-C is the campaign's, which tells its commands
        preexec_fn=lambda: end_with(parent),
    )


def _of_step() -> int:
    """GPUs that SLURM gave this step, or this job, on this machine; a task that sees fewer has its own."""
    step = os.environ.get("SLURM_STEP_GPUS")
    return len(step.split(",")) if step else int(os.environ.get("SLURM_GPUS_ON_NODE", "0"))


def _gpu(device: str) -> str:
    """A GPU's name, asked of the driver: asked of torch it would cost memory on the device."""
    try:
        asked = ["nvidia-smi", f"--id={device}", "--query-gpu=name", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
        return said.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "cuda"
