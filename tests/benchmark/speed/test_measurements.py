"""Every measurement of `python -m benchmark.speed` in a tiny form, so that none of them breaks unseen."""

import importlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from benchmark.cli.main import main
from benchmark.speed import evaluation, memory, overhead, peers, protocols, report, scaling, terms, timing, views
from benchmark.speed.__main__ import MEASUREMENTS
from benchmark.speed.peer import workload
from methods.networks import convnet

SMALL = ("training.steps=1", "devices=1", "threads=1", "federation.rounds=2", "federation.participation=0.04")
PARTS = (*memory.IMPORTS, memory.BUILT, memory.ROUNDS, memory.LATER)
TINY = {
    overhead: {"RESNET": (), "FLOORS": {"convnet": (("training.steps=1",), "")}, "VISITS": {"convnet": ((), "")}},
    scaling: {
        "LAYOUTS": dict.fromkeys(scaling.LAYOUTS, SMALL),
        "CLIENTS": (10, 20),
        "BATCHES": (16,),
        "NATURAL": (100, 200),
    },
    terms: {"CLIENTS": 200, "FILES": 20, "SIDE": 32, "resnet18": lambda **_: convnet(widths=[4], strides=[2])},
    views: {"IMAGES": 8, "BATCH": 4, "apply_compiled": views.apply},  # a compiler takes half a minute
    evaluation: {"TRAIN": 600, "TEST": 200, "EPOCHS": 1},
    memory: {"WORKLOADS": {"convnet": SMALL[:1]}, "_parts": lambda *words: dict.fromkeys(PARTS, 1 / len(words))},
    protocols: {
        "LIKE": ("digits", "fedavg", *SMALL[:1], "evaluation.every=1"),
        "MEASURED": ("linear-quick/v1", "geometry/v1"),
        "FEATURES": ["knn/v1"],
    },
    peers: {
        "BATCHES": (16,),
        "SETTINGS": (*peers.SETTINGS, *SMALL),
        "source": lambda: None,
        "PROGRAMS": {},
        "ROUNDS": 2,
    },
}
"""Constants of each module that make it tiny; the others' programs are not installed here: `test_peers`."""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Tiny sizes; a run is called in this process."""
    for module, constants in TINY.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    run_command = timing.run_command

    @contextmanager
    def small(scenario, *words):
        kept = {word.partition("=")[0]: word for word in (*words, *SMALL, f"data.cache={tmp_path}/cache")}
        with run_command(scenario, *kept.values()) as made:
            yield made

    def called(command, **_):
        start = command.index("benchmark") + 1
        assert main(list(command[start:])) == 0
        return SimpleNamespace(output="", peak_mib=1.0, returncode=0, stdout="1024\n")

    for module in (timing, overhead):
        monkeypatch.setattr(module, "run_command", small)
    monkeypatch.setattr(timing, "run_process", called)

    def started(command, **_):
        called(command)
        return SimpleNamespace(pid=os.getpid(), poll=lambda: 0, kill=lambda: None, wait=lambda: 0)

    monkeypatch.setattr(scaling, "subprocess", SimpleNamespace(run=called, Popen=started, DEVNULL=None))
    monkeypatch.setattr(overhead, "_program", lambda code: 1.0)  # seconds of another process
    monkeypatch.setattr(peers.environment, "install", lambda *_: sys.executable)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [name for name in MEASUREMENTS if name != "libraries"])  # see test_libraries
def test_it_runs(name, tiny):
    module, _ = MEASUREMENTS[name]
    lines = getattr(importlib.import_module(f"benchmark.speed.{module}"), name)(1, lambda line: None)
    assert lines
    assert all(line.value.median > 0 and report.cells(line) for line in lines)


def test_memory_by_part_is_of_a_fresh_process(tmp_path):
    """Takes the seconds of the imports, which are what is measured."""
    small = ("training.batch_size=8", "data.options.examples=625", f"data.cache={tmp_path}")
    words = (*SMALL[:1], *SMALL[2:], "accelerator=cpu", *small)
    done = subprocess.run(
        [sys.executable, "-m", "benchmark.speed.memory", *words], check=True, capture_output=True, text=True
    )
    parts = json.loads(done.stdout)
    assert tuple(parts) == PARTS
    assert min(parts.values()) >= 0


def test_the_others_workload_has_its_images(tmp_path, monkeypatch):
    data = {**workload.SCENARIO["data"], "cache": str(tmp_path), "options": {"examples": 625, "classes": 10}}
    monkeypatch.setitem(workload.SCENARIO, "data", data)
    assert workload.source.__wrapped__().train.images.shape == (500, 3, 32, 32)
