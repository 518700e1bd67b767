"""Devices of a campaign's machine, and the commands on them."""

import pytest
import torch

from benchmark.campaign.devices import find_machine, start_command
from benchmark.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    """Removes all launcher variables; a test sets those it needs."""
    for key in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_NAME"):
        monkeypatch.delenv(key, raising=False)


def test_a_command_sees_its_devices_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    machine = find_machine("auto", "auto")
    assert machine.devices == ("0", "1", "2", "3")
    assert find_machine(2, "auto").devices == ("0", "1")
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


@pytest.mark.parametrize(
    "environment", [{"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}]
)
def test_a_rank_of_a_launcher_is_refused(monkeypatch, environment):
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(ConfigError, match="leave torchrun out, and give srun --ntasks=1"):
        find_machine("auto", "cpu")


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
