from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.fedu import convolutions, divergence
from methods.networks import resnet18
from tests.methods.contract import WEIGHTS, InterfaceContract
from tests.run_helpers import difference, same, trained

PREDICTOR = 4 * (8 * 4 + 2 * 4 + 4 * 8 + 8 + 2 * 4)
"""Bytes of BYOL's predictor, 8-4-8 with BatchNorm."""

TARGETS = ("target_encoder", "target_projector")
ALL = ("federation.participation=1",)
STATEFUL = (*ALL, "objective=byol", "objective.stateful=true")
"""FedBYOL whose target networks stay on the client."""


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
        noted = {"min": min(distances), "mean": pytest.approx(sum(distances) / 2), "max": max(distances)}
        assert loop.history[-1]["notes"]["divergence"] == noted


class TestFedU(Moving):
    method = "fedu"
    refused: ClassVar = {**Moving.refused, "objective=simclr": "objective=byol", "method.threshold=-1": "at least 0"}

    def test_an_infinite_threshold_always_takes_the_global_predictor_and_one_of_zero_does_not(self):
        taken, kept = (
            trained("fedu", *ALL, f"method.threshold={given}").loop.server["weights"] for given in (".inf", "0")
        )
        assert same(taken, trained("fedavg", *STATEFUL).loop.server["weights"])
        own = trained("fedavg", *STATEFUL, "method.stays=[predictor]").loop.server["weights"]
        assert same({part: kept[part] for part in own}, own)

    @pytest.mark.parametrize("variant", ["code", "paper"])
    def test_in_between_each_client_decides(self, variant):
        words = ("fedu", *ALL, "schedule.name=constant", f"method.variant={variant}")
        once = trained(*words, "federation.rounds=1").loop
        sent, states = once.server["weights"]["encoder"], [once.client_state[client] for client in range(4)]
        distances = [state["memory"]["d"] for state in states]
        if variant == "paper":
            kernels = convolutions(once.method.objective.encoder)
            own = [trees.select(state["stays"]["encoder"], kernels) for state in states]
            distances = [divergence(weights, sent) for weights in own]
        least, lower, upper, most = sorted(map(float, distances))
        none, some, every, below, above = (
            trained(*words, "federation.rounds=2", f"method.threshold={threshold}").loop.server
            for threshold in (".inf", (lower + upper) / 2, 0, least * 0.99, most * 1.01)
        )
        assert all(difference(some, other) > 1e-6 for other in (every, none))
        assert (same(above, none), same(below, every)) == (True, True)

    def test_what_a_client_keeps(self, unbroken):
        memory = unbroken.loop.client_state
        for client in memory.index:
            assert set(memory[client]["stays"]) == {"predictor", *TARGETS}
            assert memory[client]["memory"]["d"] > 0


def test_the_divergence_is_the_mean_distance_of_the_tensors_here_a_resnets_convolutions_without_shortcuts():
    a = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[1.0]])}
    b = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([[0.0]])}
    assert [float(divergence(*pair)) for pair in ((a, b), (b, a), (a, a))] == [3, 3, 0]
    weights = convolutions(resnet18())
    assert len(weights) == 17
    assert all("conv" in name and weight.dim() == 4 for name, weight in weights.items())
