"""Sinkhorn and clusters of equal size: golden numbers, marginals, a reference solver, identities."""

import numpy as np
import ot
import pytest
import torch

from methods.maths import cluster_sums, cosines, equal_clusters, sinkhorn
from tests.methods.test_maths import random

SCORES = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.6]])


def clusters(rows: torch.Tensor, k: int, seed: int = 0, **kwargs: int) -> tuple[torch.Tensor, torch.Tensor]:
    return equal_clusters(rows, k, torch.Generator().manual_seed(seed), **kwargs)


@pytest.mark.parametrize(
    ("iterations", "rows", "columns"),
    [
        (100, [[0.999459, 0.000541], [0.925590, 0.074410], [0.077332, 0.922668], [0, 1]], [2.0024, 1.9976]),
        (10, [[0.999949, 0.000051], [0.992540, 0.007460], [0.472709, 0.527291], [0, 1]], [2.4652, 1.5348]),
    ],
)
def test_orchestras_two_settings(iterations: int, rows: list[list[float]], columns: list[float]):
    plan = sinkhorn(SCORES, epsilon=1 / 25, iterations=iterations, tolerance=0.01)
    torch.testing.assert_close(plan, torch.tensor(rows), rtol=0, atol=1e-5)
    torch.testing.assert_close(plan.sum(dim=0), torch.tensor(columns), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("n", "g", "epsilon"), [(30, 6, 0.04), (30, 6, 0.5), (12, 30, 0.1), (7, 1, 1.0)])
def test_it_is_the_reference_solvers_plan(n: int, g: int, epsilon: float):
    cosines, marginals = torch.tanh(random(n, g, seed=1)).double(), (np.full(n, 1 / n), np.full(g, 1 / g))
    theirs = ot.sinkhorn(*marginals, -cosines.numpy(), epsilon, numItermax=20000, stopThr=1e-12)
    np.testing.assert_allclose(sinkhorn(cosines, epsilon, 20000).numpy(), n * theirs, atol=1e-6)


def test_the_first_scaling_may_weigh_rows_and_converges_to_the_same_plan():
    torch.testing.assert_close(sinkhorn(SCORES, 0.2, 500, weighted=True), sinkhorn(SCORES, 0.2, 500))
    louder = SCORES + torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    torch.testing.assert_close(sinkhorn(louder, 0.2, 1), sinkhorn(SCORES, 0.2, 1))
    assert (sinkhorn(louder, 0.2, 1, weighted=True) - sinkhorn(SCORES, 0.2, 1, weighted=True)).abs().max() > 0.1


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_that_are_not_valid_take_no_part(weighted: bool):
    scores, valid = torch.cat([SCORES, torch.zeros(3, 2), 5 * random(2, 2)]), torch.arange(9) < 4
    plan = sinkhorn(scores, 0.1, 3, weighted=weighted, valid=valid)
    torch.testing.assert_close(plan[:4], sinkhorn(SCORES, 0.1, 3, weighted=weighted))
    assert torch.equal(plan[4:], torch.zeros(5, 2))
    assert sinkhorn(torch.tensor([[0.0, -1e4], [0.0, -1e4]])).isfinite().all()  # a hopeless cluster


def test_clusters_are_about_equal_in_size_and_depend_on_the_stream():
    """Of thirty rows near one direction and two near another Sinkhorn scaling splits the thirty over both clusters."""
    rows = random(128, 16)
    centroids, nearest = clusters(rows, 8)
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(8))
    assert torch.bincount(nearest, minlength=8).min() >= 8  # 16 on average
    assert torch.equal(centroids, clusters(rows, 8)[0])
    assert not torch.equal(centroids, clusters(rows, 8, seed=1)[0])
    rows = torch.eye(3)[[0] * 30 + [1] * 2] + 0.05 * random(32, 3)
    assert max(int(torch.bincount(clusters(rows, 2, seed)[1]).max()) for seed in range(5)) < 24


def test_every_cluster_gets_the_least_it_was_promised():
    skewed = torch.cat([torch.ones(60, 4) + 0.01 * random(60, 4), -torch.ones(4, 4) + 0.01 * random(4, 4, seed=1)])
    assert torch.bincount(clusters(skewed, 8)[1], minlength=8).min() < 8
    for min_size in (1, 5, 8):
        assert torch.bincount(clusters(skewed, 8, min_size=min_size)[1], minlength=8).min() >= min_size
    rows = torch.nn.functional.normalize(random(6, 12), dim=1)
    centroids, nearest = clusters(rows, 6, min_size=1)
    torch.testing.assert_close(centroids[nearest], rows)  # as many clusters as rows are the rows
    with pytest.raises(ValueError, match="10 rows make no 4 clusters of at least 3"):
        clusters(random(10, 2), 4, min_size=3)


def test_sums_are_of_the_unit_rows_nearest_to_each_by_their_cosines_in_full_precision():
    rows, centroids = random(7, 4), random(3, 4, seed=1)
    expected = torch.nn.functional.cosine_similarity(rows[:, None], centroids[None], dim=2)
    torch.testing.assert_close(cosines(5 * rows, centroids / 3), expected)
    centroids = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    rows = torch.tensor([[3.0, 0.0], [4.0, 3.0], [0.0, 0.5]])
    torch.testing.assert_close(cluster_sums(rows, centroids), torch.tensor([[1.8, 0.6], [0.0, 1.0], [0.0, 0.0]]))
    rows, centroids = random(300, 16), random(4, 16, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = cluster_sums(rows, centroids)
    assert torch.equal(rounded, cluster_sums(rows, centroids))


def test_exchanging_a_row_moves_the_sums_by_two_at_most_and_by_two_if_it_must():
    rows, centroids, moves = 10 * random(30, 3), random(4, 3, seed=1), []
    for row in range(30):
        other = rows.clone()
        other[row] = random(3, seed=row)
        moves.append(float((cluster_sums(other, centroids) - cluster_sums(rows, centroids)).norm()))
    assert 1.4 < max(moves) <= 2  # the square root of 2, where the row goes to another cluster
    there, back = (cluster_sums(torch.tensor([[0.0, sign]]), torch.tensor([[1.0, 0.0]])) for sign in (1.0, -1.0))
    assert float((there - back).norm()) == 2


def test_the_centroid_of_an_empty_cluster_is_one_of_the_rows():
    rows, emptied = torch.eye(2)[[0] * 5 + [1]], 0
    for centroids, nearest in (clusters(rows, 4, seed) for seed in range(10)):
        for empty in set(range(4)) - set(nearest.tolist()):
            assert any(torch.allclose(centroids[empty], row) for row in rows)
            emptied += 1
    assert emptied
