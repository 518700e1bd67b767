"""Two ranks with a simulated GPU each, on one machine and on two: what their collectives are asked for, and the result.

NCCL takes tensors on the GPU alone. Objects are pickled, and a GPU's tensor in one would be unpickled on the GPU of the
same index, which another machine or a restricted process does not have.
"""

import contextlib
import itertools
import json
import pickle
from pathlib import Path
from unittest import mock

import lightning.fabric.strategies.ddp as ddp
import pytest
import torch
import torch.distributed as dist

from benchmark.federation.callbacks import Callback
from methods import trees
from tests import run_helpers
from tests.device import GPU, DeviceTensor, SimulatedGPU, mapped, on_cpu
from tests.gpu_helpers import EVERYONE, METHODS, unfused_attention

ONE_MACHINE = [{"LOCAL_RANK": k, "NODE_RANK": "0"} for k in "01"]
TORCHRUN = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
TWO_MACHINES = [{**TORCHRUN, "NODE_RANK": k, "RANK": k} for k in "01"]
PLACES = {"one machine": (ONE_MACHINE, "devices=2"), "two machines": (TWO_MACHINES, "devices=1", "nodes=2")}
SHORT = {("one machine", "fedavg"), ("two machines", "fedavg"), ("one machine", "fedema")}
"""Cases of `make test`."""
CASES = [
    pytest.param(*case, marks=() if case in SHORT else pytest.mark.long) for case in itertools.product(PLACES, METHODS)
]
OBJECTS = 1 << 12
"""Bytes of the objects of a rank in a round of FedAvg: outlines, losses and sizes of two visits."""


class Collectives(Callback):
    """Collectives of each round: name -> bytes of each call."""

    def __init__(self):
        self.rounds = [{}]

    def count(self, name, nbytes):
        self.rounds[-1].setdefault(name, []).append(nbytes)

    def on_round_end(self, loop, line):
        self.rounds.append({})

    @contextlib.contextmanager
    def counted(self):
        """Context in which gloo stands in for NCCL, and refuses what NCCL refuses."""

        def given(call):
            def collective(tensor, *args, **kwargs):
                assert isinstance(tensor, DeviceTensor), f"NCCL refuses a tensor on the CPU in {call.__name__}"
                self.count(call.__name__, tensor.numel() * tensor.element_size())
                return call(on_cpu(tensor), *args, **kwargs)

            return collective

        gather = dist.all_gather_object

        def gather_objects(values, value, *args, **kwargs):
            leaves = torch.utils._pytree.tree_leaves(_without_replies(value))
            assert not any(isinstance(leaf, DeviceTensor) for leaf in leaves), "a tensor of this rank's GPU for others"
            self.count("objects", len(pickle.dumps(value)))
            return gather(values, value, *args, **kwargs)

        with (
            mock.patch.object(ddp, "_get_default_process_group_backend_for_device", return_value="gloo"),
            mock.patch.object(dist, "all_reduce", given(dist.all_reduce)),
            mock.patch.object(dist, "broadcast", given(dist.broadcast)),
            mock.patch.object(dist, "all_gather_object", gather_objects),
        ):
            yield


def _without_replies(value):
    """The same with the attributes of objects instead of objects, so that all tensors are found."""
    if isinstance(value, tuple | list):
        return [_without_replies(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_replies(item) for key, item in value.items()}
    return _without_replies(vars(value)) if hasattr(value, "__dict__") and not torch.is_tensor(value) else value


def train_rank(folder: Path, method: str, overrides: tuple[str, ...]) -> None:
    """Trains one rank's share and writes its state and collectives."""
    collectives = Collectives()
    placed = ("accelerator=cuda", "executor=sequential", *overrides)
    with SimulatedGPU(streams=False), collectives.counted():
        experiment = run_helpers.build_experiment(folder, method, *placed)
        run = experiment.build()
        run.loop.callbacks = [collectives]
        assert run.fabric.device == GPU
        run.loop.fit()
        rank, state = run.fabric.global_rank, mapped(lambda x: on_cpu(x).clone(), run_helpers.state(run))
    torch.save(state["server"], folder / f"rank{rank}.pt")
    (folder / f"rank{rank}.json").write_text(json.dumps(collectives.rounds))
    experiment.processes.close()  # in order: a slower rank would take this one for dead


def on_two_gpus(folder: Path, place: str, case: tuple[str, ...]):
    """The servers of both ranks, and the first one's collectives by round."""
    environments, *devices = PLACES[place]
    folder.mkdir()
    work = (run_helpers.call_by_name, __name__, "train_rank", folder, case[0], (*EVERYONE, *case[1:], *devices))
    children = [run_helpers.in_child(*work, environment=rank) for rank in run_helpers.by_hand(*environments)]
    assert [run_helpers.finish(child) for child in children] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)], json.loads((folder / "rank0.json").read_text())


@pytest.mark.ranks
@pytest.mark.parametrize(("place", "name"), CASES)
def test_two_gpus_train_what_one_cpu_trains(tmp_path, place, name):
    servers, rounds = on_two_gpus(tmp_path / "gpus", place, METHODS[name])
    with unfused_attention():
        alone = run_helpers.train_run(tmp_path / "one", METHODS[name][0], "devices=1", *EVERYONE, *METHODS[name][1:])
    for server in servers:
        assert run_helpers.difference(server, alone.loop.server) < 1e-5
    assert run_helpers.same(*servers)
    assert rounds[-1] == {}
    assert len(rounds[1]["objects"]) <= 3 * len(list(alone.loop.method.plan(1)))
    if name == "fedavg":  # the weights, their weight and their number, summed in float64; the new server's weights
        nbytes = trees.nbytes(alone.loop.server)
        assert rounds[1] | {"objects": []} == {"objects": [], "all_reduce": [2 * nbytes + 16], "broadcast": [nbytes]}
        assert sum(rounds[1]["objects"]) < OBJECTS
