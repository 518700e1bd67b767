import math

import numpy as np
import pytest
import torch

from eval.drift import angles, by_class, cka, drift, inter_class_angles
from eval.features import EvalError

pytestmark = pytest.mark.usefixtures("one_thread")
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 7, generator=GENERATOR)
Y = torch.randn(60, 4, generator=GENERATOR)
LABELS = torch.arange(60) % 3


def test_angles_are_those_of_known_triangles():
    x = torch.tensor([[1.0, 0], [1, 0], [1, 0], [2, 0]])
    y = torch.tensor([[5.0, 0], [0, 3], [-1, 0], [1, math.sqrt(3)]])
    torch.testing.assert_close(angles(x, y), torch.tensor([0.0, 90, 180, 60], dtype=torch.float64), rtol=0, atol=1e-5)


def test_means_by_class_are_numpys_and_nan_without_rows():
    means = by_class(X, LABELS, 4)
    for label in range(3):
        np.testing.assert_allclose(means[label], X[label == LABELS].double().numpy().mean(axis=0), atol=1e-12)
    assert means[3].isnan().all()


@pytest.mark.parametrize(
    ("rows", "labels", "expected"),
    [
        ([[1, 0], [0, 100], [0, 1], [0, 1]], [0, 0, 1, 1], [45]),  # the long row would dominate a mean of raw rows
        ([[1, 0], [2, 0], [0, 1], [-1, 0]], [0, 0, 1, 3], [90, 180, 90]),  # a class without rows is left out
    ],
)
def test_prototypes_are_means_of_unit_rows(rows, labels, expected):
    found = inter_class_angles(torch.tensor(rows).float(), torch.tensor(labels), 5)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_cka_is_its_definition_by_kernels():
    """HSIC of centred kernel matrices, as the paper defines it, in NumPy; it is none of a collapsed encoder."""
    x, y = X.double().numpy(), Y.double().numpy()
    centre = np.eye(60) - 1 / 60
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    assert cka(X, Y) == pytest.approx(np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m)), abs=1e-12)
    assert math.isnan(cka(X, torch.ones(60, 2)))


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


def test_one_class_and_no_clients_are_errors():
    with pytest.raises(EvalError, match="one class"):
        inter_class_angles(X, torch.zeros(60, dtype=torch.int64), 3)
    with pytest.raises(EvalError, match="one client at least"):
        drift(X, [], LABELS, 3)
