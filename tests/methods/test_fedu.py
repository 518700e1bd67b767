from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch

from methods.fedavg import FedAvg
from methods.fedu import convolutions, divergence
from methods.networks import resnet18
from tests import run_helpers
from tests.methods import toys
from tests.methods.contract import WEIGHTS, InterfaceContract

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
    return toys.train_run(folder, method, *ALL, objective="byol")


class TestFedU(InterfaceContract):
    method = "fedu"
    refused: ClassVar = {
        "objective=simclr": "objective=byol",
        "method.threshold=-1": "at least 0",
        "method.variant=x": "code or paper",
        "encoder.class=tests.methods.toys.linear": "convolutions move, and this encoder has none",
    }

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + PREDICTOR for way in ("up", "down")}

    def test_how_far_clients_have_moved_is_in_the_rounds_line(self, unbroken):
        noted = unbroken.loop.history[-1]["notes"]["divergence"]
        distances = [
            float(unbroken.loop.client_state[k]["memory"]["d"]) for k in unbroken.loop.streams.cohort(2, 4, 0.5)
        ]
        assert noted == {"least": min(distances), "mean": pytest.approx(sum(distances) / 2), "most": max(distances)}

    def test_an_infinite_threshold_always_takes_the_global_predictor(self, tmp_path):
        run = run_helpers.train_run(tmp_path / "a", "fedu", *ALL, "method.threshold=.inf")
        assert run_helpers.same(run.loop.server, limit(tmp_path / "b", LocalTarget).loop.server)
        of_all = run_helpers.trained("fedavg", *ALL, "objective=byol")  # its target is not the client's own
        assert run_helpers.difference(of_all.loop.server, run.loop.server) > 1e-6

    def test_with_a_threshold_of_zero_it_does_not(self, tmp_path):
        run = run_helpers.train_run(tmp_path / "a", "fedu", *ALL, "method.threshold=0")
        assert run_helpers.same(run.loop.server, limit(tmp_path / "b", LocalPredictor).loop.server)

    @pytest.mark.parametrize("variant", ["code", "paper"])
    def test_in_between_each_client_decides(self, variant, tmp_path):
        overrides = (*ALL, "schedule.name=constant", f"method.variant={variant}")
        once = run_helpers.train_run(tmp_path / "once", "fedu", *overrides, "federation.rounds=1").loop
        names = list(convolutions(once.method.objective.encoder))
        sent = once.server["weights"]["encoder"]
        distances = []
        for client in range(4):
            stored = once.client_state[client]
            apart = stored["memory"]["d"]
            if variant == "paper":
                apart = divergence({name: stored["stays"]["encoder"][name] for name in names}, sent)
            distances.append(float(apart))
        distances.sort()
        between = (distances[1] + distances[2]) / 2
        runs = {
            threshold: run_helpers.train_run(
                tmp_path / str(threshold), "fedu", *overrides, "federation.rounds=2", f"method.threshold={threshold}"
            ).loop.server
            for threshold in (0, between, distances[3] * 1.01, distances[0] * 0.99, ".inf")
        }
        assert run_helpers.difference(runs[between], runs[0]) > 1e-6
        assert run_helpers.difference(runs[between], runs[".inf"]) > 1e-6
        assert run_helpers.same(runs[distances[3] * 1.01], runs[".inf"])
        assert run_helpers.same(runs[distances[0] * 0.99], runs[0])

    def test_what_a_client_keeps(self, unbroken):
        memory = unbroken.loop.client_state
        for client in memory.index:
            assert set(memory[client]["stays"]) == {"predictor", *TARGETS}
            assert memory[client]["memory"]["d"] > 0


class TestDivergence:
    def test_the_mean_distance_of_the_tensors(self) -> None:
        a = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[1.0]])}
        b = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([[0.0]])}
        assert float(divergence(a, b)) == 3
        assert float(divergence(a, a)) == 0
        assert float(divergence(b, a)) == 3

    def test_a_resnets_convolutions_without_its_shortcuts(self) -> None:
        weights: Mapping[str, torch.Tensor] = convolutions(resnet18())
        assert len(weights) == 17
        assert all("conv" in name for name in weights)
        assert all(weight.dim() == 4 for weight in weights.values())
