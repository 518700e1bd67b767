"""Number of ranks of a run, and the start of their processes; a rank is a process with a device of its own.

On the CPUs of a Linux machine the program forks before any tensor operation. With CUDA, or on macOS, that is not safe:
there the program is started again for each further rank. torchrun and srun start all ranks themselves.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from omegaconf import DictConfig

from benchmark import runtime
from benchmark.distributed.heartbeat import Heartbeat, silence_limit
from benchmark.errors import ConfigError
from benchmark.rng import cohort_size

RANKS_PER_CORE = 8
"""Most ranks a CPU core, of which there are more than GPUs; further ones would only wait for each other."""


class RankLayout(NamedTuple):
    """Ranks on each machine, machines, and whether the ranks run already."""

    ranks_per_node: int
    nodes: int
    running: bool

    @property
    def world_size(self) -> int:
        """Ranks on all machines."""
        return self.ranks_per_node * self.nodes


class RankProcesses:
    """The ranks that one command runs on: their layout, the processes it started, and the heartbeat between them.

    Args:
        largest_cohort: clients a round of the largest run that shares the ranks, for which `devices=auto` is chosen.
    """

    def __init__(self, largest_cohort: int = 0) -> None:
        self.largest_cohort = largest_cohort
        self.children: list[int] = []  # process ids
        self.silence = silence_limit()  # read before ranks connect, where an error of one breaks off the others' calls
        self.heartbeat: Heartbeat | None = None
        self.cannot_fork = False  # whether this process has computed as the only rank, which has started threads
        self.shares_cores = False  # whether this rank's threads are its share of the machine's cores

    def layout(self, config: DictConfig) -> RankLayout:
        """Ranks of a run, running or yet to be started; ConfigError for ranks that were not or cannot be started."""
        running = launched_layout(config.nodes or 1)
        if running is None:
            if (config.nodes or 1) > 1:
                raise ConfigError(f"nodes={config.nodes} needs torchrun or srun, which start ranks on all machines")
            count = self._auto(config) if config.devices == "auto" else config.devices
            if count > (limit := RANKS_PER_CORE * cores()):  # GPUs are counted by `factory.fabric`
                raise ConfigError(f"devices={count} is too many for this machine: give at most {limit}")
            if self.cannot_fork and count > 1:
                raise ConfigError(f"devices={count}, but this process has begun with one: give all its runs as many")
            return RankLayout(count, 1, False)
        per_node = running.ranks_per_node if config.devices == "auto" else config.devices
        nodes = config.nodes or running.nodes
        if (per_node, nodes) != running[:2]:
            raise ConfigError(
                f"devices={per_node} nodes={nodes}, but {running.world_size} ranks were started, "
                f"{running.ranks_per_node} on each machine: "
                f"give devices={running.ranks_per_node} nodes={running.nodes}, or neither"
            )
        return running

    def _auto(self, config: DictConfig) -> int:
        """Number of ranks: on GPUs one per GPU, at most one per client; on a CPU one per core and two clients."""
        if self.cannot_fork or not _is_program():
            return 1
        clients = max(cohort(config), self.largest_cohort)
        if accelerator(config) == "cuda":
            return max(1, min(torch.cuda.device_count(), clients))
        return max(1, min(cores(), clients // 2))

    def start(self, count: int, *, fork: bool) -> None:
        """Starts `count - 1` further ranks, which end with this process, however it ends.

        Sets the environment variables by which ranks connect; LOCAL_RANK is each process's rank.
        fork: this returns in every rank, and no tensor operation may have started threads before; False: each further
        rank runs the program from its beginning.
        """
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
        os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": "0"}
        if sys.platform == "linux":  # works even where the machine's name cannot be resolved
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        for rank in range(1, count):
            child = os.fork()
            if child == 0:
                self.children = []
                end_with_parent(parent)
                os.environ["LOCAL_RANK"] = str(rank)
                if fork:
                    return
                try:
                    os.execv(sys.executable, runtime.program(*sys.argv[1:]))
                finally:
                    os._exit(127)  # else a child that could not start the program would go on as this one
            self.children.append(child)

    def set_threads(self, config: DictConfig, layout: RankLayout) -> None:
        """Sets the CPU threads of this rank: its ranks that have a client divide a machine's cores."""
        self.shares_cores = config.threads is None and layout.world_size > 1 and accelerator(config) == "cpu"
        threads = config.threads
        if self.shares_cores:
            threads = max(1, cores() // min(layout.ranks_per_node, cohort(config)))
        if threads is not None:
            torch.set_num_threads(threads)

    @contextlib.contextmanager
    def all_cores(self) -> Iterator[None]:
        """Gives this rank all cores while the other ranks of its machine wait, unless the config sets `threads`."""
        before = torch.get_num_threads()
        if self.shares_cores:
            torch.set_num_threads(cores())
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def collective(self) -> contextlib.AbstractContextManager[None]:
        """Wraps a collective, so that a dead rank ends this process instead of keeping it waiting."""
        return contextlib.nullcontext() if self.heartbeat is None else self.heartbeat.collective()

    def kill_children(self) -> None:
        """Kills the processes this one has started; nothing is lost: results are with the first rank or on disk."""
        for child in self.children:  # all of them, before the first is waited for
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        while self.children:
            with contextlib.suppress(OSError):
                os.waitpid(self.children.pop(), 0)

    def close(self) -> None:
        """Ends heartbeat, children and process group; a thread that waits for another rank would abort the exit."""
        if self.heartbeat is not None:
            self.heartbeat.close()
            self.heartbeat = None
        self.kill_children()
        if dist.is_initialized():
            dist.destroy_process_group()


def launch(configs: Iterable[DictConfig]) -> RankProcesses:
    """Starts the ranks that these runs will share; after a fork this returns in every rank."""
    configs = list(configs)
    processes = RankProcesses(max(map(cohort, configs), default=0))
    layout = processes.layout(configs[0])
    if layout.ranks_per_node > 1 and not layout.running and _is_program():
        processes.start(layout.ranks_per_node, fork=accelerator(configs[0]) == "cpu" and sys.platform == "linux")
    return processes


def launched_layout(nodes: int = 1) -> RankLayout | None:
    """Layout of the ranks that torchrun, srun, a user's environment or this program has started, else None.

    nodes: machines, for a launcher that does not set the number of ranks on each.
    """
    env = os.environ
    if "LOCAL_RANK" in env:
        world = int(env.get("WORLD_SIZE", "1"))
        per_node = int(env.get("LOCAL_WORLD_SIZE", world // nodes))
    elif under_srun():
        world = int(env["SLURM_NTASKS"])
        if "SLURM_NTASKS_PER_NODE" not in env:
            raise ConfigError(
                f"srun starts {world} tasks, but not how many on each machine is known: give --ntasks-per-node"
            )
        per_node = int(env["SLURM_NTASKS_PER_NODE"])
    else:
        return None
    if per_node < 1 or world % per_node:
        raise ConfigError(f"{world} ranks were started, but not equally many on each machine: start as many on each")
    return RankLayout(per_node, world // per_node, True)


def under_srun() -> bool:
    """Whether srun has started this process as one of several tasks."""
    env = os.environ
    interactive = env.get("SLURM_JOB_NAME") in ("bash", "interactive")  # a shell: its commands run once
    return "LOCAL_RANK" not in env and int(env.get("SLURM_NTASKS", "1")) > 1 and not interactive


MANY = 1 << 20
"""More clients than any machine has cores."""


def cohort(config: DictConfig) -> int:
    """Clients a round; 1 where `partition.clients` is not an integer, which is refused elsewhere."""
    clients = config.partition.get("clients") or MANY  # as many as the data name, which are not read yet
    return cohort_size(clients, config.federation.participation) if isinstance(clients, int) else 1


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerator(config: DictConfig) -> str:
    """cpu or cuda."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if config.accelerator == "auto" else config.accelerator


def free_port() -> int:
    """A port of this machine that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_parent(parent: int) -> None:
    """Asks the system to kill this process when its parent ends; where it cannot, the heartbeat does."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # the parent ended before this call
        os._exit(1)


def _is_program() -> bool:
    """Whether this process is the command; called from Python, no further processes are started."""
    return runtime.is_program
