"""The attention over several teachers, against a slow NumPy version and in its degenerate cases."""

import numpy as np
import pytest
import torch

from methods.maths import attended
from tests.methods.test_maths import numeric_gradient, random, softmax

NAMES = ("values", "queries", "keys", "of_queries", "of_keys")
OF_THE_RESULT = random(2, 3, seed=9).double()
"""Makes a scalar of the means `[2, 3]`."""


def case():
    """Two images, three numbers an embedding, four teachers, two numbers a key, in double precision."""
    shapes = ((2, 4, 3), (2, 2), (2, 4, 2), (2, 2), (2, 2))
    return [random(*shape, seed=seed).double() for seed, shape in enumerate(shapes)]


def slow(values, queries, keys, of_queries, of_keys):
    rows = []
    for i in range(len(values)):
        query, scores = queries[i] @ of_queries / np.sqrt(2), []
        for teacher in range(values.shape[1]):
            scores.append(query @ (keys[i, teacher] @ of_keys / np.sqrt(2)))
        rows.append(sum(weight * values[i, n] for n, weight in enumerate(softmax(np.array(scores)))))
    return np.stack(rows)


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_retold(name):
    tensors = dict(zip(NAMES, case(), strict=True))
    tensors[name].requires_grad_()
    found = attended(*tensors.values())
    (found * OF_THE_RESULT).sum().backward()
    plain = {key: tensor.detach().numpy() for key, tensor in tensors.items()}
    np.testing.assert_allclose(found.detach(), slow(**plain), rtol=1e-6)

    def scalar(at):
        return float((slow(**{**plain, name: at}) * OF_THE_RESULT.numpy()).sum())

    np.testing.assert_allclose(tensors[name].grad, numeric_gradient(scalar, plain[name]), atol=1e-7, rtol=1e-5)


def test_one_teacher_is_its_own_mean_and_nothing_is_learnt_of_it():
    values, queries, *others = case()
    found = attended(values[:, :1], queries.requires_grad_(), others[0][:, :1], *others[1:])
    torch.testing.assert_close(found, values[:, 0])
    found.sum().backward()
    assert queries.grad.abs().max() == 0
