"""Geometry against hand-computed numbers, loops in NumPy, and the identities of each measure."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eval.features import EvalError, Features
from eval.geometry import (
    alignment,
    effective_rank,
    geometry,
    label_free_score,
    singular_values,
    spectrum,
    uniformity_parts,
)

X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
Y = torch.tensor([[1.0, 0.5], [-0.2, 1.0], [0.5, 2.0]])
BOTH = torch.cat([X, Y])
OWNERS = torch.tensor([0, 0, 0, 1, 1, 1])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_rank(matrix):
    values = np.linalg.svd(np.asarray(matrix, dtype=np.float64), compute_uv=False)
    p = values / values.sum()
    return math.exp(-sum(v * math.log(v) for v in p if v > 0))


def slow_uniformity(x, clients, t=2.0):
    u = x.double().numpy()
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    potentials = {"total": [], "within": [], "between": []}
    for i, j in combinations(range(len(u)), 2):
        potential = math.exp(-t * float(((u[i] - u[j]) ** 2).sum()))
        potentials["total"].append(potential)
        potentials["within" if clients[i] == clients[j] else "between"].append(potential)
    return {name: math.log(sum(values) / len(values)) if values else math.nan for name, values in potentials.items()}


def test_effective_rank_golden():
    assert effective_rank(BOTH) == pytest.approx(1.900423, abs=1e-5)
    assert effective_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(2 * math.sqrt(2), abs=1e-6)


def test_effective_rank_of_known_spectra():
    orthonormal = torch.linalg.qr(normal(40, 12).double()).Q
    assert effective_rank(orthonormal[:, :7]) == pytest.approx(7, abs=1e-9)
    assert effective_rank(normal(30, 1) @ normal(1, 9)) == pytest.approx(1, abs=1e-4)  # rank one up to float32
    assert effective_rank(torch.ones(30, 9)) == pytest.approx(1, abs=1e-9)
    assert effective_rank(torch.zeros(5, 3)) == 0


@given(rows=st.integers(1, 60), columns=st.integers(1, 40), decades=st.floats(0, 6), seed=st.integers(0, 99))
def test_effective_rank_equals_numpy_and_is_between_one_and_the_rank(rows, columns, decades, seed):
    matrix = normal(rows, columns, seed=seed).double() * torch.logspace(0, -decades, columns)
    assert effective_rank(matrix) == pytest.approx(slow_rank(matrix), abs=1e-6)
    assert 1 - 1e-9 <= effective_rank(matrix) <= min(rows, columns) + 1e-9


def test_effective_rank_ignores_zero_singular_values():
    deficient = (normal(500, 10).double() @ normal(10, 256, seed=1).double()).float()
    assert effective_rank(deficient) == pytest.approx(slow_rank(deficient), abs=1e-6)
    wide = torch.cat([normal(500, 10), torch.zeros(500, 246)], dim=1)
    assert effective_rank(wide) == pytest.approx(slow_rank(wide[:, :10]), abs=1e-6)


def test_effective_rank_invariances():
    x = normal(50, 8).double()
    rotation = torch.linalg.qr(normal(8, 8, seed=1).double()).Q
    for other in (x * 1e-3, x.flip(0), x @ rotation):
        assert effective_rank(other) == pytest.approx(effective_rank(x), abs=1e-9)
    assert 1 <= effective_rank(x) <= 8


def test_spectrum_is_numpys():
    x = torch.randn(50, 9, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.arange(1.0, 10))
    values = np.linalg.svd(x.double().numpy() - x.double().numpy().mean(axis=0), compute_uv=False)
    shares = np.cumsum(values**2) / np.sum(values**2)
    summary = spectrum(singular_values(x))
    assert summary["dimensions_90"] == np.argmax(shares >= 0.9) + 1
    assert summary["dimensions_99"] == np.argmax(shares >= 0.99) + 1
    assert summary["participation_ratio"] == pytest.approx(np.sum(values**2) ** 2 / np.sum(values**4))
    assert {key: summary[key] for key in summary if "decay" in key} == {
        f"decay_{k}": pytest.approx(np.log10(values[k - 1] / values[0])) for k in (2, 4, 8)
    }


def test_spectrum_of_known_shapes():
    """Equal variance in four directions around a mean; variance in one direction; no variance."""
    equal = torch.cat([torch.eye(4), -torch.eye(4)]) + 7
    assert spectrum(singular_values(equal)) == pytest.approx(
        {"dimensions_90": 4, "dimensions_99": 4, "participation_ratio": 4, "decay_2": 0, "decay_4": 0}
    )
    line = torch.arange(5.0)[:, None] * torch.ones(1, 4)
    assert spectrum(singular_values(line))["participation_ratio"] == pytest.approx(1)
    assert spectrum(singular_values(line))["decay_2"] == -12
    assert set(spectrum(singular_values(torch.ones(5, 4))).values()) == {0}


def test_spectrum_invariances():
    generator = torch.Generator().manual_seed(0)
    x, turn = torch.randn(40, 8, generator=generator), torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    assert spectrum(singular_values(3 * x @ turn + 1)) == pytest.approx(spectrum(singular_values(x)), abs=1e-5)


def test_alignment_golden():
    assert float(alignment(X, Y)) == pytest.approx(0.178333, abs=1e-5)


def test_uniformity_golden_and_recombination():
    same = torch.zeros(3, dtype=torch.int64)
    assert uniformity_parts(X, same)["total"] == pytest.approx(-1.547913, abs=1e-5)
    assert uniformity_parts(Y, same)["total"] == pytest.approx(-1.118544, abs=1e-5)
    parts = uniformity_parts(BOTH, OWNERS)
    assert parts["total"] == pytest.approx(-0.949985, abs=1e-5)
    assert parts["between"] == pytest.approx(-0.766228, abs=1e-5)
    w = (3 * 2 + 3 * 2) / (6 * 5)
    # the clients' uniformities, weighted by their pairs, give "within"; with "between" they give "total"
    within = math.log((math.exp(-1.547913) + math.exp(-1.118544)) / 2)
    assert parts["within"] == pytest.approx(within, abs=1e-5)
    assert math.log(w * math.exp(within) + (1 - w) * math.exp(-0.766228)) == pytest.approx(-0.949985, abs=1e-5)


@given(
    clients=st.lists(st.integers(0, 9), min_size=2, max_size=50).map(torch.tensor),
    chunk=st.integers(1, 60),
    t=st.floats(0.5, 4),
)
def test_uniformity_equals_the_loop_over_pairs_for_all_clients_chunks_and_temperatures(clients, chunk, t):
    n, x = len(clients), normal(len(clients), 5)
    parts = uniformity_parts(x, clients, t, chunk)
    assert parts == pytest.approx(slow_uniformity(x, clients, t), abs=1e-6, nan_ok=True)
    sizes = torch.bincount(clients).double()
    w = float((sizes * (sizes - 1)).sum()) / (n * (n - 1))
    potentials = [weight * math.exp(parts[name]) for name, weight in (("within", w), ("between", 1 - w)) if weight]
    assert math.log(sum(potentials)) == pytest.approx(parts["total"], abs=1e-6)


def test_uniformity_identities():
    x, clients = normal(45, 6), torch.arange(45) % 3
    parts = uniformity_parts(x, clients)
    merged = uniformity_parts(x, clients.clamp(max=1))
    assert merged["total"] == pytest.approx(parts["total"], abs=1e-12)
    assert merged["within"] != pytest.approx(parts["within"], abs=1e-6)
    assert uniformity_parts(x * 100, clients) == pytest.approx(parts, abs=1e-6)
    collapsed = uniformity_parts(torch.ones(9, 4), torch.arange(9) % 3)
    assert collapsed == pytest.approx({"total": 0.0, "within": 0.0, "between": 0.0}, abs=1e-6)


def test_uniformity_of_identical_clients_has_the_pooled_cross_potential():
    x = normal(30, 4)
    parts = uniformity_parts(torch.cat([x, x]), torch.arange(60) // 30)
    u = x / x.norm(dim=1, keepdim=True)
    # a row against the whole other client, its own copy included
    cross = (-2 * torch.cdist(u.double(), u.double()).square()).exp().mean()
    assert parts["between"] == pytest.approx(math.log(cross), abs=1e-6)


def test_uniformity_of_uniform_points():
    parts = uniformity_parts(normal(3000, 512), torch.zeros(3000, dtype=torch.int64))
    assert parts["total"] == pytest.approx(-3.984, rel=0.02)
    assert math.isnan(parts["between"])


def test_uniformity_needs_a_pair():
    with pytest.raises(EvalError, match="uniformity of 1 rows: give at least two"):
        uniformity_parts(X[:1], OWNERS[:1])


def test_label_free_golden():
    same = torch.zeros(3, dtype=torch.int64)
    inside = label_free_score(X, Y, same, include_self=True)
    assert inside["alignment"] == pytest.approx(0.910834, abs=1e-5)
    assert inside["uniformity"] == pytest.approx(-4.170380, abs=1e-5)
    assert inside["score"] == pytest.approx(0.076758, abs=1e-5)
    outside = label_free_score(X, Y, same)
    assert outside["uniformity"] == pytest.approx(-3.092587, abs=1e-5)
    assert outside["score"] == pytest.approx(0.910834 - 0.2 * 3.092587, abs=1e-5)


@pytest.mark.parametrize("include_self", [False, True])
def test_label_free_is_the_mean_over_clients_not_images(include_self):
    a, b = normal(50, 6), normal(50, 6, seed=1)
    clients = torch.tensor([3] * 40 + [8] * 10)
    first = label_free_score(a[:40], b[:40], clients[:40], include_self=include_self)
    second = label_free_score(a[40:], b[40:], clients[40:], include_self=include_self)
    both = label_free_score(a, b, clients, include_self=include_self)
    assert both == pytest.approx({name: (first[name] + second[name]) / 2 for name in first}, abs=1e-6)
    shuffled = torch.randperm(50)
    again = label_free_score(a[shuffled], b[shuffled], clients[shuffled], include_self=include_self, chunk=7)
    assert again == pytest.approx(both, abs=1e-5)


def test_label_free_equals_a_loop():
    a, b = normal(12, 4).double().numpy(), normal(12, 4, seed=1).double().numpy()

    def cosine(x, y):
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    align = sum(cosine(x, y) for x, y in zip(a, b, strict=True)) / 12
    logs = [math.log(sum(math.exp(cosine(a[i], a[j]) / 0.5) for j in range(12) if j != i) / 11) for i in range(12)]
    score = label_free_score(
        torch.from_numpy(a), torch.from_numpy(b), torch.zeros(12, dtype=torch.int64), temperature=0.5
    )
    assert score["alignment"] == pytest.approx(align, abs=1e-9)
    assert score["uniformity"] == pytest.approx(-sum(logs) / 12, abs=1e-9)


def test_label_free_of_a_collapsed_encoder_is_zero():
    ones, clients = torch.ones(8, 3), torch.arange(8) // 4
    for include_self in (False, True):
        collapsed = label_free_score(ones, ones * 2, clients, include_self=include_self)
        assert collapsed == pytest.approx({"alignment": 1.0, "uniformity": -5.0, "score": 0.0}, abs=1e-5)


def test_label_free_leaves_out_lone_and_unknown_images():
    a, b = normal(9, 4), normal(9, 4, seed=1)
    clients = torch.tensor([0, 0, 0, 0, 0, 1, -1, -1, -1])
    assert label_free_score(a, b, clients) == label_free_score(a[:5], b[:5], clients[:5])
    with pytest.raises(EvalError, match="two of one known client"):
        label_free_score(a[5:], b[5:], clients[5:])


def features(**changes):
    whole = {
        "train_x": normal(80, 6),
        "train_y": torch.arange(80) % 2,
        "train_clients": torch.arange(80) // 20,
        "test_x": normal(40, 6, seed=1) + 2,
        "test_y": torch.arange(40) % 2,
        "view_a": normal(30, 6, seed=2),
        "view_b": normal(30, 6, seed=3),
        "num_classes": 2,
    }
    return Features(**(whole | changes))


def test_geometry_contains_all_metrics():
    f = features()
    scores = geometry(f, torch.Generator())
    x = f.test_x.double().numpy()
    assert scores["effective_rank"] == pytest.approx(slow_rank(x), abs=1e-6)
    assert scores["effective_rank_normalised"] == pytest.approx(
        slow_rank(x / np.linalg.norm(x, axis=1, keepdims=True)), abs=1e-5
    )
    assert scores["effective_rank_centred"] == pytest.approx(slow_rank(x - x.mean(axis=0)), abs=1e-6)
    a, b = (
        v.double().numpy() / np.linalg.norm(v.double().numpy(), axis=1, keepdims=True) for v in (f.view_a, f.view_b)
    )
    assert scores["alignment"] == pytest.approx(((a - b) ** 2).sum(axis=1).mean(), abs=1e-6)
    parts = slow_uniformity(f.train_x, f.train_clients)
    assert scores["uniformity"] == pytest.approx(parts["total"], abs=1e-6)
    assert scores["uniformity_within"] == pytest.approx(parts["within"], abs=1e-6)
    assert scores["uniformity_between"] == pytest.approx(parts["between"], abs=1e-6)


def test_the_generator_draws_the_points_of_geometry():
    f = features()
    first, again, other = (geometry(f, torch.Generator().manual_seed(seed), max_points=25) for seed in (0, 0, 1))
    assert first == again
    assert first["uniformity"] != other["uniformity"]
    assert first["effective_rank"] == other["effective_rank"]


def test_geometry_leaves_out_metrics_without_views_or_clients():
    f = features(view_a=None, view_b=None, train_clients=torch.full((80,), -1))
    assert not {"alignment", "uniformity_within", "uniformity_between"} & set(geometry(f, torch.Generator()))
    single = geometry(features(train_clients=torch.zeros(80, dtype=torch.int64)), torch.Generator())
    assert single["uniformity_within"] == single["uniformity"]
    assert "uniformity_between" not in single


def test_rows_without_a_client_are_left_out_of_uniformity():
    clients = torch.arange(80) % 3
    clients[::7] = -1
    f = features(train_clients=clients)
    known = clients >= 0
    parts = uniformity_parts(f.train_x[known], clients[known])
    scores = geometry(f, torch.Generator())
    assert scores["uniformity"] == pytest.approx(parts["total"], abs=1e-12)
    assert scores["uniformity_within"] == pytest.approx(parts["within"], abs=1e-12)
    assert scores["uniformity_between"] == pytest.approx(parts["between"], abs=1e-12)
