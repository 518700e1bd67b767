import pytest
import torch

from methods import trees
from methods.base import Client, Phase, Visit
from tests.methods.contract import InterfaceContract
from tests.run_helpers import build_run


class TestFedProx(InterfaceContract):
    method = "fedprox"
    equals = (("method.mu=0", "fedavg", "state"),)

    def test_a_pull_keeps_the_weights_nearer(self, tmp_path):
        def moved(*words):
            loop = build_run(tmp_path / words[0], *words, "optimizer.momentum=0").loop
            loop.restore()
            before = trees.select(trees.clone(loop.server["weights"]), loop.method.trainable())
            loop.run_round(0)
            return float(trees.squared_norm(trees.subtract(before, loop.server["weights"])))

        assert moved("fedprox", "method.mu=10") < 0.9 * moved("fedavg")

    def test_the_gradient_is_mu_times_the_distance_and_spares_targets(self, tmp_path):
        method = build_run(tmp_path, "fedprox", "method.mu=0.3", "objective=byol").loop.method
        term = method.addons["proximal"]
        term.receive(Visit(0, 1, Phase("fit"), Client(0, 2), {}, {}, torch.Generator()), method)
        trained = [parameter for _, parameter in trees.leaves(method.trainable())]
        for distance in (0.0, 0.5):  # from the received weights
            with torch.no_grad():
                for parameter in method.parameters():
                    parameter.add_(distance)
                    parameter.grad = None
            (value := term(None, None, method)).backward()
            numbers = sum(parameter.numel() for parameter in trained)
            assert value.item() == pytest.approx(0.3 / 2 * numbers * distance**2, rel=1e-5)
            for parameter in trained:
                torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.3 * distance))
        assert all(parameter.grad is None for parameter in method.objective.target_encoder.parameters())
