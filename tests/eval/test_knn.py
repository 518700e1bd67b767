"""Weighted kNN against a loop in NumPy, and its invariants."""

import math
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from eval.features import EvalError, Features
from eval.inputs import Subject
from eval.knn import crowded, knn, knn_by_k, knn_predict, neighbours
from eval.protocol import evaluate
from tests import run_helpers


def draw(n, m, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 8, generator=generator)
    y = torch.randint(5, (n + m,), generator=generator)
    x = centres[y] + torch.randn(n + m, 8, generator=generator)
    return Features(train_x=x[:n], train_y=y[:n], test_x=x[n:], test_y=y[n:], num_classes=5)


def brute_force(given, k, temperature):
    train_x, test_x = given.train_x.double().numpy(), given.test_x.double().numpy()
    predicted = []
    for query in test_x:
        cosine = [query @ row / (np.linalg.norm(query) * np.linalg.norm(row)) for row in train_x]
        votes = np.zeros(5)
        for i in sorted(range(len(cosine)), key=lambda i: -cosine[i])[:k]:
            votes[given.train_y[i]] += math.exp(cosine[i] / temperature)
        predicted.append(int(votes.argmax()))
    return predicted


def predict(given, k, temperature, scale=1.0, **chunk):
    return knn_predict(given.train_x * scale, given.train_y, given.test_x * 8, 5, k, temperature, **chunk)


@given(st.integers(1, 200), st.integers(1, 200), st.floats(0.05, 2), st.integers(0, 99), st.integers(1, 12))
@example(rows=100, k=1, temperature=0.1, seed=0, chunk=3)
@example(rows=9, k=9, temperature=1e6, seed=0, chunk=12)
def test_equals_brute_force_for_every_bank_k_temperature_scale_and_chunk(rows, k, temperature, seed, chunk):
    features = draw(rows, 10, seed=seed)
    scale = 2.0 ** torch.randint(-3, 4, (rows, 1), generator=torch.Generator().manual_seed(1))
    predicted = predict(features, min(k, rows), temperature, scale, chunk=chunk)
    assert predicted.tolist() == brute_force(features, min(k, rows), temperature)


@given(rows=st.integers(1, 2500))
@example(rows=1999)
@example(rows=2000)
def test_more_neighbours_than_a_tenth_of_the_images_are_noted(rows):
    """Whatever its size, a bank of fewer than ten images a neighbour is named, and no other."""
    lines = []
    evaluate(Subject(features=draw(rows, 3), on_note=lines.append), ["knn/v1"])
    assert lines == ([crowded(200, rows)] if rows < 2000 else [])
    assert all(f" {min(200, rows)} neighbours of {rows:,} training images" in line for line in lines)


def test_a_cold_vote_does_not_overflow():
    features = draw(100, 30)
    assert torch.equal(predict(features, 50, 1e-4), predict(features, 1, 0.1))


@pytest.mark.parametrize(
    ("k", "temperature", "message"),
    [(k, 0.1, rf"k={k} neighbours in a bank of 3 rows: give k in 1\.\.3") for k in (0, 4)]
    + [(1, 0, "temperature of 0 ")],
)
def test_k_outside_the_bank_and_a_temperature_of_zero_are_errors(k, temperature, message):
    with pytest.raises(EvalError, match=message):
        knn_predict(torch.eye(3), torch.zeros(3, dtype=torch.int64), torch.eye(3), 2, k, temperature)


def test_scores_are_percent_at_each_k_of_several_and_at_a_smaller_k():
    features = draw(250, 40)
    expected = {
        k: pytest.approx(100 * np.mean(np.array(brute_force(features, k, 0.1)) == features.test_y.numpy()))
        for k in (1, 3, 7, 200, 250)
    }
    assert knn(features) == {"accuracy": expected[200]}
    assert knn(features, k=300) == {"accuracy": expected[250], "k": 250.0}
    scores = knn_by_k(features, (1, 3, 7, 10_000), 0.1)
    assert scores == {f"accuracy_k{k}": expected[k] for k in (1, 3, 7)}
    assert len(set(scores.values())) > 1
    assert knn_by_k(features, (10_000,), 0.1) == {}


def test_protocols_with_the_same_largest_k_search_once(monkeypatch):
    features, searched = draw(250, 40), []
    alone = [knn(replace(features)), knn_by_k(replace(features), (3, 200), 0.1), knn(replace(features), k=7)]
    monkeypatch.setattr("eval.knn.neighbours", lambda *args: searched.append(args[-1]) or neighbours(*args))
    assert [knn(features), knn_by_k(features, (3, 200), 0.1), knn(features, k=7)] == alone
    assert searched == [200, 7]


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
