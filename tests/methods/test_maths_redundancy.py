"""Barlow Twins, VICReg and SwAV against slow NumPy versions of the papers' formulas, and at collapse."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import quad, trapezoid
from torch import Tensor

from methods.maths import barlow_twins, cosines, sinkhorn, sketched_gaussianity, swav, vicreg
from tests.methods.test_maths import cosine, numeric_gradient, random, softmax

SIZES = ((2, 3), (5, 4), (9, 6))


def doubles(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).double()


# --- the papers' formulas, one entry at a time


def slow_barlow(a: np.ndarray, b: np.ndarray, weight: float = 5e-3, epsilon: float = 1e-5) -> float:
    n, d = a.shape
    total = 0.0
    for i in range(d):
        for j in range(d):
            x, y = a[:, i] - sum(a[:, i]) / n, b[:, j] - sum(b[:, j]) / n
            norms = np.sqrt(sum(x * x) + n * epsilon) * np.sqrt(sum(y * y) + n * epsilon)
            correlation = sum(x[k] * y[k] for k in range(n)) / norms
            total += (1 - correlation) ** 2 if i == j else weight * correlation**2
    return total


def slow_vicreg(a: np.ndarray, b: np.ndarray, variant="paper", weights=(25, 25, 1), gamma=1.0, epsilon=1e-4) -> float:
    invariance, variance, covariance, d = ((a - b) ** 2).sum() / len(a), 0.0, 0.0, a.shape[1]
    for matrix in (np.cov(a.T), np.cov(b.T)):
        variance += sum(max(0.0, gamma - np.sqrt(matrix[j, j] + epsilon)) for j in range(d)) / d
        covariance += sum(matrix[i, j] ** 2 for i in range(d) for j in range(d) if i != j) / d
    if variant == "code":
        invariance, variance = invariance / d, variance / 2
    return weights[0] * invariance + weights[1] * variance + weights[2] * covariance


def slow_codes(scores: np.ndarray, epsilon: float = 0.05, iterations: int = 3) -> np.ndarray:
    """The scaling of exp(scores / epsilon) in SwAV's appendix: prototypes to 1 / K, then images to 1 / B."""
    plan = np.exp(scores / epsilon)
    n, k = plan.shape
    for _ in range(iterations):
        plan /= k * plan.sum(axis=0)
        plan /= n * plan.sum(axis=1, keepdims=True)
    return n * plan


def slow_swav(views: list[np.ndarray], prototypes: np.ndarray, codes: np.ndarray, temperature: float = 0.1) -> float:
    """Every view predicts every other view's code; the codes are constants."""
    total, pairs = 0.0, 0
    for assigned, code in enumerate(codes):
        for view, rows in enumerate(views):
            if view == assigned:
                continue
            pairs += 1
            for row, q in zip(rows, code, strict=True):
                p = softmax(np.array([cosine(row, c) / temperature for c in prototypes]))
                total -= sum(q[k] * np.log(p[k]) for k in range(len(q))) / len(rows)
    return total / pairs


def directions(width: int) -> np.ndarray:
    """Three unit vectors, always the same."""
    drawn = np.cos(np.arange(3.0 * width)).reshape(width, 3)
    return drawn / np.linalg.norm(drawn, axis=0)


def slow_sketched(z: np.ndarray) -> float:
    """B times the integral over the whole of [-3, 3], by SciPy's trapezoidal rule over complex exponentials."""
    t, found = np.linspace(-3, 3, 33), []
    for direction in directions(z.shape[1]).T:
        phi = np.mean([np.exp(1j * t * (row @ direction)) for row in z], axis=0)
        found.append(trapezoid(np.abs(phi - np.exp(-(t**2) / 2)) ** 2 * np.exp(-(t**2) / 2), t))
    return len(z) * float(np.mean(found))


def sketched(z: Tensor) -> Tensor:
    return sketched_gaussianity(z, torch.tensor(directions(z.shape[1])))


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., float]]] = {
    "barlow_twins": (barlow_twins, slow_barlow),
    "barlow_twins, eq. 2 itself": (lambda a, b: barlow_twins(a, b, 0.3, 0), lambda a, b: slow_barlow(a, b, 0.3, 0)),
    "vicreg, code": (vicreg, lambda a, b: slow_vicreg(a, b, "code")),
    "vicreg, paper": (lambda a, b: vicreg(a, b, variant="paper"), slow_vicreg),
    "vicreg, other settings": (
        lambda a, b: vicreg(a, b, 1, 3, 2, gamma=1.4, epsilon=0.2),
        lambda a, b: slow_vicreg(a, b, "code", (1, 3, 2), 1.4, 0.2),
    ),
    "sketched_gaussianity": (
        lambda a, b: sketched(a) + 2 * sketched(b),
        lambda a, b: slow_sketched(a) + 2 * slow_sketched(b),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients_are_the_papers(name: str):
    fast, slow = LOSSES[name]
    for seed, (rows, features) in enumerate(SIZES):
        a, b = doubles(2, rows, features, seed=seed).unbind()
        x, y = a.numpy().copy(), b.numpy().copy()
        a.requires_grad_(), b.requires_grad_()
        value = fast(a, b)
        value.backward()
        assert value.item() == pytest.approx(slow(x, y), rel=1e-12, abs=1e-12)
        of_a, of_b = numeric_gradient(lambda v, y=y: slow(v, y), x), numeric_gradient(lambda v, x=x: slow(x, v), y)
        np.testing.assert_allclose(a.grad, of_a, atol=1e-6, rtol=0)
        np.testing.assert_allclose(b.grad, of_b, atol=1e-6, rtol=0)


@pytest.mark.parametrize("views", [2, 4])
def test_swav_and_its_gradients_are_the_papers(views: int):
    """With four views, two have codes, as under multi-crop."""
    for seed, (rows, features) in enumerate(SIZES[:2]):
        z, prototypes = doubles(views, rows, features, seed=seed), doubles(7, features, seed=9)
        scores = torch.stack([cosines(view, prototypes) for view in z])
        codes = torch.stack([sinkhorn(scores[view], 0.05, 3, weighted=True) for view in range(2)])
        expected = np.stack([slow_codes(scores[view].numpy().copy()) for view in range(2)])
        np.testing.assert_allclose(codes, expected, atol=1e-12, rtol=0)
        x, c = [view.numpy().copy() for view in z], prototypes.numpy().copy()
        z.requires_grad_(), prototypes.requires_grad_()
        value = swav(torch.stack([cosines(view, prototypes) for view in z]), codes)
        value.backward()
        assert value.item() == pytest.approx(slow_swav(x, c, expected), rel=1e-12)
        of_views = numeric_gradient(lambda v, c=c, q=expected: slow_swav([*v], c, q), np.stack(x))
        np.testing.assert_allclose(z.grad, of_views, atol=1e-6, rtol=0)
        of_prototypes = numeric_gradient(lambda v, x=x, q=expected: slow_swav(x, v, q), c)
        np.testing.assert_allclose(prototypes.grad, of_prototypes, atol=1e-6, rtol=0)


def test_seventeen_knots_are_enough_for_the_integral():
    """Epps and Pulley's statistic over [-3, 3] by SciPy's adaptive integration, which knows no knots."""

    def integrand(t: float, *projected: float) -> float:
        normal = np.exp(-(t**2) / 2)
        return float(abs(np.exp(1j * t * np.array(projected)).mean() - normal) ** 2 * normal)

    for seed, (rows, features) in enumerate(SIZES):
        z = 0.7 * doubles(rows, features, seed=seed)
        found = [quad(integrand, -3, 3, args=tuple(z.numpy() @ each))[0] for each in directions(features).T]
        assert sketched(z).item() == pytest.approx(rows * np.mean(found), rel=1e-3)


# --- collapse


def test_equal_embeddings_have_vicregs_variance_term_alone():
    z = doubles(1, 6).expand(5, 6).clone().requires_grad_()
    loss = vicreg(z, z, gamma=2.0, epsilon=0.01)
    assert loss.item() == pytest.approx(25 * (2.0 - 0.01**0.5), rel=1e-12)
    assert torch.autograd.grad(loss, z)[0].isfinite().all()


def test_constant_features_add_one_to_barlow_and_no_gradient():
    same = torch.full((8, 6), 0.3, dtype=torch.float64).requires_grad_()
    value = barlow_twins(same, same)
    value.backward()
    assert value.item() == pytest.approx(6, rel=1e-6)
    torch.testing.assert_close(same.grad, torch.zeros_like(same), atol=1e-6, rtol=0)
    a, b = doubles(2, 9, 4).unbind()
    with_constant = [torch.cat([z, torch.ones(9, 1, dtype=z.dtype)], dim=1) for z in (a, b)]
    assert barlow_twins(*with_constant).item() == pytest.approx(barlow_twins(a, b).item() + 1, rel=1e-12)
    single = torch.full((7, 5), 0.1)  # whose mean may differ from it by rounding, which epsilon keeps small
    assert barlow_twins(single, single).item() == pytest.approx(5, rel=1e-4)
