"""The losses against published golden numbers, slow NumPy versions of the papers' formulas, and identities.

X and Y are three images in two dimensions, Y the second view of X; the golden numbers were worked out from them.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods import maths
from methods.base import Outputs
from methods.fedsc import FedSC
from methods.networks import convnet
from methods.objectives.spectral import Spectral

X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
Y = torch.tensor([[1.0, 0.5], [-0.2, 1.0], [0.5, 2.0]])
H, Z = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 0.0, 0.0]])
U, SCALE = torch.full((1, 4), 0.5), torch.tensor([10.0, 1.0, 1.0, 1.0])
VARIANTS = ("paper", "code")
FORMS = ("full", "one-way", "zeroed", "itself")


def fedsc_loss(alpha: float) -> Tensor:
    """FedSC's batch loss on X and Y at mu = 4, the other clients' correlation being half the identity."""
    objective = Spectral(convnet(widths=(2,), strides=(1,)), projector=(2,), mu=4.0, negatives="correlation")
    method = FedSC(objective)
    method.context = {"others": {"R": torch.eye(2) / 2}, "cross": {"weight": torch.tensor(1.0 - alpha)}}
    return method.loss(Outputs((), (maths.clip_rows(X, 4), maths.clip_rows(Y, 4))), None)


GOLDEN: dict[str, tuple[Callable[[], Tensor | float], float]] = {
    "NT-Xent, tau .5": (lambda: maths.nt_xent(X, Y, 0.5), 1.168602),
    "one-way, tau .5": (lambda: maths.nt_xent(X, Y, 0.5, "one-way"), 0.726142),
    "zeroed, tau .5": (lambda: maths.nt_xent(X, Y, 0.5, "zeroed"), 1.218591),
    "itself, tau .5": (lambda: maths.nt_xent(X, Y, 0.5, "itself"), 1.455655),
    "BYOL": (lambda: maths.byol_regression(X, Y) + maths.byol_regression(Y, X), 0.356666),
    "SimSiam": (lambda: (maths.negative_cosine(X, Y) + maths.negative_cosine(Y, X)) / 2, -0.910834),
    "alignment": (lambda: maths.alignment(X, Y), 0.178333),
    "uniformity of both": (lambda: maths.uniformity(torch.cat([X, Y])), -0.949985),
    "spectral, mu 4": (lambda: maths.spectral_contrastive(maths.clip_rows(X, 4), maths.clip_rows(Y, 4)) / 4, -0.438393),
    "relational, paper": (lambda: maths.relational(X, Y, torch.eye(2), 0.5, "paper"), 0.026460),
    "relational, code": (lambda: maths.relational(X, Y, torch.eye(2), 0.5, "code"), 0.027938),
    "global contrast, code": (lambda: maths.global_contrastive(X, Y, 0.5, "code"), 1.168602),
    "FedSC, alpha 1": (lambda: fedsc_loss(1), -1.006365),
    "FedSC, alpha .5": (lambda: fedsc_loss(0.5), -1.120801),
    "DSR, code": (lambda: maths.dimension_scaling(U, SCALE, "code"), 0.847981),
    "DSR, paper": (lambda: maths.dimension_scaling(U, SCALE, "paper"), 20.25),
    "PD, code": (lambda: maths.projector_distillation(H, Z, "code"), 2.838317),
    "PD, paper": (lambda: maths.projector_distillation(H, Z, "paper"), 0.629019),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_number(name: str):
    compute, expected = GOLDEN[name]
    assert float(compute()) == pytest.approx(expected, abs=1e-5, rel=0)


# --- the papers' formulas, one image and one pair at a time, in double precision


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.sqrt((v * v).sum())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(unit(a) @ unit(b))


def softmax(v: np.ndarray) -> np.ndarray:
    return np.exp(v) / np.exp(v).sum()


def slow_nt_xent(a: np.ndarray, b: np.ndarray, form="full", dictionary=(), temperature: float = 0.3) -> float:
    """dictionary: unit rows that are in every denominator."""
    items, total = [*a, *b], 0.0
    anchors = range(len(items) if form in ("full", "zeroed") else len(a))
    for i in anchors:
        j = (i + len(a)) % len(items)
        others = {"full": [k for k in range(len(items)) if k != i], "one-way": range(len(a), len(items))}
        scores = [cosine(items[i], items[k]) for k in others.get(form, range(len(items)))]
        if form == "zeroed":
            scores[i] = 0.0
        scores += [unit(items[i]) @ row for row in dictionary]
        total -= cosine(items[i], items[j]) / temperature - np.log(sum(np.exp(np.array(scores) / temperature)))
    return total / len(anchors)


def with_dictionary(form: str) -> tuple[Callable[..., Tensor], Callable[..., float]]:
    return (
        lambda a, b: maths.nt_xent(a, b, 0.3, form, torch.eye(a.shape[1])[[0, 1, 0]]),
        lambda a, b: slow_nt_xent(a, b, form, np.eye(a.shape[1])[[0, 1, 0]]),
    )


def slow_spectral(a: np.ndarray, b: np.ndarray) -> float:
    n = len(a)
    attraction = sum(a[i] @ b[i] for i in range(n)) / n
    return -2 * attraction + sum((a[i] @ b[j]) ** 2 for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def slow_alignment(a: np.ndarray, b: np.ndarray, alpha: float = 2) -> float:
    return sum(np.linalg.norm(unit(x) - unit(y)) ** alpha for x, y in zip(a, b, strict=True)) / len(a)


def slow_uniformity(a: np.ndarray, t: float = 2) -> float:
    n = len(a)
    kernel = [np.exp(-t * ((unit(a[i]) - unit(a[j])) ** 2).sum()) for i in range(n) for j in range(i + 1, n)]
    return float(np.log(sum(kernel) / len(kernel)))


def slow_clip(a: np.ndarray, mu: float = 1.5) -> np.ndarray:
    return np.stack([row if np.linalg.norm(row) < mu**0.5 else unit(row) * mu**0.5 for row in a])


def slow_correlation(a: np.ndarray) -> np.ndarray:
    return sum(np.outer(row, row) for row in a) / len(a)


def slow_distillation(h: np.ndarray, z: np.ndarray, variant: str = "paper") -> float:
    total = 0.0
    for x, y in zip(h, z, strict=True):
        p, q = (softmax(x), softmax(y)) if variant == "paper" else (softmax(y / 0.5), softmax(x / 0.5))
        total += sum(p[k] * np.log(p[k] / q[k]) for k in range(len(p)))
    return total / len(h)


PAIRS: dict[str, tuple[Callable[..., Tensor], Callable[..., float]]] = {
    "nt_xent": (lambda a, b: maths.nt_xent(a, b, 0.3), slow_nt_xent),
    **{f"nt_xent, {form}, with a dictionary": with_dictionary(form) for form in FORMS},
    "negative_cosine": (maths.negative_cosine, lambda a, b: -np.mean([*map(cosine, a, b)])),
    "byol_regression": (maths.byol_regression, slow_alignment),
    "spectral_contrastive": (maths.spectral_contrastive, slow_spectral),
    "alignment": (maths.alignment, slow_alignment),
    "alignment, alpha 1": (lambda a, b: maths.alignment(a, b, 1), lambda a, b: slow_alignment(a, b, 1)),
    "uniformity": (lambda a, b: maths.uniformity(a), lambda a, b: slow_uniformity(a)),
    "uniformity, t 3": (lambda a, b: maths.uniformity(a, t=3), lambda a, b: slow_uniformity(a, 3)),
    "clip_rows": (lambda a, b: (maths.clip_rows(a, 1.5) * b).sum(), lambda a, b: (slow_clip(a) * b).sum()),
    "correlation": (
        lambda a, b: (maths.correlation(a) @ maths.correlation(b)).sum(),
        lambda a, b: (slow_correlation(a) @ slow_correlation(b)).sum(),
    ),
    "distillation, paper": (maths.projector_distillation, slow_distillation),
    "distillation, code": (
        lambda a, b: maths.projector_distillation(a, b, "code"),
        lambda a, b: slow_distillation(a, b, "code"),
    ),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numeric_gradient(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    gradient = np.zeros_like(at)
    for index in np.ndindex(*at.shape):
        ahead, behind = at.copy(), at.copy()
        ahead[index] += step
        behind[index] -= step
        gradient[index] = (function(ahead) - function(behind)) / (2 * step)
    return gradient


@pytest.mark.parametrize("name", PAIRS)
def test_value_and_gradients_are_the_papers(name: str):
    fast, slow = PAIRS[name]
    for seed, (rows, dim) in enumerate([(2, 3), (5, 4), (9, 6)]):
        a, b = random(2, rows, dim, seed=seed).unbind()
        a.requires_grad_(), b.requires_grad_()
        x, y = a.detach().double().numpy(), b.detach().double().numpy()
        value = fast(a, b)
        value.backward()
        assert value.item() == pytest.approx(slow(x, y), rel=1e-5, abs=1e-6)
        of_a, of_b = numeric_gradient(lambda v, y=y: slow(v, y), x), numeric_gradient(lambda v, x=x: slow(x, v), y)
        np.testing.assert_allclose(a.grad, of_a, atol=2e-5, rtol=1e-4)
        np.testing.assert_allclose(torch.zeros_like(b) if b.grad is None else b.grad, of_b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_dimension_scaling_is_the_papers_and_stops_the_targets_gradient(variant: str):
    z, scale = normalize(random(6, 5), dim=1).requires_grad_(), torch.tensor([10.0, 1, 10, 1, 1])
    value = maths.dimension_scaling(z, scale, variant)
    value.backward()
    x, d = z.detach().double().numpy(), scale.double().numpy()
    target = np.stack([row * d if variant == "paper" else unit(row * d) for row in x])

    def distance(v: np.ndarray) -> float:  # the target is a constant
        squared = ((v - target) ** 2).sum()
        return squared / len(v) if variant == "paper" else np.sqrt(squared) / len(v)

    assert value.item() == pytest.approx(distance(x), rel=1e-5)
    np.testing.assert_allclose(z.grad, numeric_gradient(distance, x), atol=1e-5)
    torch.testing.assert_close(maths.dimension_scaling(z, torch.diag(scale), variant), value)  # a basis of axes
    Q = torch.linalg.qr(random(5, 5, seed=1)).Q
    torch.testing.assert_close(maths.dimension_scaling(z @ Q.T, (Q * scale) @ Q.T, variant), value)
    for one in (torch.ones(5), torch.eye(5)):
        nothing = maths.dimension_scaling(z, one, variant)
        assert nothing.item() == pytest.approx(0, abs=1e-6)
        (gradient,) = torch.autograd.grad(nothing, z)
        torch.testing.assert_close(gradient, torch.zeros_like(z), atol=1e-6, rtol=0)


# --- what a comparison of values does not see


@pytest.mark.parametrize("form", FORMS)
def test_nt_xent_with_an_empty_dictionary_has_the_bits_of_one_without(form: str):
    a, b = random(2, 6, 5).unbind()
    assert torch.equal(maths.nt_xent(a, b, 0.1, form, a[:0]), maths.nt_xent(a, b, 0.1, form))
    assert float(maths.nt_xent(a[:1], b[:1], 0.5)) == 0  # one pair has no negatives


def test_clipping_leaves_short_rows_alone_and_a_row_of_zeros_has_a_gradient():
    z = torch.cat([random(40, 5), torch.zeros(1, 5)]).requires_grad_()
    clipped, short = maths.clip_rows(z, 4.0), z.norm(dim=1) < 2
    assert 0 < int(short.sum()) < len(z) - 1
    assert torch.equal(clipped[short], z[short])
    assert torch.autograd.grad(clipped.sum(), z)[0].isfinite().all()


LOSSES = (maths.nt_xent, maths.spectral_contrastive, maths.barlow_twins, maths.vicreg)


def of_codes(a: Tensor, b: Tensor) -> Tensor:
    return maths.swav(torch.stack([a, b]), torch.stack([b, a]))


@pytest.mark.parametrize("loss", [*LOSSES, of_codes, lambda a, b: maths.correlation(a).square().sum()])
def test_mixed_precision_does_not_reach_into_the_losses(loss: Callable[..., Tensor]):
    a, b = random(2, 32, 64).unbind()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = loss(a, b)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, loss(a, b))
