"""Every method on the simulated GPU: the CPU's numbers, steps that wait for nothing, and no stream that overtakes."""

import pytest

from tests import run_helpers
from tests.gpu_helpers import FURTHER, METHODS, train_on_cpu, train_on_gpu

CASES = [
    *(pytest.param(case, id=name) for name, case in METHODS.items()),
    *(pytest.param(case, id=name, marks=pytest.mark.long) for name, case in FURTHER.items()),
]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A case, and the state it ends in on the CPU."""
    return request.param, train_on_cpu(tmp_path_factory.mktemp("cpu"), request.param)


def test_one_by_one_it_has_the_bits_of_the_cpu_and_no_step_waits(case, tmp_path):
    words, state = case
    run = train_on_gpu(tmp_path, words, "executor=one-by-one", streams=False)
    assert run_helpers.same(run.state, state)
    assert run.steps or words[0] == "untrained"
    assert not [event for event in run.waits_in("take_step") if "start_epoch" not in event.functions]
    assert not run.gpu.of("random")  # draws come from streams on the CPU, which are the same everywhere


def test_side_by_side_it_has_them_up_to_rounding_and_no_stream_overtakes(case, tmp_path):
    words, state = case
    run = train_on_gpu(tmp_path, words, "executor=side-by-side", "lanes=2")
    assert run_helpers.difference(run.state["server"], state["server"]) < 1e-4
    assert not run.gpu.races
    assert not run.gpu.of("constant")
    steps = [steps for lane in run.run.loop.executor.lanes for steps in lane.steps.values()]
    assert not any(each.failed for each in steps)
    assert run.gpu.replays > run.gpu.captures > 0
