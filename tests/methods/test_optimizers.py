"""Optimisers of clients and of the server: against slow versions, each other and the papers' formulas, and in a run."""

import numpy as np
import pytest
import torch
from torch import nn

from methods import trees
from methods.base import MethodError
from methods.optimizers import LARS, decay_matrices_only
from methods.server import Adam, Momentum, Yogi
from tests.run_helpers import build_run, difference, run_until_killed, same, state, train_run, trained

SGD = "server_optimizer.class=methods.server.Momentum"


def lars_by_hand(weights, gradients, lr, momentum, decay, trust):
    """The weights after a step for each list of gradients, in NumPy and float64."""
    weights, buffers = [w.copy() for w in weights], [np.zeros_like(w) for w in weights]
    for each in gradients:
        for k, gradient in enumerate(each):
            step = gradient + decay * weights[k]
            if weights[k].ndim > 1:
                size, change = (np.sqrt((values**2).sum()) for values in (weights[k], step))
                step = step * (trust * size / change if size > 0 and change > 0 else 1.0)
            buffers[k] = momentum * buffers[k] + step
            weights[k] = weights[k] - lr * buffers[k]
    return weights


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 1e-2)])
def test_lars_equals_its_equations(momentum, decay):
    shapes = [(4, 3), (5,), (2, 3, 2, 2), (3, 3), (3, 3)]
    draw = np.random.default_rng(0)
    weights = [draw.normal(size=shape) for shape in shapes]
    weights[3][:] = 0  # without a norm of its own: a plain step
    gradients = [[draw.normal(size=shape) for shape in shapes] for _ in range(4)]
    for each in gradients:
        each[4][:] = 0
    parameters = [nn.Parameter(torch.tensor(weight)) for weight in weights]
    optimizer = LARS(parameters, lr=0.3, momentum=momentum, weight_decay=decay, trust=0.02)
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    expected = lars_by_hand(weights, gradients, 0.3, momentum, decay, 0.02)
    for parameter, weight in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-12, atol=1e-14)


def test_lars_returns_the_loss_of_a_closure_and_leaves_parameters_without_gradient():
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))

    def closure():
        loss = (used**2).sum()
        loss.backward()
        return loss

    assert LARS([used, unused], lr=0.1).step(closure).detach() == 4
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))
    for setting, line in (
        (("lr", -1.0), "optimizer.lr=-1.0"),
        (("trust", 0.0), "trust=0.0"),
        (("momentum", 1.0), "below 1"),
    ):
        with pytest.raises(MethodError, match=line):
            LARS([used], **dict([setting]))


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW, LARS])
def test_only_matrices_decay(cls):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    for parameter in network.parameters():
        nn.init.constant_(parameter, 2.0)
        parameter.grad = torch.zeros_like(parameter)
    cls(decay_matrices_only(network.parameters()), lr=0.1, weight_decay=0.5).step()
    shrunk = [name for name, parameter in network.named_parameters() if not (parameter == 2.0).all()]
    assert shrunk == ["0.weight", "3.weight"]


# --- of the server


def tree(*values: float):
    return {"encoder": {"w": torch.tensor(values)}}


def test_momentum_by_hand():
    server = Momentum(lr=0.5, momentum=0.9)
    weights, velocity = server.step(tree(1.0, 2.0), tree(2.0, 2.0), server.init(tree(1.0, 2.0)))
    torch.testing.assert_close(weights, tree(1.5, 2.0))
    weights, velocity = server.step(weights, tree(1.5, 3.0), velocity)
    torch.testing.assert_close(velocity["velocity"], tree(0.9, 1.0))
    torch.testing.assert_close(weights, tree(1.95, 2.5))


@pytest.mark.parametrize("kind", [Adam, Yogi])
def test_adaptive_steps_by_hand(kind):
    lr, b1, b2, tau = 0.1, 0.8, 0.9, 0.01
    server = kind(lr=lr, momentum=b1, decay=b2, adaptivity=tau)
    w, m, v = 1.0, 0.0, tau**2
    weights, moments = tree(w), server.init(tree(w))
    for delta in (0.5, -0.2, 1e-3, 0.0):
        weights, moments = server.step(weights, trees.add(weights, tree(delta)), moments)
        m = b1 * m + (1 - b1) * delta
        sign = (v > delta**2) - (v < delta**2)
        v = b2 * v + (1 - b2) * delta**2 if kind is Adam else v - (1 - b2) * delta**2 * sign
        w += lr * m / (v**0.5 + tau)
        assert weights["encoder"]["w"].item() == pytest.approx(w, rel=1e-4)
        assert moments["v"]["encoder"]["w"].item() == pytest.approx(v, rel=1e-3)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ssd", "fedsc", "fedema", "ldawa"])
def test_momentum_of_zero_is_the_mean(method):
    words = (method, "federation.rounds=2", *(("method.passes=1",) if method == "fedsc" else ()))
    plain, none = (trained(*words, *own).loop.server for own in ((), (SGD, "server_optimizer.momentum=0")))
    assert difference({key: value for key, value in none.items() if key != "optimizer"}, plain) < 1e-5


@pytest.mark.parametrize("kind", ["Momentum", "Adam", "Yogi"])
def test_a_run_is_resumed_to_the_same_bits_and_sends_nothing_more(kind, tmp_path):
    words = ("fedavg", f"server_optimizer.class=methods.server.{kind}")
    whole, plain = trained(*words), trained("fedavg").loop
    assert difference(whole.loop.server["weights"], plain.server["weights"]) > 1e-6
    assert whole.loop.ledger.lines == plain.ledger.lines
    run_until_killed(tmp_path, "fedavg", "written", 1, "fit", *words[1:])
    assert same(state(train_run(tmp_path, *words)), state(whole))


def test_running_statistics_take_the_mean():
    words = ("fedavg", "federation.rounds=1")
    plain, own = (trained(*words, *more).loop.server["weights"] for more in ((), (SGD, "server_optimizer.lr=0.25")))
    for (path, expected), (_, actual) in zip(trees.leaves(plain), trees.leaves(own), strict=True):
        assert torch.equal(expected, actual) == ("running" in path[-1])


def test_what_cannot_be_is_refused(tmp_path):
    for override, message in {"lr=0": "above 0", "momentum=1": "at least 0 and below 1"}.items():
        with pytest.raises(MethodError, match=message):
            build_run(tmp_path, "fedavg", SGD, f"server_optimizer.{override}")
