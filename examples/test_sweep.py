"""The sweep's file: its commands, made as W&B's agent makes them, are runs."""

import itertools

import pytest
import wandb
import yaml

from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.configuration.identity import folder
from benchmark.configuration.words import split
from tests.run_helpers import TINY

FILE = "examples/sweep.yaml"


@pytest.fixture
def sweep():
    with open(FILE, encoding="utf-8") as file:
        return yaml.safe_load(file)


def commands(sweep):
    """The command of each point of the grid, as the agent makes it."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args  # a second to import

    names, values = zip(*((name, each["values"]) for name, each in sweep["parameters"].items()), strict=True)
    for point in itertools.product(*values):
        args = {name: {"value": value} for name, value in zip(names, point, strict=True)}
        words = create_sweep_command_args({"args": args})["args_no_hyphens"]
        command = create_sweep_command(sweep["command"])
        yield [part for each in command for part in (words if each == "${args_no_hyphens}" else [each])]


def test_every_point_is_a_run_of_its_own(sweep):
    folders = set()
    for python, module, name, command, *words in commands(sweep):
        assert (python, module, name, command) == ("python", "-m", "benchmark", "run")
        (scenario, method), overrides = split(words)
        folders.add(folder(compose(scenario, method, overrides)))
    assert len(folders) == 6


def test_a_point_runs_and_logs_the_metric_of_the_sweep(sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    *_, words = commands(sweep)
    words = [{"digits": TINY}.get(word, word) for word in words[3:]]
    where = [f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", "threads=1", "devices=1"]
    assert main([*words, *where, "evaluation.every=1"]) == 0
    wandb.teardown()
    (log,) = tmp_path.rglob("run-*.wandb")
    assert sweep["metric"]["name"].encode() in log.read_bytes()
    (run,) = tmp_path.glob("runs/*/*/seed0/result.json")
    assert "optimizer.lr=0.3" in str(run)
