"""Devices of a campaign's machine, and the commands on them."""

import os

import pytest
import torch

from benchmark.campaign.devices import find_machine, start_command
from benchmark.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    """Tests set the variables they need."""
    for key in ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_PER_TASK", "LOCAL_RANK", "RANK", "WORLD_SIZE", "SLURM_JOB_NAME"):
        monkeypatch.delenv(key, raising=False)


def test_a_launchers_processes_share_the_devices_but_their_runs_are_not_ranks(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert find_machine("auto", "auto").devices == ("0", "1", "2", "3", "4")
    assert find_machine(2, "auto").devices == ("0", "1")
    for key, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    machine = find_machine("auto", "auto")
    assert machine.devices == ("1", "3")
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_GPUS_PER_TASK", "5")
        assert len(find_machine("auto", "auto").devices) == 5  # they are this task's own
    started: dict = {}
    monkeypatch.setattr(
        "benchmark.campaign.devices.subprocess.Popen", lambda words, **options: started.update(options, words=words)
    )
    with (tmp_path / "log").open("w") as log, (tmp_path / "lock").open("w") as lock:
        start_command(["run", "digits", "fedavg"], machine, ("1", "3"), log, lock, {"HELD": "folder"})
        assert started["pass_fds"] == (lock.fileno(),)
    assert started["words"][-2:] == ["devices=2", f"threads={machine.threads}"]
    assert started["env"]["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert started["env"]["HELD"] == "folder"
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(started["env"])


def test_tasks_with_cores_or_gpus_of_their_own_use_them(monkeypatch):
    monkeypatch.setattr("benchmark.campaign.devices.cores", lambda: 4)
    monkeypatch.setattr("benchmark.distributed.launch.cores", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for key, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    assert find_machine("auto", "cpu").devices == ("1", "3")  # torchrun binds no process to cores
    for key in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(key)
    for key, value in {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}.items():
        monkeypatch.setenv(key, value)
    assert len(find_machine("auto", "cpu").devices) == 4
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert find_machine("auto", "cuda").devices == ("0", "1")
    monkeypatch.setenv("SLURM_STEP_GPUS", "2,3")
    assert find_machine("auto", "cuda").devices == ("1",)


def test_a_run_gets_one_instance_of_a_partitioned_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    machine = find_machine("auto", "cuda")
    assert (machine.devices, machine.max_devices_per_run) == (("MIG-a", "MIG-b"), 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert find_machine("auto", "cuda").max_devices_per_run == 1


def test_only_visible_gpus_are_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert find_machine("auto", "cuda").devices == ("GPU-a", "GPU-b")
    with pytest.raises(ConfigError, match="a number of the 2 GPUs that are here"):
        find_machine(3, "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    with pytest.raises(ConfigError, match="there is no GPU here"):
        find_machine("auto", "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ConfigError, match="there is no GPU here"):
        find_machine("auto", "cuda")
