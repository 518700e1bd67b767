"""How many ranks play a run and who starts them; a rank is a process with a device of its own.

On the CPUs of one machine the program forks before it has computed anything: a rank then costs milliseconds and shares
what is imported. A GPU does not survive a fork, and neither does a Mac; there the program is started anew for each
further rank. Under torchrun or srun the ranks are there already.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from omegaconf import DictConfig

from benchmark.errors import ConfigError
from benchmark.rng import cohort_size

if TYPE_CHECKING:
    from benchmark.tracking.progress import Display


class RankLayout(NamedTuple):
    """Ranks on each machine, machines, and whether somebody has started them already."""

    here: int
    nodes: int
    started: bool

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.here * self.nodes


_children: list[int] = []
_started: list[subprocess.Popen] = []  # kept, so that nobody reaps them but `end`

_fair = False
"""Whether this process's threads are its share of the cores, and not what the user said or torch chose."""

_largest = 0
"""The largest cohort of the runs that are known to share this process."""


def expect(configs: Iterable[DictConfig]) -> None:
    """Says which runs will share this process's ranks, so that `devices=auto` suits the one with most to share."""
    global _largest
    _largest = max(map(cohort, configs), default=0)


def places(config: DictConfig, alone: bool = False) -> RankLayout:
    """Where the ranks of a run are, or are to be.

    Args:
        config: of the run.
        alone: this process has begun to work as the only one, so it can no longer fork.

    Raises:
        ConfigError: what is asked for is not what was started, or cannot be started from here.
    """
    found = launched(config.nodes or 1)
    if found is None:
        if (config.nodes or 1) > 1:
            raise ConfigError(f"nodes={config.nodes} needs torchrun or srun, which start ranks on all machines")
        wanted = _auto(config, alone) if config.devices == "auto" else config.devices
        if alone and wanted > 1:
            raise ConfigError(f"devices={wanted}, but this process has begun with one: give all its runs as many")
        return RankLayout(wanted, 1, False)
    here = found.here if config.devices == "auto" else config.devices
    nodes = config.nodes or found.nodes
    if (here, nodes) != found[:2]:
        raise ConfigError(
            f"devices={here} nodes={nodes}, but {found.world} ranks were started, {found.here} on each machine: "
            f"give devices={found.here} nodes={found.nodes}, or neither"
        )
    return found


def launched(nodes: int = 1) -> RankLayout | None:
    """The ranks that torchrun, srun, somebody's environment or this program itself has started; None: there are none.

    nodes: machines, for a launcher that does not say how many ranks each has.
    """
    env = os.environ
    if "LOCAL_RANK" in env:
        world = int(env.get("WORLD_SIZE", "1"))
        here = int(env.get("LOCAL_WORLD_SIZE", world // nodes))
    elif under_srun():
        world = int(env["SLURM_NTASKS"])
        if "SLURM_NTASKS_PER_NODE" not in env:
            raise ConfigError(f"srun was to start {world} tasks, on which machines is open: give --ntasks-per-node")
        here = int(env["SLURM_NTASKS_PER_NODE"])
    else:
        return None
    if here < 1 or world % here:
        raise ConfigError(f"{world} ranks were started, but not equally many on each machine: start as many on each")
    return RankLayout(here, world // here, True)


def under_srun() -> bool:
    """Whether srun has started this process as one of several tasks."""
    env = os.environ
    interactive = env.get("SLURM_JOB_NAME") in ("bash", "interactive")  # a shell: what runs in it runs once
    return "LOCAL_RANK" not in env and int(env.get("SLURM_NTASKS", "1")) > 1 and not interactive


def cohort(config: DictConfig) -> int:
    """Clients a round; 1 where the config does not say, which is then refused elsewhere."""
    clients = config.partition.get("clients", 10)
    return cohort_size(clients, config.federation.participation) if isinstance(clients, int) else 1


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerator(config: DictConfig) -> str:
    """cpu or cuda."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if config.accelerator == "auto" else config.accelerator


def share_cores(config: DictConfig, found: RankLayout) -> None:
    """Sets the CPU threads of this rank: those of a machine that have a client at once share its cores fairly."""
    global _fair
    _fair = config.threads is None and found.world > 1 and accelerator(config) == "cpu"
    number = max(1, cores() // min(found.here, cohort(config))) if _fair else config.threads
    if number is not None:
        torch.set_num_threads(number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """While the other ranks of its machine wait, a rank has all the cores, unless `threads` says how many."""
    before = torch.get_num_threads()
    if _fair:
        torch.set_num_threads(cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def begins(found: RankLayout) -> bool:
    """Whether this process is to start the other ranks."""
    return found.here > 1 and not found.started and _is_program()


def begin(config: DictConfig, found: RankLayout) -> int:
    """Starts the other ranks; returns which one this process is from now on."""
    _meet(found.here)
    if accelerator(config) == "cpu" and sys.platform == "linux":
        return fork(found.here)
    start_anew(found.here)
    return 0


def start_anew(number: int) -> None:
    """Starts the program `number - 1` times more, as the ranks after this one."""
    parent = os.getpid()
    for rank in range(1, number):
        command = [sys.executable, "-m", "benchmark", *sys.argv[1:]]
        environment = {**os.environ, "LOCAL_RANK": str(rank)}
        child = subprocess.Popen(command, env=environment, preexec_fn=lambda: end_with(parent))
        _started.append(child)
        _children.append(child.pid)


def ready(config: DictConfig, display: "Display", alone: bool) -> RankLayout:
    """Where the ranks of a run are; where they are forked, this returns once in each of them.

    display: of the command; only the first rank's is heard from then on.
    """
    found = places(config, alone)
    if begins(found):
        if display.live:
            display.bars.stop()  # its thread would not survive a fork
        if begin(config, found) > 0:
            display.console.quiet, display.live = True, False
        elif display.live:
            display.bars.start()
    return found


def fork(number: int) -> int:
    """Goes on as `number` processes; returns which of them this one is.

    To be called before a tensor operation has started threads, which a fork would leave behind. The children end with
    this process, whatever ends it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    for rank in range(1, number):
        child = os.fork()
        if child == 0:
            _children.clear()
            end_with(parent)
            os.environ["LOCAL_RANK"] = str(rank)
            return rank
        _children.append(child)
    return 0


def _meet(number: int) -> None:
    """Says in the environment where the ranks of this machine find each other."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(number)}
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": "0"}
    if sys.platform == "linux":  # the machine's name need not lead anywhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end() -> None:
    """Ends the processes this one has started: what counts of their work is with the first rank or on disk."""
    for child in _children:  # all of them, before one is waited for
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
    while _children:
        with contextlib.suppress(OSError):
            os.waitpid(_children.pop(), 0)


def _auto(config: DictConfig, alone: bool) -> int:
    """All GPUs that have a client to train, or as many ranks as there are cores and pairs of clients."""
    if alone or not _is_program():
        return 1
    most = max(cohort(config), _largest)
    if accelerator(config) == "cuda":
        return max(1, min(torch.cuda.device_count(), most))
    return max(1, min(cores(), most // 2))


def _is_program() -> bool:
    """Whether this process is `python -m benchmark`; a caller from Python keeps the one process it has."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "benchmark.__main__"


def end_with(parent: int) -> None:
    """Has the system kill this process when its parent ends; where it cannot, `alive` notices."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it ended before it was asked
        os._exit(1)
