import math

import pytest
import torch

from eval.clustering import clusters, mixing
from eval.features import EvalError, Features

pytestmark = pytest.mark.usefixtures("one_thread")


def features(x, y, classes):
    return Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=classes)


def generator():
    return torch.Generator().manual_seed(0)


def test_mixing_by_hand():
    """Rows at 0, 30 and 90 degrees, centroids at 0 and 90: the row at 30 is nearest to the other's centroid, sin 30."""
    rows = torch.tensor([[1.0, 0], [math.cos(math.pi / 6), 0.5], [0, 1]])
    assert mixing(rows, torch.tensor([[1.0, 0], [0, 1]])) == pytest.approx(0.5, abs=1e-6)


def test_rows_on_orthogonal_centroids_do_not_mix():
    assert mixing(torch.eye(4).repeat(3, 1), torch.eye(4)) == pytest.approx(0)


def test_two_equal_centroids_mix_as_their_rows_are_similar():
    assert mixing(torch.tensor([[2.0, 0], [3, 0]]), torch.tensor([[1.0, 0], [1, 0]])) == pytest.approx(1)


def test_one_cluster_has_no_mixing():
    assert math.isnan(mixing(torch.eye(3), torch.ones(1, 3)))


def test_one_class_leaves_mixing_out():
    scores = clusters(features(torch.randn(9, 3), torch.zeros(9, dtype=torch.int64), 1), generator())
    assert set(scores) == {"nmi", "ari"}


def test_mixing_is_invariant_to_rotation_and_length():
    rows, centroids = torch.randn(50, 5, generator=generator()), torch.eye(5)[:3]
    turn = torch.linalg.qr(torch.randn(5, 5, generator=generator()))[0]
    assert mixing(7 * rows @ turn, 0.1 * centroids @ turn) == pytest.approx(mixing(rows, centroids), abs=1e-6)


def test_separate_classes_are_found():
    y = torch.arange(90) % 3
    x = torch.eye(5)[y] * 5 + 0.1 * torch.randn(90, 5, generator=generator())
    scores = clusters(features(x, y, 3), generator())
    assert scores["nmi"] == pytest.approx(1)
    assert scores["ari"] == pytest.approx(1)
    assert scores["mixing"] < 0.2


def test_random_classes_score_near_zero():
    y = torch.randint(3, (300,), generator=generator())
    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(1))
    scores = clusters(features(x, y, 3), generator())
    assert abs(scores["ari"]) < 0.05
    assert scores["nmi"] < 0.05


def test_the_generator_draws_a_sample_of_many_rows():
    y = torch.arange(200) % 2
    x = torch.randn(200, 4, generator=generator()) + y[:, None]
    drawn = [clusters(features(x, y, 2), torch.Generator().manual_seed(seed), max_points=50) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_fewer_images_than_classes_are_an_error():
    with pytest.raises(EvalError, match="5 clusters of 3 test images"):
        clusters(features(torch.eye(3), torch.arange(3), 5), generator())
