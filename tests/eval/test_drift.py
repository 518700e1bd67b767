import math

import numpy as np
import pytest
import torch

from eval.drift import angles, by_class, cka, drift, inter_class_angles
from eval.features import EvalError

pytestmark = pytest.mark.usefixtures("one_thread")
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 7, generator=GENERATOR)
Y = torch.randn(60, 7, generator=GENERATOR)
LABELS = torch.arange(60) % 3
TURN = torch.linalg.qr(torch.randn(7, 7, generator=GENERATOR))[0]


def test_angles_are_those_of_known_triangles():
    x = torch.tensor([[1.0, 0], [1, 0], [1, 0], [2, 0]])
    y = torch.tensor([[5.0, 0], [0, 3], [-1, 0], [1, math.sqrt(3)]])
    torch.testing.assert_close(angles(x, y), torch.tensor([0.0, 90, 180, 60], dtype=torch.float64), rtol=0, atol=1e-5)


def test_angles_are_symmetric_and_invariant_to_length_and_a_common_rotation():
    expected = angles(X, Y)
    torch.testing.assert_close(angles(Y, X), expected)
    torch.testing.assert_close(angles(3 * X, 0.1 * Y), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(angles(X @ TURN, Y @ TURN), expected, rtol=0, atol=1e-4)


def test_means_by_class_are_numpys_and_nan_without_rows():
    means = by_class(X, LABELS, 4)
    for label in range(3):
        np.testing.assert_allclose(means[label], X[label == LABELS].double().numpy().mean(axis=0), atol=1e-12)
    assert means[3].isnan().all()


def test_orthogonal_classes_are_at_right_angles_and_a_class_without_rows_is_left_out():
    x = torch.eye(3).repeat_interleave(4, dim=0)
    labels = torch.arange(3).repeat_interleave(4)
    torch.testing.assert_close(inter_class_angles(x, labels, 5), torch.full((3,), 90.0, dtype=torch.float64))


def test_prototypes_are_means_of_unit_rows():
    """One long row would dominate a mean of raw rows."""
    x = torch.tensor([[1.0, 0], [0, 100], [0, 1], [0, 1]])
    torch.testing.assert_close(inter_class_angles(x, torch.tensor([0, 0, 1, 1]), 2), torch.tensor([45.0]).double())


def test_angles_of_one_class_are_an_error():
    with pytest.raises(EvalError, match="one class"):
        inter_class_angles(X, torch.zeros(60, dtype=torch.int64), 3)


def test_cka_is_its_definition_by_kernels():
    """HSIC of centred kernel matrices, as the paper defines it, in NumPy."""
    x, y = X.double().numpy(), Y[:, :4].double().numpy()
    centre = np.eye(60) - 1 / 60
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    assert cka(X, Y[:, :4]) == pytest.approx(np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m)), abs=1e-12)


def test_cka_is_invariant_to_rotation_scale_and_shift():
    expected = cka(X, Y)
    assert 0 < expected < 0.9
    assert cka(X, X @ TURN * 3 + 1) == pytest.approx(1, abs=1e-6)
    assert cka(X @ TURN, Y * 0.1 - 2) == pytest.approx(expected, abs=1e-6)


def test_cka_of_a_collapsed_encoder_is_not_a_number():
    assert math.isnan(cka(X, torch.ones(60, 2)))


def test_a_local_model_equal_to_the_global_one_has_no_drift():
    scores = drift(X, [X, 2 * X], LABELS, 3)
    assert scores["local_global_angle"] == pytest.approx(0, abs=1e-3)
    assert scores["local_global_angle_worst"] == pytest.approx(0, abs=1e-3)
    assert scores["cka"] == pytest.approx(1)
    assert scores["inter_class_angle_local"] == pytest.approx(scores["inter_class_angle_global"])


def test_drift_is_the_mean_over_clients_and_classes_and_its_worst_class():
    """A client with one class of three rotated by a right angle drifts by 30 degrees, by 90 in the worst class."""
    x = torch.eye(4)[:3].repeat_interleave(5, dim=0)
    turned = x.clone()
    turned[:5] = torch.eye(4)[3]
    labels = torch.arange(3).repeat_interleave(5)
    scores = drift(x, [x, turned], labels, 3)
    assert scores["local_global_angle"] == pytest.approx(15)
    assert scores["local_global_angle_worst"] == pytest.approx(45)
    assert scores["cka"] == pytest.approx((1 + cka(turned, x)) / 2)


def test_drift_without_clients_is_an_error():
    with pytest.raises(EvalError, match="one client at least"):
        drift(X, [], LABELS, 3)
