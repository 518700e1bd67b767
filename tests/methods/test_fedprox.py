import pytest
import torch

from methods import trees
from methods.base import Client, Phase, Visit
from methods.fedprox import Proximal
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract


class TestFedProx(InterfaceContract):
    method = "fedprox"
    equals = (("method.mu=0", "fedavg", "state"),)

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}

    def test_a_pull_changes_the_weights_and_keeps_them_nearer(self, tmp_path):
        def distance(run):
            run.loop.restore()
            before = trees.clone(run.loop.server["weights"])
            run.loop.run_round(0)
            after = run.loop.server["weights"]
            trainable = {part: {k: v for k, v in names.items() if "running" not in k} for part, names in after.items()}
            moved = trees.subtract(trainable, before)
            return sum(float(leaf.square().sum()) for _, leaf in trees.leaves(moved))

        free = distance(run_helpers.build_run(tmp_path / "a", "fedavg", "optimizer.momentum=0"))
        pulled = distance(run_helpers.build_run(tmp_path / "b", "fedprox", "method.mu=10", "optimizer.momentum=0"))
        assert pulled < 0.9 * free

    @pytest.fixture
    def pulled(self, tmp_path):
        method = run_helpers.build_run(tmp_path, "fedprox", "method.mu=0.3", "objective=byol").loop.method
        term = method.addons["proximal"]
        assert isinstance(term, Proximal)
        phase = Phase("fit")
        term.receive(Visit(0, 1, phase, Client(0, 2), {}, {}, torch.Generator()), method)
        return method, term

    def test_the_term_and_its_gradient_start_at_zero(self, pulled):
        method, term = pulled
        value = term(None, None, method)
        value.backward()
        gradients = [parameter.grad for _, parameter in trees.leaves(method.trainable())]
        assert float(value.detach()) == 0
        assert gradients
        assert all(float(gradient.abs().max()) == 0 for gradient in gradients)

    def test_its_gradient_is_mu_times_the_distance_and_spares_targets(self, pulled):
        method, term = pulled
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.add_(0.5)
        value = term(None, None, method)
        value.backward()
        pairs = dict(trees.leaves(method.trainable()))
        numbers = sum(parameter.numel() for parameter in pairs.values())
        assert value.item() == pytest.approx(0.3 / 2 * numbers * 0.25, rel=1e-5)
        for parameter in pairs.values():
            torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.3 * 0.5))
        assert all(parameter.grad is None for parameter in method.objective.target_encoder.parameters())

    def test_plain_gradient_descent_on_the_term_alone_contracts(self, pulled):
        method, term = pulled
        optimizer = torch.optim.SGD(method.parameters(), lr=0.5)
        anchor = trees.clone(method.trainable())
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.add_(1.0)
        term(None, None, method).backward()
        optimizer.step()
        for _, left in trees.leaves(trees.subtract(method.trainable(), anchor)):
            torch.testing.assert_close(left, torch.full_like(left, 1 - 0.5 * 0.3), rtol=1e-5, atol=1e-6)
