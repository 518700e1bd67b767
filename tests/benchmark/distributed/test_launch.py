import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from benchmark.configuration.compose import compose
from benchmark.distributed import launch as launching
from benchmark.distributed.launch import RankLayout, RankProcesses
from benchmark.errors import ConfigError
from benchmark.runtime import is_first_rank
from leaderboards import store
from tests.command_helpers import Job
from tests.run_helpers import TINY, by_hand, same

ROOT = Path(__file__).parents[3]


@pytest.mark.ranks
def test_a_suite_has_ranks_for_its_largest_cohort_and_a_run_of_one_client_uses_all_cores(tmp_path):
    suite = tmp_path / "mine.yaml"
    methods = ["centralized", "fedavg", "fedavg training.precision=bf16-mixed row=half"]
    suite.write_text(yaml.safe_dump({"scenarios": [TINY], "methods": methods, "seeds": [0]}))
    given = ("scenario=all", "federation.participation=1", "federation.rounds=1", "evaluation.every=1")
    job = Job(tmp_path / "x", "threads=null", words=[f"suite={suite}", *given])
    assert job.end() == [0], job.out.read_text()
    for row, threads in (("centralized", 2), ("fedavg", 1), ("half", 1)):
        record = store.read(job.folder / "runs" / "all" / row / "seed0" / "result.json")
        assert (record["world_size"], record["best"]["round"]) == (2, 1)
        assert record["provenance"]["hardware"].partition(";")[0].endswith(f", {threads} threads")


TWO_MACHINES = {  # launcher -> what it sets; None: the number of the machine
    "torchrun": {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "RANK": None, "GROUP_RANK": None}
    | {"TORCHELASTIC_RUN_ID": "x"},
    "srun": {"SLURM_LOCALID": "0", "SLURM_PROCID": None, "SLURM_NODEID": None, "SLURM_NTASKS": "2"}
    | {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_NAME": "mine", "SLURM_NODELIST": "127.0.0.1"},
}


def succeed(words):
    """A finished process of Python."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.ranks
class TestLaunchers:
    def test_torchrun(self, tmp_path, unbroken):
        job = Job(tmp_path / "x", start=False)
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "benchmark"]
        done = succeed([*words, *job.words, "devices=2"])
        assert done.stdout.count("record, scores of every round") == 1
        assert same(job.state, unbroken)

    @pytest.mark.parametrize("launcher", TWO_MACHINES)
    def test_two_machines_of_one_rank_each(self, tmp_path, unbroken, launcher):
        """Two processes with the environment variables that torchrun or srun sets on two machines."""
        ranks = by_hand(*({key: value or k for key, value in TWO_MACHINES[launcher].items()} for k in "01"))
        job = Job(tmp_path / "x", "nodes=2", environments=ranks)
        assert job.end() == [0, 0], job.out.read_text()
        assert job.out.read_text().count("record, scores of every round") == 1
        assert same(job.state, unbroken)


@pytest.fixture
def launch(monkeypatch):
    """A function that sets environment variables, after those of any launcher are removed."""
    for name in os.environ:
        if name.startswith(("SLURM_", "TORCHELASTIC")) or name in ("LOCAL_RANK", "RANK", "NODE_RANK"):
            monkeypatch.delenv(name)

    def set_environment(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_environment


def config(*overrides, method="fedavg"):
    given = {"accelerator": "cpu"} | dict(override.split("=") for override in overrides)
    return compose(TINY, method, [f"{key}={value}" for key, value in given.items()])


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "mine"}


def started_ranks(monkeypatch, *configs) -> int:
    """Number of ranks that `launch` would start; the start itself is replaced."""
    starts = []
    monkeypatch.setattr(RankProcesses, "start", lambda self, count, fork: starts.append(count))
    launching.launch(configs)
    return starts[0] if starts else 1


class TestLayout:
    @pytest.mark.parametrize(
        ("clients", "participation", "cores", "count"),
        [(10, 1, 2, 2), (10, 1, 16, 5), (10, 0.5, 16, 2), (4, 1, 2, 2), (3, 1, 2, 1), (10, 0.1, 8, 1), (100, 1, 1, 1)],
    )
    @pytest.mark.usefixtures("launch")
    def test_auto_on_a_cpu_is_a_core_a_rank_and_two_clients(self, monkeypatch, clients, participation, cores, count):
        monkeypatch.setattr(launching, "_is_program", lambda: True)
        monkeypatch.setattr(launching, "cores", lambda: cores)
        mine = config(f"partition.clients={clients}", f"federation.participation={participation}")
        assert RankProcesses().layout(mine) == (count, 1, False)
        assert started_ranks(monkeypatch, mine) == count
        single = RankProcesses()
        single.cannot_fork = True
        assert single.layout(mine) == (1, 1, False)
        assert RankProcesses().layout(config("federation.participation=1", method="centralized")) == (1, 1, False)

    @pytest.mark.parametrize(("gpus", "count"), [(1, 1), (2, 2), (8, 4)])
    def test_auto_on_gpus_is_one_each_that_has_a_client(self, launch, monkeypatch, gpus, count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        mine = config("federation.participation=1", "accelerator=cuda")
        assert RankProcesses().layout(mine) == (1, 1, False)  # a caller from Python keeps its one process
        assert started_ranks(monkeypatch, config("devices=2")) == 1
        monkeypatch.setattr(launching, "_is_program", lambda: True)
        assert RankProcesses().layout(mine) == (count, 1, False)
        assert started_ranks(monkeypatch, mine) == count

    @pytest.mark.parametrize(
        ("environment", "overrides", "expected"),
        [
            (TORCHRUN, (), (2, 2, True)),
            (TORCHRUN, ("devices=2", "nodes=2"), (2, 2, True)),
            (TORCHRUN, ("devices=2",), (2, 2, True)),
            (SRUN, ("nodes=2",), (3, 2, True)),
            (SRUN | TORCHRUN, (), (2, 2, True)),
            ({"LOCAL_RANK": "1", "WORLD_SIZE": "4"}, (), (4, 1, True)),
            ({"LOCAL_RANK": "1", "WORLD_SIZE": "4"}, ("nodes=2",), (2, 2, True)),
            # a batch script or a shell of SLURM is no launcher
            ({"SLURM_NTASKS": "1"}, ("devices=2",), (2, 1, False)),
            ({"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"}, ("devices=2",), (2, 1, False)),
            ({"SLURM_JOB_ID": "7"}, ("devices=2",), (2, 1, False)),
        ],
    )
    def test_what_a_launcher_has_started(self, launch, environment, overrides, expected):
        launch(**environment)
        assert RankProcesses().layout(config(*overrides)) == expected

    @pytest.mark.parametrize(
        ("environment", "overrides", "line"),
        [
            (TORCHRUN, ["devices=4"], "4 nodes=2, but 4 ranks were started, 2 on each machine: give devices=2 nodes=2"),
            (TORCHRUN, ["nodes=1"], "give devices=2 nodes=2, or neither"),
            (SRUN, ["devices=1"], "6 ranks were started, 3 on each machine"),
            ({"SLURM_NTASKS": "2"}, [], "give --ntasks-per-node"),
            (TORCHRUN | {"WORLD_SIZE": "3"}, [], "start as many on each"),
            ({}, ["nodes=2"], "nodes=2 needs torchrun or srun"),
        ],
    )
    def test_a_mistake_is_one_line(self, launch, environment, overrides, line):
        launch(**environment)
        with pytest.raises(ConfigError, match=line):
            RankProcesses().layout(config(*overrides))

    def test_a_process_that_works_alone_cannot_fork_later_and_one_rank_speaks(self, launch):
        processes = RankProcesses()
        processes.cannot_fork = True
        with pytest.raises(ConfigError, match="devices=2, but this process has begun with one"):
            processes.layout(config("devices=2"))
        for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
            for rank in "10":
                launch(**{name: rank})
                assert is_first_rank() == (rank == "0")


@pytest.mark.usefixtures("launch")
def test_ranks_that_have_a_client_share_the_cores(monkeypatch):
    """A single rank keeps its number of threads; `threads` in the config is used unchanged."""
    monkeypatch.setattr(launching, "cores", lambda: 8)
    before = torch.get_num_threads()
    for override, started, threads, alone in (
        ("threads=3", RankLayout(2, 1, False), 3, 3),
        ("threads=3", RankLayout(1, 1, False), 3, 3),
        ("seed=0", RankLayout(1, 1, False), 5, 5),
        ("seed=0", RankLayout(2, 1, False), 4, 8),
        ("seed=0", RankLayout(4, 2, True), 2, 8),
        ("federation.participation=0.75", RankLayout(4, 1, True), 2, 8),
        ("federation.participation=0.25", RankLayout(4, 1, True), 8, 8),
    ):
        torch.set_num_threads(5)
        processes, used = RankProcesses(), []
        processes.set_threads(config("federation.participation=1", override), started)
        used.append(torch.get_num_threads())
        with processes.all_cores():
            used.append(torch.get_num_threads())
        used.append(torch.get_num_threads())
        torch.set_num_threads(before)
        assert used == [threads, alone, threads]
