"""Weighted kNN against a loop in NumPy, and its invariants."""

import math
import resource

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eval.features import EvalError, Features
from eval.inputs import Subject
from eval.knn import crowded, knn, knn_by_k, knn_predict
from eval.protocol import evaluate
from tests import run_helpers


def draw(n, m, d=8, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, d, generator=generator)
    y = torch.randint(classes, (n + m,), generator=generator)
    x = centres[y] + torch.randn(n + m, d, generator=generator)
    return x[:n], y[:n], x[n:], y[n:]


def drawn(n, m):
    return Features(**dict(zip(("train_x", "train_y", "test_x", "test_y"), draw(n, m), strict=True)), num_classes=5)


def brute_force(train_x, train_y, test_x, num_classes, k, temperature):
    train_x, test_x = train_x.double().numpy(), test_x.double().numpy()
    predicted = []
    for query in test_x:
        cosine = [query @ row / (np.linalg.norm(query) * np.linalg.norm(row)) for row in train_x]
        votes = np.zeros(num_classes)
        for i in sorted(range(len(cosine)), key=lambda i: -cosine[i])[:k]:
            votes[train_y[i]] += math.exp(cosine[i] / temperature)
        predicted.append(int(votes.argmax()))
    return predicted


@given(rows=st.integers(1, 200), k=st.integers(1, 200), temperature=st.floats(0.05, 2), seed=st.integers(0, 99))
@example(rows=100, k=1, temperature=0.1, seed=0)
@example(rows=9, k=9, temperature=1e6, seed=0)
def test_equals_brute_force_for_every_bank_k_and_temperature(rows, k, temperature, seed):
    k = min(k, rows)
    train_x, train_y, test_x, _ = draw(rows, 10, seed=seed)
    predicted = knn_predict(train_x, train_y, test_x, 5, k, temperature)
    assert predicted.tolist() == brute_force(train_x, train_y, test_x, 5, k, temperature)


@given(rows=st.integers(1, 2500))
@example(rows=1999)
@example(rows=2000)
def test_more_neighbours_than_a_tenth_of_the_images_are_noted(rows):
    """Whatever its size, a bank of fewer than ten images a neighbour is named, and no other."""
    lines = []
    evaluate(Subject(features=drawn(rows, 3), on_note=lines.append), ["knn/v1"])
    assert lines == ([crowded(200, rows)] if rows < 2000 else [])
    assert all(f" {min(200, rows)} neighbours of {rows:,} training images" in line for line in lines)


def test_a_cold_vote_does_not_overflow():
    x, y, queries, _ = draw(100, 30)
    assert torch.equal(knn_predict(x, y, queries, 5, 50, 1e-4), knn_predict(x, y, queries, 5, 1, 0.1))


@settings(max_examples=10)
@given(st.integers(1, 70))
def test_scale_and_chunk_change_nothing(chunk):
    x, y, queries, _ = draw(200, 61)
    expected = knn_predict(x, y, queries, 5, 20, 0.1)
    scale = 2.0 ** torch.randint(-3, 4, (200, 1), generator=torch.Generator().manual_seed(1))
    assert torch.equal(knn_predict(x * scale, y, queries * 8, 5, 20, 0.1), expected)
    assert torch.equal(knn_predict(x, y, queries, 5, 20, 0.1, chunk=chunk), expected)


@pytest.mark.parametrize(
    ("k", "temperature", "message"),
    [(k, 0.1, rf"k={k} neighbours in a bank of 3 rows: give k in 1\.\.3") for k in (0, 4)]
    + [(1, 0, "temperature of 0 ")],
)
def test_k_outside_the_bank_and_a_temperature_of_zero_are_errors(k, temperature, message):
    with pytest.raises(EvalError, match=message):
        knn_predict(torch.eye(3), torch.zeros(3, dtype=torch.int64), torch.eye(3), 2, k, temperature)


def test_scores_are_percent_at_each_k_of_several_and_at_a_smaller_k():
    x, y, queries, truth = draw(250, 40)
    features, ks = drawn(250, 40), (1, 3, 7, 200, 250)
    expected = {
        k: pytest.approx(100 * np.mean(np.array(brute_force(x, y, queries, 5, k, 0.1)) == truth.numpy())) for k in ks
    }
    assert knn(features) == {"accuracy": expected[200]}
    assert knn(features, k=300) == {"accuracy": expected[250], "k": 250.0}
    scores = knn_by_k(features, (1, 3, 7, 10_000), 0.1)
    assert scores == {f"accuracy_k{k}": expected[k] for k in (1, 3, 7)}
    assert len(set(scores.values())) > 1
    assert knn_by_k(features, (10_000,), 0.1) == {}


def test_fifty_thousand_rows_of_512_fit_into_two_gibibytes(tmp_path):
    """The whole process, libraries included; queries come in chunks, so that their number does not matter."""
    child = run_helpers.in_child(neighbours_of_a_large_bank, tmp_path / "peak")
    assert run_helpers.finish(child, 200) == 0
    assert int((tmp_path / "peak").read_text()) < 2 * 2**30


def neighbours_of_a_large_bank(file):
    torch.set_num_threads(1)
    bank, queries = torch.randn(50_000, 512), torch.randn(2_000, 512)
    knn_predict(bank, torch.zeros(50_000, dtype=torch.int64), queries, 10, k=200, temperature=0.1)
    file.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
