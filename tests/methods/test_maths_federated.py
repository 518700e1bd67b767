"""Federated terms, solvers and noise: slow NumPy versions, identities, reference solvers and an accountant."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import minimize
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import normalize

from methods import maths
from methods.fedu2 import unified
from methods.ldawa import layer_weights
from methods.objectives.protocl import NARROWEST, relative_concentration
from tests.methods.test_maths import VARIANTS, cosine, numeric_gradient, random, softmax, unit

# --- FedX


def slow_relational(a: np.ndarray, b: np.ndarray, ref: np.ndarray, temperature: float, variant: str) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        r, s = (softmax(np.array([cosine(v, other) for other in ref]) / temperature) for v in (x, y))
        m = (r + s) / 2
        pairs = [(m, r), (m, s)] if variant == "code" else [(r, m), (s, m)]
        total += sum((p * np.log(p / q)).sum() for p, q in pairs) / 2
    return total / len(a)


def slow_global(a: np.ndarray, b: np.ndarray, temperature: float) -> float:
    total = 0.0
    for i, x in enumerate(a):
        scores = [cosine(x, y) for y in (b[i], *np.delete(a, i, axis=0), *np.delete(b, i, axis=0))]
        total -= np.log(softmax(np.array(scores) / temperature)[0])
    return total / len(a)


@pytest.mark.parametrize("variant", VARIANTS)
def test_relational_is_the_papers_with_all_three_gradients(variant: str):
    given = [tensor.requires_grad_() for tensor in (random(5, 4), random(5, 4, seed=1), random(7, 4, seed=2))]
    value = maths.relational(*given, 0.3, variant)
    value.backward()
    plain = [tensor.detach().double().numpy() for tensor in given]
    assert value.item() == pytest.approx(slow_relational(*plain, 0.3, variant), rel=1e-5)
    for argument, tensor in enumerate(given):

        def moved(v: np.ndarray, argument: int = argument) -> float:
            return slow_relational(*(v if i == argument else plain[i] for i in range(3)), 0.3, variant)

        np.testing.assert_allclose(tensor.grad, numeric_gradient(moved, plain[argument]), atol=2e-5, rtol=1e-4)


def test_global_contrast_is_equation_9():
    a, b = random(2, 6, 4).unbind()
    x, y = a.double().numpy(), b.double().numpy()
    a.requires_grad_()
    value = maths.global_contrastive(a, b, 0.3)
    value.backward()
    assert value.item() == pytest.approx(slow_global(x, y, 0.3), rel=1e-5)
    np.testing.assert_allclose(a.grad, numeric_gradient(lambda v: slow_global(v, y, 0.3), x), atol=2e-5, rtol=1e-4)


# --- MoCo and ProtoCL


def test_info_nce_with_one_batch_in_the_queue_is_the_two_batch_form():
    q, k, earlier = random(5, 4), random(5, 4, seed=1), normalize(random(3, 4, seed=2), dim=1)
    slow = 0.0
    for x, y in zip(q.double().numpy(), k.double().numpy(), strict=True):
        scores = [cosine(x, row) / 0.2 for row in (y, *earlier.double().numpy())]
        slow -= np.log(softmax(np.array(scores))[0])
    queue = torch.cat([earlier, 100 * torch.ones(6, 4)])  # rows not yet filled with keys do not count
    valid = torch.arange(9) < 3
    assert float(maths.info_nce(q, k, queue, valid, 0.2)) == pytest.approx(slow / 5, rel=1e-5)
    assert float(maths.info_nce(q, k, queue, torch.zeros_like(valid), 0.2)) == 0


def test_prototype_nce_is_a_softmax_over_the_prototypes_there_are():
    q, c = random(4, 3), normalize(random(3, 3, seed=1), dim=1)
    phi, assigned = torch.tensor([0.1, 0.3, 0.2]), torch.tensor([0, 2, 1, 1])
    slow = 0.0
    for x, i in zip(q.double().numpy(), assigned.tolist(), strict=True):
        slow -= np.log(softmax(np.array([cosine(x, c[j].double().numpy()) / float(phi[j]) for j in range(3)]))[i])
    missing = torch.cat([c, torch.zeros(2, 3)]), torch.cat([phi, torch.full((2,), math.inf)])
    assert float(maths.prototype_nce(q, *missing, assigned)) == pytest.approx(slow / 4, rel=1e-5)
    alone = maths.prototype_nce(q, c[:1], phi[:1], torch.zeros(4, dtype=torch.long))
    assert float(alone) == 0  # there is no other prototype


def test_k_means_ends_where_scikit_learns_does_from_the_same_start():
    x = torch.cat([random(40, 3, seed=k) + 6 * random(1, 3, seed=90 + k) for k in range(4)])
    start = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(5))[:4]]
    centres, nearest = maths.k_means(x, 4, torch.Generator().manual_seed(5), iterations=50)
    reference = KMeans(4, init=start.numpy(), n_init=1, max_iter=50, tol=0).fit(x.numpy())
    np.testing.assert_allclose(centres, reference.cluster_centers_, atol=1e-4)
    assert nearest.tolist() == reference.labels_.tolist()
    centres, nearest = maths.k_means(torch.ones(6, 2), 3, torch.Generator().manual_seed(0))
    assert torch.equal(centres, torch.ones(3, 2))  # a centre without rows is kept
    assert nearest.tolist() == [0] * 6


def test_concentrations_are_equation_12_and_never_next_to_nothing():
    rows, centres = random(60, 4), random(6, 4, seed=1)
    nearest = torch.cdist(rows, centres).argmin(dim=1)
    nearest[nearest == 5] = 4
    nearest[0] = 5  # a cluster of one row
    widths = []
    for k in range(5):
        members = rows[nearest == k]
        total = sum(float((row - centres[k]).norm()) for row in members)
        widths.append(total / len(members) / math.log(len(members) + 10))
    widths = np.array([*widths, max(widths)])
    widths = widths.clip(np.percentile(widths, 10), np.percentile(widths, 90))
    np.testing.assert_allclose(relative_concentration(rows, centres, nearest), widths / widths.mean(), rtol=1e-5)
    rows = torch.cat([1 + 1e-6 * random(30, 2), 3 * random(4, 2, seed=1)])  # near copies of one image
    centres = torch.cat([torch.ones(3, 2), torch.zeros(2, 2)])
    widths = relative_concentration(rows, centres, torch.tensor([0] * 10 + [1] * 10 + [2] * 10 + [3, 3, 4, 4]))
    torch.testing.assert_close(widths[:3], torch.full((3,), NARROWEST))
    assert float(widths[3:].min()) > 0.5
    same = torch.ones(6, 2)  # where no cluster has a width they are alike
    torch.testing.assert_close(relative_concentration(same, same[:2], torch.tensor([0, 0, 0, 1, 1, 1])), torch.ones(2))


# --- FedDecorr


def test_decorrelation_is_the_mean_squared_correlation_up_to_the_batch():
    h = random(24, 7) @ random(7, 7, seed=1)
    rho = np.corrcoef(h.double().numpy().T)
    off = (rho**2).sum() - (np.diag(rho) ** 2).sum()
    assert float(maths.decorrelation(h)) == pytest.approx(23**2 / 24 * off / (7 * 6), rel=1e-4)
    assert float(maths.decorrelation(h, "paper")) == pytest.approx((rho**2).sum() / 49, rel=1e-4)


# --- FedU2


def slow_sliced(z: np.ndarray, samples: np.ndarray, tangents: np.ndarray, projections: np.ndarray) -> float:
    def logarithm(p: np.ndarray, x: np.ndarray) -> np.ndarray:
        angle = np.arccos(p @ x)
        return angle / np.sin(angle) * (x - np.cos(angle) * p)

    distances = []
    for p, directions in zip(map(unit, tangents), projections, strict=True):
        for w in directions:
            rows, drawn = (np.sort([logarithm(p, unit(x)) @ w for x in each]) for each in (z, samples))
            distances.append(np.mean((rows - drawn) ** 2))
    return float(np.mean(distances))


def test_sliced_wasserstein_is_its_definition():
    given = [random(6, 4), random(6, 4, seed=1), random(3, 4, seed=2), random(3, 2, 4, seed=3)]
    plain = [tensor.double().numpy() for tensor in given]
    z = given[0].requires_grad_()
    value = maths.sliced_wasserstein(*given)
    value.backward()
    assert value.item() == pytest.approx(slow_sliced(*plain), rel=1e-4)
    gradient = numeric_gradient(lambda v: slow_sliced(v, *plain[1:]), plain[0])
    np.testing.assert_allclose(z.grad, gradient, atol=2e-4, rtol=1e-3)
    samples, tangents, directions = random(32, 8), random(16, 8, seed=1), random(16, 6, 8, seed=2)
    points = tangents[:8].clone().requires_grad_()  # where the gradient of the angle is infinite
    maths.sliced_wasserstein(points, samples[:8], tangents, directions).backward()
    assert points.grad.isfinite().all()


def slowest(G: np.ndarray) -> float:
    """The least w^T G w over the simplex by scipy, from several starts."""
    n = len(G)
    constraint = {"type": "eq", "fun": lambda w: w.sum() - 1}
    starts = [np.full(n, 1 / n), *np.eye(n)]
    runs = [
        minimize(lambda w: w @ G @ w, start, jac=lambda w: 2 * G @ w, bounds=[(0, 1)] * n, constraints=[constraint],
                 method="SLSQP", options={"ftol": 1e-14, "maxiter": 500})
        for start in starts
    ]  # fmt: skip
    return min(run.fun for run in runs)


SHAPES = ((1, 3), (2, 5), (3, 2), (5, 40), (10, 4), (20, 10))
DRAWN = [random(*shape, seed=seed) + 0.5 for shape in SHAPES for seed in range(3)]
KNOWN = [torch.eye(2), torch.eye(5), torch.tensor([[2.0], [1.0]]), torch.tensor([[1.0], [-1.0]])]


@pytest.mark.parametrize("u", [*DRAWN, *KNOWN])
def test_min_norm_meets_the_conditions_of_optimality_and_scipy(u: Tensor):
    G = u.double() @ u.double().T
    w = maths.min_norm(G)
    assert float(w.min()) >= 0
    assert float(w.sum()) == pytest.approx(1, abs=1e-12)
    least, slope = float(w @ G @ w), G @ w
    assert float(slope.min()) >= least - 1e-6  # optimality: no vector lowers the norm further
    assert float((slope * (w > 0)).max()) <= least + 1e-6  # complementary slackness
    assert least == pytest.approx(slowest(G.numpy()), abs=1e-6)


def test_a_unified_update():
    u = random(30)
    torch.testing.assert_close(unified([u, u, u]), u)
    torch.testing.assert_close(unified([u]), u)
    assert float(unified([u, -u]).norm()) < 1e-6
    torch.testing.assert_close(unified([u, torch.zeros(30)]), u)  # a zero update does not count
    assert torch.equal(unified([torch.zeros(30)] * 2), torch.zeros(30))
    torch.testing.assert_close(unified([3 * u, 3 * u], "unit"), 2 * u / u.norm())
    several = list(random(4, 30, seed=1) + 0.3)
    step = unified(several)
    assert all(float(step @ update) > 0 for update in several)  # the step agrees with every client's update
    torch.testing.assert_close(unified(several[::-1]), step)


# --- L-DAWA


def test_layer_weights_are_cosines_to_the_global_layer_and_never_exceed_one():
    reference = {"w": torch.tensor([1.0, 0.0]), "mean": torch.tensor([1.0, 1.0]), "scalar": torch.tensor(2.0)}
    trained = {name: reference[name] for name in ("w", "scalar")}

    def weights(*w: float) -> dict[str, float]:
        sent = {"w": torch.tensor(w), "mean": torch.tensor([-5.0, 5.0]), "scalar": torch.tensor(-1.0)}
        return {name: float(leaf) for name, leaf in layer_weights(sent, reference, trained).items()}

    for w, expected in (((1.0, 1.0), math.sqrt(0.5)), ((0.0, 1.0), 0), ((-3.0, 0.0), -1), ((0.0, 0.0), 1)):
        assert weights(*w)["w"] == pytest.approx(expected)
    assert weights(7.0, 0.0) == {"w": 1, "mean": 1, "scalar": 1}
    for seed in range(20):
        w = {"w": random(1000, seed=seed)}
        assert 1 - 1e-6 < float(layer_weights({"w": 3 * w["w"]}, w, w)["w"]) <= 1


# --- noise


def test_a_released_matrix_is_clipped_and_has_the_noise_asked_for_of_its_stream():
    matrix, zeros = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.zeros(2, 2)
    for given, clip, expected in ((matrix, 1.0, matrix / 5), (matrix, 5.0, matrix), (zeros, 1.0, zeros)):
        torch.testing.assert_close(maths.gaussian_mechanism(given, clip, 0.0, torch.Generator()), expected)
    for matrix in (torch.zeros(200, 200), torch.ones(200, 200) / 200):
        streams = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
        noise, again, other = (maths.gaussian_mechanism(matrix, 1.0, 0.7, stream) - matrix for stream in streams)
        assert float(noise.std()) == pytest.approx(0.7, rel=0.02)
        assert abs(float(noise.mean())) < 0.02
        assert torch.equal(noise, again)
        assert not torch.equal(noise, other)


@pytest.mark.parametrize("delta", [1e-3, 1e-5])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.8, 1.0, 10.0])
def test_sigma_meets_the_condition_and_no_less_noise_does(epsilon, delta):
    def spent(sigma):
        phi, shift = NormalDist().cdf, epsilon * sigma
        return phi(1 / (2 * sigma) - shift) - math.exp(epsilon) * phi(-1 / (2 * sigma) - shift)

    sigma = maths.gaussian_sigma(epsilon, delta)
    assert spent(sigma) == pytest.approx(delta, rel=1e-6)
    assert spent(0.999 * sigma) > delta


def test_an_accountant_finds_that_epsilon_and_a_huge_one_has_next_to_no_noise():
    for epsilon in (0.8, 10.0):
        loss = privacy_loss_distribution.from_gaussian_mechanism(maths.gaussian_sigma(epsilon, 1e-3))
        assert loss.get_epsilon_for_delta(1e-3) == pytest.approx(epsilon, rel=1e-3)
    assert maths.gaussian_sigma(1e12, 1e-3) == pytest.approx(1 / math.sqrt(2e12), rel=1e-3)
