import pytest
import torch

from methods import trees
from methods.base import Client, Phase, Visit
from tests.methods.contract import InterfaceContract
from tests.methods.toys import shift
from tests.run_helpers import build_run


class TestFedProx(InterfaceContract):
    method = "fedprox"
    equals = (("method.mu=0", "fedavg", "state"),)
    choices = ("method.mu=0",)

    def test_the_gradient_is_mu_times_the_distance_and_spares_targets(self, tmp_path):
        method = build_run(tmp_path, "fedprox", "method.mu=0.3", "objective=byol").loop.method
        term = method.addons["proximal"]
        term.receive(Visit(0, 1, Phase("fit"), Client(0, 2), {}, {}, torch.Generator()), method)
        trained = [parameter for _, parameter in trees.leaves(method.trainable())]
        for distance in (0.0, 0.5):  # from the received weights
            shift(method, distance)
            method.zero_grad()
            (value := term(None, None, method)).backward()
            numbers = sum(parameter.numel() for parameter in trained)
            assert value.item() == pytest.approx(0.3 / 2 * numbers * distance**2, rel=1e-5)
            for parameter in trained:
                torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.3 * distance))
        assert all(parameter.grad is None for parameter in method.objective.target_encoder.parameters())
