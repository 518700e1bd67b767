"""Every method on the simulated GPU: the CPU's numbers, steps that wait for nothing, and no stream that overtakes."""

import pytest

from benchmark.federation.loop import FederatedLoop
from datamodules import federated
from methods import trees
from tests import run_helpers
from tests.device import DeviceTensor, SimulatedGPU
from tests.gpu_helpers import DISTINCT, EVERYONE, FURTHER, METHODS, PROTOCL, train_on_cpu, train_on_gpu

SHORTER = {"fedsc": ("method.passes=1",)}
CASES = [
    pytest.param((*case, *SHORTER.get(name, ())), id=name, marks=() if name in DISTINCT else pytest.mark.long)
    for name, case in {**METHODS, **FURTHER}.items()
]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A case, and the state it ends in on the CPU."""
    return request.param, train_on_cpu(tmp_path_factory.mktemp("cpu"), request.param)


def test_one_by_one_it_has_the_bits_of_the_cpu_and_no_step_waits(case, tmp_path):
    words, state = case
    run = train_on_gpu(tmp_path, words, "deterministic=true", streams=False)
    assert run_helpers.same(run.state, state)
    assert all(isinstance(leaf, DeviceTensor) for _, leaf in trees.leaves(run.run.loop.server))
    assert run.steps or words[0] == "untrained"
    assert not [event for event in run.waits_in("take_step") if "start_epoch" not in event.functions]
    assert not run.gpu.of("random")  # draws come from streams on the CPU, which are the same everywhere


def test_side_by_side_it_has_them_up_to_rounding_and_no_stream_overtakes(case, tmp_path):
    words, state = case
    run = train_on_gpu(tmp_path, words, "executor=parallel", "lanes=2")
    assert run_helpers.difference(run.state["server"], state["server"]) < 1e-4
    assert not run.gpu.races
    assert not run.gpu.of("constant")
    steps = [steps for lane in run.run.loop.executor.lanes for steps in lane.steps.values()]
    assert not any(each.failed for each in steps)
    assert run.gpu.replays > run.gpu.captures > 0


class StoppedError(Exception):
    """Ends a run in its second round."""


def in_its_second_round(run):
    """Trains a run until its first visit of the second round is over."""

    def stop(result):
        if result.visit.round:
            raise StoppedError

    run.loop.callbacks = [run_helpers.OnVisitEnd(stop)]
    with pytest.raises(StoppedError):
        run.loop.fit()


@pytest.mark.parametrize(
    "name", ["ssd", "fedema", *(pytest.param(name, marks=pytest.mark.long) for name in ("fedavg", "scaffold"))]
)
def test_a_run_goes_on_on_the_other_device(name, tmp_path):
    words = METHODS[name]
    settings = ("devices=1", "executor=sequential", *EVERYONE, *words[1:])
    unbroken = train_on_cpu(tmp_path / "unbroken", words)
    in_its_second_round(run_helpers.build_run(tmp_path / "to_gpu", words[0], "accelerator=cpu", *settings))
    run = train_on_gpu(tmp_path / "to_gpu", words, "executor=sequential", streams=False)
    assert len(run.visits) < 8
    assert run_helpers.same(run.state, unbroken)
    assert all(isinstance(leaf, DeviceTensor) for _, leaf in trees.leaves(run.run.loop.server))
    with SimulatedGPU(streams=False):
        in_its_second_round(run_helpers.build_run(tmp_path / "to_cpu", words[0], "accelerator=cuda", *settings))
    assert run_helpers.same(train_on_cpu(tmp_path / "to_cpu", words), unbroken)


@pytest.mark.parametrize("whole", [federated.WHOLE, 0], ids=["client by client", "chunk by chunk"])
def test_images_of_a_large_data_set_are_copied_when_they_are_used(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(federated, "RESIDENT", 0)
    monkeypatch.setattr(federated, "WHOLE", whole)
    state = train_on_cpu(tmp_path / "cpu", METHODS["fedavg"])
    run = train_on_gpu(tmp_path / "gpu", METHODS["fedavg"], "executor=sequential", streams=False)
    assert run_helpers.same(run.state, state)
    assert not run.run.data.residents


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(("fedsc",), id="fedsc", marks=pytest.mark.long),
        pytest.param(("fedavg", *PROTOCL, "partition.alpha=1"), id="protocl"),
    ],
)
def test_what_changes_by_round_and_client_needs_no_new_recording(tmp_path, monkeypatch, case):
    """FedSC's weight grows from round to round, and ProtoCL knows the cluster of each image of a client."""
    counts, run_round = [], FederatedLoop.run_round

    def counted(loop, round):
        line, gpu = run_round(loop, round), SimulatedGPU.current
        counts.append((gpu.captures, gpu.replays))
        return line

    monkeypatch.setattr(FederatedLoop, "run_round", counted)
    settings = ("federation.participation=1", "federation.rounds=4", "training.steps=2")
    train_on_gpu(tmp_path, case, "executor=parallel", "lanes=2", tried=settings)
    *_, (captures, replays), (captures_after, replays_after) = counts
    assert replays_after > replays > 0
    assert captures_after == captures
