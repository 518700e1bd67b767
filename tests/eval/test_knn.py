"""Weighted kNN against a loop in NumPy, the worked vote, and its invariants."""

import math
import resource
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.features import EvalError, Features
from eval.inputs import Subject
from eval.knn import crowded, knn, knn_by_k, knn_predict
from eval.protocol import evaluate
from tests import run_helpers

GOLDEN_BANK = torch.tensor([[c, math.sqrt(1 - c * c)] for c in (0.9, 0.8, 0.7)])
GOLDEN_QUERY = torch.tensor([[1.0, 0.0]])


def draw(n, m, d=8, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, d, generator=generator)
    y = torch.randint(classes, (n + m,), generator=generator)
    x = centres[y] + torch.randn(n + m, d, generator=generator)
    return x[:n], y[:n], x[n:], y[n:]


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
def test_equals_brute_force_for_every_bank_k_and_temperature(rows, k, temperature, seed):
    k = min(k, rows)
    train_x, train_y, test_x, _ = draw(rows, 10, seed=seed)
    predicted = knn_predict(train_x, train_y, test_x, 5, k, temperature)
    assert predicted.tolist() == brute_force(train_x, train_y, test_x, 5, k, temperature)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(rows=st.integers(1, 2500))
def test_more_neighbours_than_a_tenth_of_the_images_are_noted(rows):
    """Whatever its size, a bank of fewer than ten images a neighbour is named, and no other."""
    x, y, test_x, test_y = draw(rows, 3)
    features, lines = Features(train_x=x, train_y=y, test_x=test_x, test_y=test_y, num_classes=5), []
    evaluate(Subject(features=features, on_note=lines.append), ["knn/v1"])
    assert lines == ([crowded(200, rows)] if rows < 2000 else [])
    assert all(f" {min(200, rows)} neighbours of {rows:,} training images" in line for line in lines)


@pytest.mark.parametrize(("temperature", "winner"), [(0.1, 0), (1.0, 1)])
def test_golden_vote(temperature, winner):
    # one neighbour of class 0 at .9 against two of class 1 at .8 and .7: 8103.08 to 4077.59, or 2.4596 to 4.2394
    labels = torch.tensor([0, 1, 1])
    assert knn_predict(GOLDEN_BANK, labels, GOLDEN_QUERY, 2, 3, temperature).tolist() == [winner]


def test_one_neighbour_gives_the_nearest_label():
    x, y, queries, _ = draw(100, 30)
    assert torch.equal(knn_predict(x, y, x, 5, 1, 0.1), y)
    cosine = torch.cosine_similarity(queries[:, None], x[None], dim=2)
    assert torch.equal(knn_predict(x, y, queries, 5, 1, 0.1), y[cosine.argmax(dim=1)])


def test_a_hot_vote_is_the_majority():
    x, _, queries, _ = draw(9, 20)
    y = torch.tensor([4, 0, 4, 1, 1, 4, 2, 4, 0])
    winner = Counter(y.tolist()).most_common(1)[0][0]
    assert knn_predict(x, y, queries, 5, 9, 1e6).tolist() == [winner] * 20


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


@pytest.mark.parametrize("k", [0, 4])
def test_k_outside_the_bank_is_an_error(k):
    with pytest.raises(EvalError, match=rf"k={k} neighbours in a bank of 3 rows: give k in 1\.\.3"):
        knn_predict(GOLDEN_BANK, torch.zeros(3, dtype=torch.int64), GOLDEN_QUERY, 2, k, 0.1)


def test_temperature_must_be_positive():
    with pytest.raises(EvalError, match="temperature of 0 "):
        knn_predict(GOLDEN_BANK, torch.zeros(3, dtype=torch.int64), GOLDEN_QUERY, 2, 1, 0)


def test_score_is_percent_and_includes_a_smaller_k():
    x, y, queries, truth = draw(250, 40)
    features = Features(
        train_x=x, train_y=y, train_clients=torch.zeros(250).long(), test_x=queries, test_y=truth, num_classes=5
    )
    expected = np.mean(np.array(brute_force(x, y, queries, 5, 200, 0.1)) == truth.numpy()) * 100
    assert knn(features) == {"accuracy": pytest.approx(expected)}
    expected = np.mean(np.array(brute_force(x, y, queries, 5, 250, 0.1)) == truth.numpy()) * 100
    assert knn(features, k=300) == {"accuracy": pytest.approx(expected), "k": 250.0}


def test_scores_at_several_k_equal_those_at_each_k():
    x, y, queries, truth = draw(250, 40)
    features = Features(train_x=x, train_y=y, test_x=queries, test_y=truth, num_classes=5)
    scores = knn_by_k(features, (1, 3, 7, 10_000), 0.1)
    assert scores == {f"accuracy_k{k}": knn(features, k, 0.1)["accuracy"] for k in (1, 3, 7)}
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
