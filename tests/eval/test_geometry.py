"""Geometry, drift, clusters and maps: against loops in NumPy, known spectra and triangles, and identities."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eval.clustering import clusters, mixing
from eval.drift import angles, cka, drift, inter_class_angles
from eval.features import EvalError, Features
from eval.geometry import effective_rank, geometry, label_free_score, singular_values, spectrum, uniformity_parts
from eval.protocol import Subject, evaluate
from eval.tsne import tsne
from tests.eval.conftest import seeded


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


def unit(x):
    return np.asarray(torch.nn.functional.normalize(x.double(), dim=1))


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


@given(rows=st.integers(1, 60), columns=st.integers(1, 40), decades=st.floats(0, 6), seed=st.integers(0, 99))
def test_effective_rank_equals_numpy_and_is_between_one_and_the_rank(rows, columns, decades, seed):
    matrix = normal(rows, columns, seed=seed).double() * torch.logspace(0, -decades, columns)
    assert effective_rank(matrix) == pytest.approx(slow_rank(matrix), abs=1e-6)
    assert 1 - 1e-9 <= effective_rank(matrix) <= min(rows, columns) + 1e-9
    wide = torch.cat([matrix, torch.zeros(rows, 200)], dim=1)
    assert effective_rank(wide) == pytest.approx(slow_rank(matrix), abs=1e-6)
    assert effective_rank(0 * matrix) == 0


def test_spectrum_is_numpys_and_that_of_known_shapes():
    x = normal(50, 9) @ torch.diag(torch.arange(1.0, 10)) + 7
    values = np.linalg.svd(x.double().numpy() - x.double().numpy().mean(axis=0), compute_uv=False)
    shares = np.cumsum(values**2) / np.sum(values**2)
    assert spectrum(singular_values(x)) == {
        "dimensions_90": np.argmax(shares >= 0.9) + 1,
        "dimensions_99": np.argmax(shares >= 0.99) + 1,
        "participation_ratio": pytest.approx(np.sum(values**2) ** 2 / np.sum(values**4)),
        **{f"decay_{k}": pytest.approx(np.log10(values[k - 1] / values[0])) for k in (2, 4, 8)},
    }
    line = spectrum(singular_values(torch.arange(5.0)[:, None] * torch.ones(1, 4)))  # variance in one direction
    assert (line["participation_ratio"], line["decay_2"]) == (pytest.approx(1), -12)
    assert set(spectrum(singular_values(torch.ones(5, 4))).values()) == {0}  # and none


@given(st.lists(st.integers(0, 9), min_size=2, max_size=50).map(torch.tensor), st.integers(1, 60), st.floats(0.5, 4))
def test_uniformity_equals_the_loop_over_pairs_for_all_clients_chunks_and_temperatures(clients, chunk, t):
    x = normal(len(clients), 5)
    assert uniformity_parts(x, clients, t, chunk) == pytest.approx(
        slow_uniformity(x, clients, t), abs=1e-6, nan_ok=True
    )


def test_uniformity_of_uniform_and_collapsed_rows():
    uniform = uniformity_parts(normal(1500, 512), torch.zeros(1500, dtype=torch.int64))
    assert uniform["total"] == pytest.approx(-3.984, rel=0.02)
    collapsed = uniformity_parts(normal(1, 5).expand(9, 5), torch.arange(9) % 3)
    assert collapsed == pytest.approx({"total": 0.0, "within": 0.0, "between": 0.0}, abs=1e-6)
    assert max(collapsed.values()) <= 0


@pytest.mark.parametrize("include_self", [False, True])
def test_label_free_equals_a_loop_over_clients_that_count_alike(include_self):
    """Whatever their numbers of images; those of no client are left out, and lone ones, which only have themselves."""
    a, b = normal(20, 4).double(), normal(20, 4, seed=1).double()
    clients = torch.tensor([3] * 12 + [8] * 4 + [5, -1, -1, -1])
    cosine, paired, parts = unit(a) @ unit(a).T, (unit(a) * unit(b)).sum(axis=1), []
    for rows in (range(12), range(12, 16), *([range(16, 17)] if include_self else [])):
        others = [[math.exp(cosine[i, j] / 0.5) for j in rows if include_self or j != i] for i in rows]
        parts.append((paired[rows].mean(), -np.mean([math.log(np.mean(row)) for row in others])))
    align, uniform = np.mean(parts, axis=0)
    expected = {"alignment": align, "uniformity": uniform, "score": align + 0.2 * uniform}
    for order, chunk in ((torch.arange(20), {}), (torch.randperm(20), {"chunk": 7})):
        given_ = {"temperature": 0.5, "include_self": include_self, **chunk}
        assert label_free_score(a[order], b[order], clients[order], **given_) == pytest.approx(expected, abs=1e-9)
    with pytest.raises(EvalError, match="two of one known client"):
        label_free_score(a[16:], b[16:], clients[16:])


def features(**changes):
    """Every seventh training row is of no client."""
    whole = {"train_x": normal(80, 6), "train_y": torch.arange(80) % 2, "test_x": normal(40, 6, seed=1) + 2}
    whole |= {"test_y": torch.arange(40) % 2, "view_a": normal(30, 6, seed=2), "view_b": normal(30, 6, seed=3)}
    clients = torch.where(torch.arange(80) % 7 > 0, torch.arange(80) // 20, -1)
    return Features(**(whole | {"train_clients": clients, "num_classes": 2} | changes))


def test_geometry_contains_all_metrics_but_those_without_views_or_clients():
    f = features()
    x, known = f.test_x.double().numpy(), f.train_clients >= 0
    parts = slow_uniformity(f.train_x[known], f.train_clients[known])
    expected = {
        "effective_rank": slow_rank(x),
        "effective_rank_normalised": slow_rank(unit(f.test_x)),
        "effective_rank_centred": slow_rank(x - x.mean(axis=0)),
        "alignment": ((unit(f.view_a) - unit(f.view_b)) ** 2).sum(axis=1).mean(),
        "uniformity": parts["total"], "uniformity_within": parts["within"], "uniformity_between": parts["between"],
    }  # fmt: skip
    assert geometry(f, torch.Generator()) == pytest.approx(expected, abs=1e-5)
    alone = geometry(features(view_a=None, view_b=None, train_clients=torch.full((80,), -1)), torch.Generator())
    assert not {"alignment", "uniformity_within", "uniformity_between"} & set(alone)
    single = geometry(features(train_clients=torch.zeros(80, dtype=torch.int64)), torch.Generator())
    assert single["uniformity_within"] == single["uniformity"]
    assert "uniformity_between" not in single


def test_the_generator_draws_the_points():
    """Of geometry, of clusters and of a map."""
    first, again, other = (geometry(features(), seeded(seed), max_points=25) for seed in (0, 0, 1))
    assert first == again
    assert first["uniformity"] != other["uniformity"]
    assert first["effective_rank"] == other["effective_rank"]
    y = torch.arange(200) % 2
    given_ = labelled(normal(200, 4) + y[:, None], y, 2)
    drawn = [clusters(given_, seeded(seed), max_points=50) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    first, again, other = (tsne(separate(), seeded(seed), max_points=40) for seed in (0, 0, 1))
    assert len(first[0]) == 40
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[1], other[1])


def test_angles_are_those_of_known_triangles_and_prototypes_are_means_of_unit_rows():
    x = torch.tensor([[1.0, 0], [1, 0], [1, 0], [2, 0]])
    y = torch.tensor([[5.0, 0], [0, 3], [-1, 0], [1, math.sqrt(3)]])
    torch.testing.assert_close(angles(x, y), torch.tensor([0.0, 90, 180, 60], dtype=torch.float64), rtol=0, atol=1e-5)
    for rows, labels, expected in (
        ([[1, 0], [0, 100], [0, 1], [0, 1]], [0, 0, 1, 1], [45]),  # the long row would dominate a mean of raw rows
        ([[1, 0], [2, 0], [0, 1], [-1, 0]], [0, 0, 1, 3], [90, 180, 90]),  # a class without rows is left out
    ):
        found = inter_class_angles(torch.tensor(rows).float(), torch.tensor(labels), 5)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_cka_is_its_definition_by_kernels():
    """HSIC of centred kernel matrices, as the paper defines it, in NumPy; it is none of a collapsed encoder."""
    rows, others = normal(60, 7), normal(60, 4, seed=1)
    x, y = rows.double().numpy(), others.double().numpy()
    centre = np.eye(60) - 1 / 60
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    assert cka(rows, others) == pytest.approx(np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m)), abs=1e-12)
    assert math.isnan(cka(rows, torch.ones(60, 2)))


def test_drift_is_the_mean_over_clients_and_classes_and_its_worst_class():
    """A client with one class of three turned halfway to another drifts by 15 degrees, by 45 in the worst class."""
    x, labels = torch.eye(4)[:3].repeat_interleave(5, dim=0), torch.arange(3).repeat_interleave(5)
    turned = x.clone()
    turned[:5] = torch.tensor([1.0, 1, 0, 0])
    assert drift(x, [2 * x, turned], labels, 3) == {
        "local_global_angle": pytest.approx(7.5, abs=1e-3),
        "local_global_angle_worst": pytest.approx(22.5, abs=1e-3),
        "inter_class_angle_local": pytest.approx((90 + (45 + 90 + 90) / 3) / 2),
        "inter_class_angle_global": pytest.approx(90),
        "cka": pytest.approx((1 + cka(turned, x)) / 2),
    }
    assert "cka" not in drift(x, [x, torch.ones(15, 4)], labels, 3)


def labelled(x, y, classes=3):
    return Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=classes)


def separate(n=120):
    y = torch.arange(n) % 3
    return labelled(4 * normal(3, 6)[y] + normal(n, 6, seed=1), y)


def test_mixing_by_hand():
    for rows, centroids, expected in (
        # at 0, 30 and 90 degrees: the second one is nearest to the other's centroid, sin 30
        ([[1, 0], [math.cos(math.pi / 6), 0.5], [0, 4]], [[3, 0], [0, 0.1]], 0.5),
        ([[1, 0], [0, 1], [0, 2]], [[1, 0], [0, 1]], 0),
        ([[2, 0], [3, 0]], [[1, 0], [1, 0]], 1),
        ([[1, 0], [0, 1]], [[1, 0]], math.nan),
    ):
        found = mixing(torch.tensor(rows).float(), torch.tensor(centroids).float())
        assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_separate_classes_are_found_and_random_ones_score_near_zero():
    y = torch.arange(90) % 3
    found = clusters(labelled(torch.eye(5)[y] * 5 + 0.1 * normal(90, 5), y), seeded())
    assert (found["nmi"], found["ari"]) == (pytest.approx(1), pytest.approx(1))
    assert found["mixing"] < 0.2
    y = torch.randint(3, (300,), generator=seeded())
    none = clusters(labelled(normal(300, 5, seed=1), y), seeded())
    assert abs(none["ari"]) < 0.05
    assert none["nmi"] < 0.05


def test_too_few_rows_classes_or_clients_are_errors():
    x, y = normal(9, 3), torch.zeros(9, dtype=torch.int64)
    assert set(clusters(labelled(x, y, 1), seeded())) == {"nmi", "ari"}  # of one class there is no mixing
    assert tsne(separate(5), seeded())[0].isfinite().all()
    for message, fail in (
        ("10 clusters of 9 test images", lambda: clusters(labelled(x, y, 10), seeded())),
        ("3 test images", lambda: tsne(separate(3), seeded())),
        ("one class", lambda: inter_class_angles(x, y, 3)),
        ("one client at least", lambda: drift(x, [], torch.arange(9) % 3, 3)),
        ("uniformity of 1 rows: give at least two", lambda: uniformity_parts(torch.ones(1, 4), torch.zeros(1))),
    ):
        with pytest.raises(EvalError, match=message):
            fail()


def test_the_protocol_saves_the_map_in_which_neighbours_stay_neighbours():
    arrays = {}
    (score,) = evaluate(Subject(features=separate(), save_arrays=arrays.__setitem__), ["embed/v1"])
    places, labels = arrays["embed"]["places"], arrays["embed"]["labels"]
    assert places.shape == (120, 2)
    nearest = torch.cdist(places, places).fill_diagonal_(torch.inf).argmin(dim=1)
    same = int((labels[nearest] == labels).sum())
    assert (score.metric, score.unit, score.value) == ("purity", "%", 100 * same / 120)
    assert same > 114
