"""Softmax regression: gradients against autograd, the minimum against scikit-learn, and the number of passes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from eval import logistic_regression
from eval.logistic_regression import BLOCK, fit_lbfgs, gradient_of, split

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(n, d=6, classes=4):
    generator = seeded(5)
    y = torch.randint(classes, (n,), generator=generator)
    x = torch.randn(classes, d, generator=generator)[y] + torch.randn(n, d, generator=generator)
    return x.double(), y


def correlated(n=900, d=40, classes=5):
    """Centred float32 features whose variances span ten orders of magnitude, with overlapping classes."""
    x, y = draw(n, d, classes)
    turn = torch.linalg.qr(torch.randn(d, d, generator=seeded(1)).double()).Q
    x = (x - x.mean(dim=0)) * torch.logspace(-4, 1, d, dtype=torch.float64) @ turn
    return (x / x.square().mean().sqrt()).float(), y


@pytest.fixture
def passes(monkeypatch):
    """A list that grows with each pass over the features."""
    calls, original = [], logistic_regression._blockwise_gradient
    counted = lambda *arguments: calls.append(1) or original(*arguments)  # noqa: E731
    monkeypatch.setattr(logistic_regression, "_blockwise_gradient", counted)
    return calls


def assert_close(x, parameters, expected, atol):
    """Whether two classifiers of five classes give the rows about the same probabilities; returns these."""
    ours, theirs = (F.linear(x.double(), *split(p.double(), 5)).softmax(dim=1) for p in (parameters, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
    return ours, theirs


@pytest.mark.parametrize("n", [1, 37, BLOCK, 2 * BLOCK + 37])
def test_gradients_are_those_of_autograd(n):
    x, y = draw(n)
    buffer = torch.randn(4 * 7, generator=seeded()).double().requires_grad_()
    weight, bias = split(buffer, 4)
    assert weight.shape == (4, 6)
    loss = F.cross_entropy(F.linear(x, weight, bias), y)
    loss.backward()
    out = torch.full_like(buffer, torch.nan)
    gradient_of(x, y, weight.detach(), bias.detach(), out)
    torch.testing.assert_close(out, buffer.grad)
    out.fill_(7.0)
    blockwise = logistic_regression._blockwise_gradient(
        logistic_regression._blocks(x, y), weight.detach(), bias.detach(), out
    )
    torch.testing.assert_close(out, buffer.grad)
    torch.testing.assert_close(blockwise, loss.detach())


@pytest.mark.parametrize("strength", [1e-1, 1e-3])
def test_finds_scikit_learns_optimum(strength):
    x, y = (torch.from_numpy(each[:500]) for each in load_digits(return_X_y=True))
    x /= 16
    theirs = LogisticRegression(C=1 / (strength * len(x)), tol=1e-8, solver="newton-cholesky").fit(x.numpy(), y.numpy())
    parameters = fit_lbfgs(x, y, 10, strength, tolerance=1e-8, max_iter=5000)
    weight, bias = parameters[:-10].view(10, -1), parameters[-10:]
    np.testing.assert_allclose(weight.numpy(), theirs.coef_, atol=1e-3)
    # adding one number to every bias changes no probability
    np.testing.assert_allclose(bias - bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-3)
    start = fit_lbfgs(x, y, 10, strength, start=torch.randn(10 * 65, generator=seeded()).double(), tolerance=1e-8)
    torch.testing.assert_close(start[:-10], parameters[:-10], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("strength", "most"), [(1e-1, 25), (1e-5, 100)])
def test_correlated_features_and_small_strengths_cost_few_passes(passes, strength, most):
    """Without preconditioning these take 32 and 274 passes; the reference is solved in double precision."""
    x, y = correlated()
    parameters = fit_lbfgs(x, y, 5, strength)
    assert len(passes) <= most
    exact = fit_lbfgs(x.double(), y, 5, strength, tolerance=1e-9, max_iter=5000)
    ours, theirs = assert_close(x, parameters, exact, 5e-3)
    assert (ours.argmax(dim=1) == theirs.argmax(dim=1)).float().mean() >= 0.995


def test_the_gram_changes_the_time_and_not_the_solution():
    x, y = draw(300)
    expected = fit_lbfgs(x, y, 4, 1e-2, tolerance=1e-9)
    for gram in (torch.eye(6).double(), torch.diag(torch.logspace(-2, 2, 6, dtype=torch.float64))):
        # a wrong gram takes hundreds of iterations, on some CPUs more than the default's 500
        parameters = fit_lbfgs(x, y, 4, 1e-2, tolerance=1e-9, max_iter=5000, gram=gram)
        torch.testing.assert_close(parameters[:-4], expected[:-4], rtol=0, atol=1e-6)


def test_a_gram_made_indefinite_by_rounding_is_accepted():
    x, y = correlated()
    gram = x.T @ x / len(x)
    rounded = gram - 2e-6 * gram.trace() * torch.eye(len(gram))
    assert torch.linalg.eigvalsh(rounded.double())[0] / 5 < -1.2e-5  # below minus the strength
    assert_close(x, *(fit_lbfgs(x, y, 5, 1e-5, gram=matrix) for matrix in (rounded, gram)), 1e-2)


def test_the_solver_stops_where_the_precision_ends(passes):
    x, y = correlated()
    parameters = fit_lbfgs(x, y, 5, 1e-4, tolerance=0.0, max_iter=5000)
    assert len(passes) < 200
    assert_close(x, parameters, fit_lbfgs(x.double(), y, 5, 1e-4, tolerance=1e-9, max_iter=5000), 1e-3)


def test_features_of_inference_mode_are_accepted():
    x, y = draw(60)
    with torch.inference_mode():
        inside = x * 1
    assert torch.equal(fit_lbfgs(inside, y, 4, 1e-2), fit_lbfgs(x, y, 4, 1e-2))
