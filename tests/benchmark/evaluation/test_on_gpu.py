"""Every protocol on the simulated GPU: the CPU's scores, deterministic operations, and no wait at each step."""

import pytest

from eval.protocol import PROTOCOLS
from tests.device import SimulatedGPU
from tests.run_helpers import build_run

ONE_ROUND = ("devices=1", "federation.rounds=1")
NEEDS_MORE = {"by-client/v1", "clients/v1", "clients/v2", "semi-orchestra/v2"}
"""Protocols of inputs that the tiny scenario lacks: named test clients, held-out images."""
SHORT = {"linear/v1", "linear-orchestra/v2", "semi-orchestra/v1", "knn/v1", "geometry/v1", "label-free/v1", "drift/v1"}
"""Those of `make test`."""
WAITS_AT_EACH_STEP = {"linear-lbfgs/v1"}
"""A line search compares every value that it has computed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trained run, which other runs of the same config take up."""
    folder = tmp_path_factory.mktemp("trained")
    build_run(folder, "fedavg", "accelerator=cpu", *ONE_ROUND).loop.fit()
    return folder


def scores(folder, name, *overrides):
    run = build_run(folder, "fedavg", *ONE_ROUND, *overrides)
    run.loop.restore()
    return run.evaluate([name]).record["scores"][name]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else (pytest.mark.long, pytest.mark.timeout(1200)))
        for name in PROTOCOLS
        if name not in NEEDS_MORE
    ],
)
def test_a_protocol_has_the_scores_of_the_cpu_and_waits_rarely(folder, name):
    expected = scores(folder, name, "accelerator=cpu")
    with SimulatedGPU(streams=False) as gpu:
        found = scores(folder, name, "accelerator=cuda", "deterministic=true")
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True)
    steps = [event for event in gpu.of("wait") if {"fit_linear", "fit_lbfgs", "fine_tuned"} & set(event.functions)]
    assert len(steps) < 50 or name in WAITS_AT_EACH_STEP  # before and after the steps, of each classifier
    assert len(steps) > 500 or name not in WAITS_AT_EACH_STEP
