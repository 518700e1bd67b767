"""The measurement of a probe's steps on one thread and on all."""

import os

import torch

from benchmark.speed import threads
from eval import linear


def test_busy_processes_end_with_the_block():
    with threads.busy_cores() as processes:
        assert len(processes) == os.cpu_count()
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)


def test_the_contenders_differ_in_the_threads_of_a_step_alone(monkeypatch):
    monkeypatch.setattr(threads, "TRAIN", 600)
    used, shipped = [], linear.SHARED_STEP
    gradient = linear.gradient_of
    monkeypatch.setattr(linear, "gradient_of", lambda *args: used.append(torch.get_num_threads()) or gradient(*args))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        contenders = threads._contenders()
        for name in (threads.ONE, threads.ALL):
            assert contenders[name]() > 0
    finally:
        torch.set_num_threads(before)
    steps = len(used) // 2
    assert used == [1] * steps + [2] * steps
    assert shipped == linear.SHARED_STEP
