from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.scaffold import effective_steps
from tests.methods.contract import ENCODER, PROJECTOR, WEIGHTS, MethodContract
from tests.run_helpers import build_run, collect_visits, difference, trained


class TestScaffold(MethodContract):
    method = "scaffold"
    choices = ("method.server_rate=0.5",)
    # before any client has a control variate a round is FedAvg's; sums of deltas differ in the last bit only
    equals = (("federation.rounds=1", "fedavg federation.rounds=1 method.weighting=clients", 1e-6),)
    refused: ClassVar = {
        "optimizer.class=torch.optim.Adam optimizer.lr=0.001": "SGD",
        "schedule.per=step": r"schedule\.per",  # with momentum
        "server_optimizer.class=methods.server.Momentum": "its own server step",
    }

    def bill(self, run):
        controls = {("fit", way, entry): 4 * (ENCODER + PROJECTOR) for way, entry in (("down", "c"), ("up", "delta_c"))}
        return {("fit", "down", "weights"): WEIGHTS, ("fit", "up", "delta_w"): WEIGHTS, **controls}

    def test_the_server_control_is_the_mean_of_all_clients(self, tmp_path):
        loop = build_run(tmp_path, "scaffold").loop
        loop.restore()
        for round in range(3):
            loop.run_round(round)
            controls = [loop.client_state[k]["memory"]["c"] for k in loop.client_state]
            mean = trees.map(lambda *each: sum(each) / 4, controls[0], *controls[1:])
            assert difference(loop.server["c"], mean) < 1e-6
        assert len(controls) == 4  # half of them a round: after 3 rounds every client was visited

    def test_controls_change_training_from_the_second_round_on(self, unbroken):
        plain = trained("fedavg", "method.weighting=clients").loop
        assert difference(unbroken.loop.server["weights"], plain.server["weights"]) > 1e-4

    def test_one_step_of_plain_sgd_makes_the_control_the_gradient(self, tmp_path):
        """Option II with K = 1 from zero controls: c_i+ is the gradient at x."""
        run, seen = build_run(tmp_path, "scaffold", "optimizer.momentum=0", "training.steps=1"), {}
        run.loop.restore()
        method = run.loop.method
        adjust = type(method).adjust_gradients

        def spy(gradients):
            seen.update(trees.clone(gradients))
            return adjust(method, gradients)

        spy.__func__ = adjust
        method.adjust_gradients = spy
        method.activity = {}  # whose measurement calls the hook too
        checked = collect_visits(run, lambda done: difference(done.client_state["memory"]["c"], seen))
        run.loop.run_round(0)
        assert len(checked) == 2
        assert max(checked) < 1e-5


def test_effective_steps_are_those_of_sgd() -> None:
    """Distance that `torch.optim.SGD` moves one weight under a constant gradient of 1 at learning rate 1."""
    for momentum in (0.0, 0.5, 0.9):
        weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
        for steps in range(1, 30):
            weight.grad = torch.ones((), dtype=torch.float64)
            optimizer.step()
            assert -weight.item() == pytest.approx(effective_steps(momentum, steps), rel=1e-9)
    assert effective_steps(0.9, 100) == pytest.approx(910.0024, abs=1e-4)
