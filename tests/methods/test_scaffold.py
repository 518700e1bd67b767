from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.scaffold import effective_steps
from tests import run_helpers
from tests.methods.contract import ENCODER, PROJECTOR, WEIGHTS, MethodContract


class TestScaffold(MethodContract):
    method = "scaffold"
    # before any client has a control variate a round is FedAvg's; sums of deltas differ in the last bit only
    equals = (("federation.rounds=1", "fedavg federation.rounds=1 method.weighting=clients", 1e-6),)
    refused: ClassVar = {
        "optimizer.class=torch.optim.Adam optimizer.lr=0.001": "SGD",
        "schedule.per=step": r"schedule\.per",  # with momentum
        "server_optimizer.class=methods.server.Momentum": "its own server step",
    }

    def bill(self, run):
        control = 4 * (ENCODER + PROJECTOR)
        return {
            ("fit", "down", "weights"): WEIGHTS,
            ("fit", "down", "c"): control,
            ("fit", "up", "delta_w"): WEIGHTS,
            ("fit", "up", "delta_c"): control,
        }

    def test_the_server_control_is_the_mean_of_all_clients(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "scaffold")
        loop = run.loop
        loop.restore()
        for round in range(3):
            loop.run_round(round)
            controls = [loop.client_state[k]["memory"]["c"] for k in loop.client_state]
            mean = trees.map(lambda *each: sum(each) / len(loop.clients), controls[0], *controls[1:])
            assert run_helpers.difference(loop.server["c"], mean) < 1e-6
        assert len(controls) == len(loop.clients)  # half of them a round: after 3 rounds every client was visited

    def test_controls_change_training_from_the_second_round_on(self, unbroken):
        plain = run_helpers.trained("fedavg", "method.weighting=clients")
        assert run_helpers.difference(unbroken.loop.server["weights"], plain.loop.server["weights"]) > 1e-4

    def test_one_step_of_plain_sgd_makes_the_control_the_gradient(self, tmp_path):
        """Option II with K = 1 from zero controls: c_i+ is the gradient at x."""
        overrides = ("optimizer.momentum=0", "training.steps=1")
        run = run_helpers.build_run(tmp_path, "scaffold", *overrides)
        seen = {}
        loop = run.loop
        loop.restore()
        method = loop.method
        adjust = type(method).adjust_gradients

        def spy(gradients):
            seen.update(trees.clone(gradients))
            return adjust(method, gradients)

        spy.__func__ = adjust
        method.adjust_gradients = spy
        checked = run_helpers.collect_visits(
            run, lambda done: run_helpers.difference(done.client_state["memory"]["c"], seen)
        )
        loop.run_round(0)
        assert len(checked) == 2
        assert max(checked) < 1e-5

    @pytest.mark.parametrize(("steps", "golden"), [(1, 1.0), (10, 41.3811), (100, 910.0024)])
    def test_effective_steps_under_momentum(self, steps, golden):
        assert effective_steps(0.9, steps) == pytest.approx(golden, abs=1e-4)
        assert effective_steps(0.0, steps) == steps

    def test_effective_steps_are_what_torch_does(self):
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        for _ in range(7):
            weight.grad = torch.ones(1)
            optimizer.step()
        assert float(-weight.detach()) == pytest.approx(0.1 * effective_steps(0.9, 7), rel=1e-6)
