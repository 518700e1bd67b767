"""LARS against a slow version of its equations; the groups that leave parameters out of weight decay."""

import numpy as np
import pytest
import torch
from torch import nn

from methods.base import MethodError
from methods.optimizers import LARS, decay_matrices_only


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

    optimizer = LARS([used, unused], lr=0.1)
    assert float(optimizer.step(closure)) == 4
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("setting", "line"),
    [({"lr": -1.0}, "optimizer.lr=-1.0"), ({"trust": 0.0}, "optimizer.trust=0.0"), ({"momentum": 1.0}, "below 1")],
)
def test_impossible_settings_are_refused(setting, line):
    with pytest.raises(MethodError, match=line):
        LARS([nn.Parameter(torch.ones(1))], **setting)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW, LARS])
def test_only_matrices_decay(cls):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    for parameter in network.parameters():
        nn.init.constant_(parameter, 2.0)
        parameter.grad = torch.zeros_like(parameter)
    cls(decay_matrices_only(network.parameters()), lr=0.1, weight_decay=0.5).step()
    shrunk = [name for name, parameter in network.named_parameters() if not (parameter == 2.0).all()]
    assert shrunk == ["0.weight", "3.weight"]
