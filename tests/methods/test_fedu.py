from typing import ClassVar

import pytest
import torch

from methods.fedavg import FedAvg
from methods.fedu import convolutions, divergence
from methods.networks import resnet18
from tests.methods import toys
from tests.methods.contract import WEIGHTS, InterfaceContract
from tests.run_helpers import difference, same, trained

PREDICTOR = 4 * (8 * 4 + 2 * 4 + 4 * 8 + 8 + 2 * 4)
"""Bytes of BYOL's predictor, 8-4-8 with BatchNorm."""

TARGETS = ("target_encoder", "target_projector")
ALL = ("federation.participation=1",)


class LocalTarget(FedAvg):
    """FedBYOL whose target networks stay on the client."""

    stays = TARGETS


class LocalPredictor(FedAvg):
    """FedBYOL whose target networks stay on the client, and from its second visit on its predictor too."""

    stays = (*TARGETS, "predictor")

    def receive(self, visit):
        predictor = {name: tensor.clone() for name, tensor in self.tensors("predictor").items()}
        super().receive(visit)
        if visit.memory:
            self.load({"predictor": predictor})

    def reply(self, visit):
        message, _ = super().reply(visit)
        return message, {"seen": torch.ones(())}


def limit(folder, method):
    return toys.train_run(folder / method.__name__, method, *ALL, objective="byol").loop.server


class Moving(InterfaceContract):
    """FedU and FedEMA."""

    sent = WEIGHTS + PREDICTOR
    refused: ClassVar = {
        "method.variant=x": "code or paper",
        "encoder.class=tests.methods.toys.linear": "convolutions move, and this encoder has none",
    }

    def test_how_far_clients_have_moved_is_in_the_rounds_line(self, unbroken):
        loop = unbroken.loop
        distances = [float(loop.client_state[k]["memory"]["d"]) for k in loop.streams.cohort(2, 4, 0.5)]
        noted = {"least": min(distances), "mean": pytest.approx(sum(distances) / 2), "most": max(distances)}
        assert loop.history[-1]["notes"]["divergence"] == noted


class TestFedU(Moving):
    method = "fedu"
    refused: ClassVar = {
        **Moving.refused,
        "objective=simclr": "objective=byol",
        "method.threshold=-1": "at least 0",
    }

    def test_an_infinite_threshold_always_takes_the_global_predictor_and_one_of_zero_does_not(self, tmp_path):
        infinite, zero = (trained("fedu", *ALL, f"method.threshold={given}").loop.server for given in (".inf", "0"))
        assert same(infinite, limit(tmp_path, LocalTarget))
        assert same(zero, limit(tmp_path, LocalPredictor))
        of_all = trained("fedavg", *ALL, "objective=byol").loop.server  # its target is not the client's own
        assert difference(of_all, infinite) > 1e-6

    @pytest.mark.parametrize("variant", ["code", "paper"])
    def test_in_between_each_client_decides(self, variant):
        words = ("fedu", *ALL, "schedule.name=constant", f"method.variant={variant}")
        once = trained(*words, "federation.rounds=1").loop
        sent, states = once.server["weights"]["encoder"], [once.client_state[client] for client in range(4)]
        distances = [state["memory"]["d"] for state in states]
        if variant == "paper":
            kernels = convolutions(once.method.objective.encoder)
            own = [{name: state["stays"]["encoder"][name] for name in kernels} for state in states]
            distances = [divergence(weights, sent) for weights in own]
        least, lower, upper, most = sorted(map(float, distances))
        none, some, every, below, above = (
            trained(*words, "federation.rounds=2", f"method.threshold={threshold}").loop.server
            for threshold in (".inf", (lower + upper) / 2, 0, least * 0.99, most * 1.01)
        )
        assert difference(some, every) > 1e-6
        assert difference(some, none) > 1e-6
        assert same(above, none)
        assert same(below, every)

    def test_what_a_client_keeps(self, unbroken):
        memory = unbroken.loop.client_state
        for client in memory.index:
            assert set(memory[client]["stays"]) == {"predictor", *TARGETS}
            assert memory[client]["memory"]["d"] > 0


def test_the_divergence_is_the_mean_distance_of_the_tensors() -> None:
    a = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[1.0]])}
    b = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([[0.0]])}
    assert [float(divergence(*pair)) for pair in ((a, b), (b, a), (a, a))] == [3, 3, 0]


def test_a_resnets_convolutions_without_its_shortcuts() -> None:
    weights = convolutions(resnet18())
    assert len(weights) == 17
    assert all("conv" in name and weight.dim() == 4 for name, weight in weights.items())
