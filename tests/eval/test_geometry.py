"""Geometry against loops in NumPy, known spectra, and the identities of each measure."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eval.features import EvalError, Features
from eval.geometry import effective_rank, geometry, label_free_score, singular_values, spectrum, uniformity_parts


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unit(x):
    rows = x.double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def slow_rank(matrix):
    values = np.linalg.svd(np.asarray(matrix, dtype=np.float64), compute_uv=False)
    p = values / values.sum()
    return math.exp(-sum(v * math.log(v) for v in p if v > 0))


def slow_uniformity(x, clients, t=2.0):
    u = unit(x)
    potentials = {"total": [], "within": [], "between": []}
    for i, j in combinations(range(len(u)), 2):
        potential = math.exp(-t * float(((u[i] - u[j]) ** 2).sum()))
        potentials["total"].append(potential)
        potentials["within" if clients[i] == clients[j] else "between"].append(potential)
    return {name: math.log(sum(values) / len(values)) if values else math.nan for name, values in potentials.items()}


def test_effective_rank_of_known_spectra():
    assert effective_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(2 * math.sqrt(2), abs=1e-6)
    orthonormal = torch.linalg.qr(normal(40, 12).double()).Q
    assert effective_rank(orthonormal[:, :7]) == pytest.approx(7, abs=1e-9)
    assert effective_rank(normal(30, 1) @ normal(1, 9)) == pytest.approx(1, abs=1e-4)  # rank one up to float32
    assert effective_rank(torch.ones(30, 9)) == pytest.approx(1, abs=1e-9)
    assert effective_rank(torch.zeros(5, 3)) == 0
    wide = torch.cat([normal(500, 10), torch.zeros(500, 246)], dim=1)
    assert effective_rank(wide) == pytest.approx(slow_rank(wide[:, :10]), abs=1e-6)


@given(rows=st.integers(1, 60), columns=st.integers(1, 40), decades=st.floats(0, 6), seed=st.integers(0, 99))
def test_effective_rank_equals_numpy_and_is_between_one_and_the_rank(rows, columns, decades, seed):
    matrix = normal(rows, columns, seed=seed).double() * torch.logspace(0, -decades, columns)
    assert effective_rank(matrix) == pytest.approx(slow_rank(matrix), abs=1e-6)
    assert 1 - 1e-9 <= effective_rank(matrix) <= min(rows, columns) + 1e-9


def test_spectrum_is_numpys():
    x = normal(50, 9) @ torch.diag(torch.arange(1.0, 10)) + 7
    values = np.linalg.svd(x.double().numpy() - x.double().numpy().mean(axis=0), compute_uv=False)
    shares = np.cumsum(values**2) / np.sum(values**2)
    assert spectrum(singular_values(x)) == {
        "dimensions_90": np.argmax(shares >= 0.9) + 1,
        "dimensions_99": np.argmax(shares >= 0.99) + 1,
        "participation_ratio": pytest.approx(np.sum(values**2) ** 2 / np.sum(values**4)),
        **{f"decay_{k}": pytest.approx(np.log10(values[k - 1] / values[0])) for k in (2, 4, 8)},
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


def test_uniformity_of_uniform_and_collapsed_rows_and_of_one():
    uniform = uniformity_parts(normal(1500, 512), torch.zeros(1500, dtype=torch.int64))
    assert uniform["total"] == pytest.approx(-3.984, rel=0.02)
    collapsed = uniformity_parts(torch.ones(9, 4), torch.arange(9) % 3)
    assert collapsed == pytest.approx({"total": 0.0, "within": 0.0, "between": 0.0}, abs=1e-6)
    with pytest.raises(EvalError, match="uniformity of 1 rows: give at least two"):
        uniformity_parts(torch.ones(1, 4), torch.zeros(1))


@pytest.mark.parametrize("include_self", [False, True])
def test_label_free_is_the_mean_over_clients_not_images(include_self):
    a, b = normal(50, 6), normal(50, 6, seed=1)
    clients = torch.tensor([3] * 40 + [8] * 10)
    parts = (slice(40), slice(40, None))
    first, second = (label_free_score(a[p], b[p], clients[p], include_self=include_self) for p in parts)
    both = label_free_score(a, b, clients, include_self=include_self)
    assert both == pytest.approx({name: (first[name] + second[name]) / 2 for name in first}, abs=1e-6)
    shuffled = torch.randperm(50)
    again = label_free_score(a[shuffled], b[shuffled], clients[shuffled], include_self=include_self, chunk=7)
    assert again == pytest.approx(both, abs=1e-5)


@pytest.mark.parametrize("include_self", [False, True])
def test_label_free_equals_a_loop(include_self):
    a, b = normal(12, 4).double(), normal(12, 4, seed=1).double()
    cosine, every = unit(a) @ unit(a).T, range(12)
    logs = [math.log(np.mean([math.exp(cosine[i, j] / 0.5) for j in every if include_self or j != i])) for i in every]
    align, uniform = float((unit(a) * unit(b)).sum() / 12), -sum(logs) / 12
    score = label_free_score(a, b, torch.zeros(12, dtype=torch.int64), temperature=0.5, include_self=include_self)
    expected = {"alignment": align, "uniformity": uniform, "score": align + 0.2 * uniform}
    assert score == pytest.approx(expected, abs=1e-9)


def test_label_free_leaves_out_lone_and_unknown_images():
    a, b = normal(9, 4), normal(9, 4, seed=1)
    clients = torch.tensor([0, 0, 0, 0, 0, 1, -1, -1, -1])
    assert label_free_score(a, b, clients) == label_free_score(a[:5], b[:5], clients[:5])
    with pytest.raises(EvalError, match="two of one known client"):
        label_free_score(a[5:], b[5:], clients[5:])


def features(**changes):
    """Every seventh training row is of no client."""
    whole = {"train_x": normal(80, 6), "train_y": torch.arange(80) % 2, "test_x": normal(40, 6, seed=1) + 2}
    whole |= {"test_y": torch.arange(40) % 2, "view_a": normal(30, 6, seed=2), "view_b": normal(30, 6, seed=3)}
    clients = torch.where(torch.arange(80) % 7 > 0, torch.arange(80) // 20, -1)
    return Features(**(whole | {"train_clients": clients, "num_classes": 2} | changes))


def test_geometry_contains_all_metrics():
    f = features()
    x, known = f.test_x.double().numpy(), f.train_clients >= 0
    parts = slow_uniformity(f.train_x[known], f.train_clients[known])
    expected = {
        "effective_rank": slow_rank(x),
        "effective_rank_normalised": slow_rank(unit(f.test_x)),
        "effective_rank_centred": slow_rank(x - x.mean(axis=0)),
        "alignment": ((unit(f.view_a) - unit(f.view_b)) ** 2).sum(axis=1).mean(),
        "uniformity": parts["total"],
        "uniformity_within": parts["within"],
        "uniformity_between": parts["between"],
    }
    assert geometry(f, torch.Generator()) == pytest.approx(expected, abs=1e-5)


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
