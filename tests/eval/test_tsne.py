import pytest
import torch

from eval.features import EvalError, Features
from eval.protocol import Subject, evaluate
from eval.tsne import tsne

pytestmark = pytest.mark.usefixtures("one_thread")


def random_features(n=120):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = 4 * torch.randn(3, 6, generator=generator)[y] + torch.randn(n, 6, generator=generator)
    return Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=3)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_neighbours_stay_neighbours():
    """Separate classes are separate in the plane: the nearest point has the same label."""
    places, labels = tsne(random_features(), seeded())
    assert places.shape == (120, 2)
    centred = places - places.mean(dim=0)
    distances = torch.cdist(centred, centred).fill_diagonal_(torch.inf)
    assert float((labels[distances.argmin(dim=1)] == labels).double().mean()) > 0.95


def test_the_generator_determines_the_rows_and_the_map():
    first, again, other = (tsne(random_features(), seeded(seed), max_points=40) for seed in (0, 0, 1))
    assert len(first[0]) == 40
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])


def test_five_rows_suffice_and_three_are_an_error():
    assert tsne(random_features(5), seeded())[0].isfinite().all()
    with pytest.raises(EvalError, match="3 test images"):
        tsne(random_features(3), seeded())


def test_the_protocol_saves_the_map_for_a_figure():
    arrays = {}
    scores = evaluate(Subject(features=random_features(), save_arrays=arrays.__setitem__), ["embed/v1"])
    places, labels = arrays["embed"]["places"], arrays["embed"]["labels"]
    distances = torch.cdist(places, places).fill_diagonal_(torch.inf)
    same = [int(labels[row.argmin()]) == int(label) for row, label in zip(distances, labels, strict=True)]
    assert [(score.metric, score.unit, score.value) for score in scores] == [("purity", "%", 100 * sum(same) / 120)]
