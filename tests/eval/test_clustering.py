"""K-means clusters and t-SNE maps of test features."""

import math

import pytest
import torch

from eval.clustering import clusters, mixing
from eval.features import EvalError, Features
from eval.protocol import Subject, evaluate
from eval.tsne import tsne

pytestmark = pytest.mark.usefixtures("one_thread")


def features(x, y, classes=3):
    return Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=classes)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def separate(n=120):
    y = torch.arange(n) % 3
    return features(4 * torch.randn(3, 6, generator=seeded())[y] + torch.randn(n, 6, generator=seeded(1)), y)


@pytest.mark.parametrize(
    ("rows", "centroids", "expected"),
    [
        # at 0, 30 and 90 degrees: the second one is nearest to the other's centroid, sin 30
        ([[1, 0], [math.cos(math.pi / 6), 0.5], [0, 4]], [[3, 0], [0, 0.1]], 0.5),
        ([[1, 0], [0, 1], [0, 2]], [[1, 0], [0, 1]], 0),
        ([[2, 0], [3, 0]], [[1, 0], [1, 0]], 1),
        ([[1, 0], [0, 1]], [[1, 0]], math.nan),
    ],
)
def test_mixing_by_hand(rows, centroids, expected):
    found = mixing(torch.tensor(rows).float(), torch.tensor(centroids).float())
    assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_separate_classes_are_found_and_random_ones_score_near_zero():
    y = torch.arange(90) % 3
    found = clusters(features(torch.eye(5)[y] * 5 + 0.1 * torch.randn(90, 5, generator=seeded()), y), seeded())
    assert (found["nmi"], found["ari"]) == (pytest.approx(1), pytest.approx(1))
    assert found["mixing"] < 0.2
    y = torch.randint(3, (300,), generator=seeded())
    none = clusters(features(torch.randn(300, 5, generator=seeded(1)), y), seeded())
    assert abs(none["ari"]) < 0.05
    assert none["nmi"] < 0.05


def test_one_class_leaves_mixing_out_and_fewer_images_than_classes_are_an_error():
    x, y = torch.randn(9, 3), torch.zeros(9, dtype=torch.int64)
    assert set(clusters(features(x, y, 1), seeded())) == {"nmi", "ari"}
    with pytest.raises(EvalError, match="10 clusters of 9 test images"):
        clusters(features(x, y, 10), seeded())


def test_the_generator_draws_a_sample_of_many_rows():
    y = torch.arange(200) % 2
    given = features(torch.randn(200, 4, generator=seeded()) + y[:, None], y, 2)
    drawn = [clusters(given, seeded(seed), max_points=50) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_generator_determines_the_rows_and_the_map():
    first, again, other = (tsne(separate(), seeded(seed), max_points=40) for seed in (0, 0, 1))
    assert len(first[0]) == 40
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[1], other[1])


def test_five_rows_suffice_for_a_map_and_three_are_an_error():
    assert tsne(separate(5), seeded())[0].isfinite().all()
    with pytest.raises(EvalError, match="3 test images"):
        tsne(separate(3), seeded())


def test_the_protocol_saves_the_map_in_which_neighbours_stay_neighbours():
    arrays = {}
    scores = evaluate(Subject(features=separate(), save_arrays=arrays.__setitem__), ["embed/v1"])
    places, labels = arrays["embed"]["places"], arrays["embed"]["labels"]
    assert places.shape == (120, 2)
    distances = torch.cdist(places, places).fill_diagonal_(torch.inf)
    same = sum(int(labels[row.argmin()]) == int(label) for row, label in zip(distances, labels, strict=True))
    assert [(score.metric, score.unit, score.value) for score in scores] == [("purity", "%", 100 * same / 120)]
    assert same > 114
