"""FLESD's similarities: golden numbers, what quantisation keeps, and the cases in which nothing is to be learnt."""

import pytest
import torch

from methods.maths import dense, ensemble_similarity, similarity, similarity_distillation, top_similarities
from tests.methods.test_maths import random

ROW = torch.tensor([[1.0, 0.5, 0.0, -0.5]] * 4)


def rows_of_sum_one(matrix: torch.Tensor) -> torch.Tensor:
    return matrix / matrix.sum(dim=1, keepdim=True)


def test_golden_teacher_rows() -> None:
    whole = rows_of_sum_one(ensemble_similarity([ROW], 0.1))[0]
    torch.testing.assert_close(whole, torch.tensor([0.993262, 0.006693, 0.000045, 0.0]), rtol=0, atol=1e-6)
    half = rows_of_sum_one(ensemble_similarity([dense(*top_similarities(ROW, 0.25))], 0.1))[0]
    torch.testing.assert_close(half, torch.tensor([0.993218, 0.006692, 0.000045, 0.000045]), rtol=0, atol=1e-6)
    first, second = torch.tensor([[1, 0.5, 0.2]] * 3), torch.tensor([[1, 0.1, 0.6]] * 3)
    two = rows_of_sum_one(ensemble_similarity([first, second], 0.1))[0]
    torch.testing.assert_close(two, torch.tensor([0.987404, 0.003387, 0.009208]), rtol=0, atol=1e-6)


def test_similarities_are_cosines_whatever_the_rotation() -> None:
    z = random(9, 5)
    S = similarity(z)
    torch.testing.assert_close(S, torch.nn.functional.cosine_similarity(z[:, None], z[None], dim=2))
    Q = torch.linalg.qr(random(5, 5, seed=1)).Q
    torch.testing.assert_close(similarity(3 * z @ Q), S, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0])
def test_quantisation_keeps_the_largest_of_each_row(fraction: float) -> None:
    S = similarity(random(20, 6))
    values, columns = top_similarities(S, fraction)
    again = dense(values, columns)
    assert values.shape == columns.shape == (20, min(20, int(fraction * 20) + 1))
    assert torch.equal(again[again != 0], S[again != 0])
    assert torch.equal(again.diagonal(), S.diagonal())
    left_out = S.masked_fill(again != 0, -2).amax(dim=1)
    assert (left_out <= values.min(dim=1).values).all()
    if fraction == 1:
        assert torch.equal(again, S)


def test_nothing_overflows_however_sharp() -> None:
    sharp = ensemble_similarity([similarity(random(6, 3))], 0.01)
    assert sharp.isfinite().all()
    assert (sharp > 0).all()


def test_it_is_kullback_leibler_over_the_anchors() -> None:
    q, anchors, targets = random(5, 4), random(7, 4, seed=1), random(5, 7, seed=2).exp()
    student = (torch.nn.functional.normalize(q) @ torch.nn.functional.normalize(anchors).T / 0.3).log_softmax(dim=1)
    expected = torch.nn.functional.kl_div(student, rows_of_sum_one(targets), reduction="batchmean")
    torch.testing.assert_close(similarity_distillation(q, anchors, targets, 0.3), expected)
    targets[:, 4:] = 0  # anchors that are not there yet
    fewer = similarity_distillation(q, anchors[:4], targets[:, :4], 0.3)
    torch.testing.assert_close(similarity_distillation(q, anchors, targets, 0.3), fewer)
