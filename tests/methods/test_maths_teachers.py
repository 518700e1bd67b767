"""FLESD's similarities and the attention over several teachers: golden numbers, slow NumPy versions, limits."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, kl_div, normalize

from methods.maths import attended, dense, ensemble_similarity, similarity, similarity_distillation, top_similarities
from tests.methods.test_maths import numeric_gradient, random, softmax

ROW = torch.tensor([[1.0, 0.5, 0.0, -0.5]] * 4)


def rows_of_sum_one(matrix):
    return matrix / matrix.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([ROW], [0.993262, 0.006693, 0.000045, 0.0]),
        ([dense(*top_similarities(ROW, 0.25))], [0.993218, 0.006692, 0.000045, 0.000045]),
        ([torch.tensor([row] * 3) for row in ([1, 0.5, 0.2], [1, 0.1, 0.6])], [0.987404, 0.003387, 0.009208]),
    ],
)
def test_golden_teacher_rows(sent, expected):
    found = rows_of_sum_one(ensemble_similarity(sent, 0.1))[0]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


def test_similarities_are_cosines_and_nothing_overflows_however_sharp():
    z = random(9, 5)
    torch.testing.assert_close(similarity(z), cosine_similarity(z[:, None], z[None], dim=2))
    sharp = ensemble_similarity([similarity(random(6, 3))], 0.01)
    assert sharp.isfinite().all()
    assert (sharp > 0).all()


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0])
def test_quantisation_keeps_the_largest_of_each_row(fraction):
    S = similarity(random(20, 6))
    values, columns = top_similarities(S, fraction)
    again = dense(values, columns)
    assert values.shape == columns.shape == (20, min(20, int(fraction * 20) + 1))
    assert torch.equal(again[again != 0], S[again != 0])
    assert torch.equal(again.diagonal(), S.diagonal())
    left_out = S.masked_fill(again != 0, -2).amax(dim=1)
    assert (left_out <= values.min(dim=1).values).all()
    assert torch.equal(again, S) == (fraction == 1)


def test_it_is_kullback_leibler_over_the_anchors():
    q, anchors, targets = random(5, 4), random(7, 4, seed=1), random(5, 7, seed=2).exp()
    student = (normalize(q) @ normalize(anchors).T / 0.3).log_softmax(dim=1)
    expected = kl_div(student, rows_of_sum_one(targets), reduction="batchmean")
    torch.testing.assert_close(similarity_distillation(q, anchors, targets, 0.3), expected)
    targets[:, 4:] = 0  # anchors that are not there yet
    fewer = similarity_distillation(q, anchors[:4], targets[:, :4], 0.3)
    torch.testing.assert_close(similarity_distillation(q, anchors, targets, 0.3), fewer)


def slow_attended(values, queries, keys, of_queries, of_keys):
    rows = []
    for i in range(len(values)):
        query = queries[i] @ of_queries / np.sqrt(2)
        scores = [query @ (keys[i, teacher] @ of_keys / np.sqrt(2)) for teacher in range(values.shape[1])]
        rows.append(sum(weight * values[i, n] for n, weight in enumerate(softmax(np.array(scores)))))
    return np.stack(rows)


def test_attention_and_its_gradients_retold():
    """Two images, three numbers an embedding, four teachers, two numbers a key."""
    shapes, scalar = ((2, 4, 3), (2, 2), (2, 4, 2), (2, 2), (2, 2)), random(2, 3, seed=9).double()
    given = [random(*shape, seed=seed).double().requires_grad_() for seed, shape in enumerate(shapes)]
    found, plain = attended(*given), [tensor.detach().numpy() for tensor in given]
    np.testing.assert_allclose(found.detach(), slow_attended(*plain), rtol=1e-6)
    (found * scalar).sum().backward()
    for argument, tensor in enumerate(given):

        def moved(at, argument=argument):
            changed = [at if k == argument else array for k, array in enumerate(plain)]
            return float((slow_attended(*changed) * scalar.numpy()).sum())

        np.testing.assert_allclose(tensor.grad, numeric_gradient(moved, plain[argument]), atol=1e-7, rtol=1e-5)
    values, queries, keys, *others = given
    alone = attended(values[:, :1], queries, keys[:, :1], *others)  # is its own mean, and teaches the student nothing
    torch.testing.assert_close(alone, values[:, 0])
    assert not torch.autograd.grad(alone.sum(), queries)[0].any()
