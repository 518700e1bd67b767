"""Metrics equal the functions of the same name, on one rank and on two."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed

from eval.features import EvalError
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn_predict
from eval.metrics import Alignment, EffectiveRank, KNNAccuracy, Uniformity
from tests import run_helpers

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 5, generator=GENERATOR)
NEAR = X + 0.3 * torch.randn(60, 5, generator=GENERATOR)
Y = torch.randint(3, (60,), generator=GENERATOR)


def values_of(indices, batch_size=11):
    """Values of all metrics of these rows, in batches."""
    metrics = {"knn": KNNAccuracy(3, k=7), "rank": EffectiveRank(), "uniform": Uniformity(), "align": Alignment()}
    for rows in indices.split(batch_size):
        for name in ("rank", "uniform"):
            metrics[name].update(X[rows])
        metrics["align"].update(X[rows], NEAR[rows])
        bank, queries = rows[rows >= 20], rows[rows < 20]
        metrics["knn"].update(X[bank], Y[bank], bank=True)
        metrics["knn"].update(X[queries], Y[queries])
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@settings(max_examples=15)
@given(st.permutations(range(60)).map(torch.tensor), st.integers(1, 60))
def test_metrics_equal_their_functions_in_any_order_and_batches(order, batch_size):
    values = values_of(order, batch_size)
    predicted = knn_predict(X[20:], Y[20:], X[:20], 3, k=7, temperature=0.1)
    u, v = (x.double().numpy() / np.linalg.norm(x.double().numpy(), axis=1, keepdims=True) for x in (X, NEAR))
    assert values == {
        "knn": pytest.approx(100 * float((predicted == Y[:20]).double().mean())),
        "rank": pytest.approx(effective_rank(X)),
        "uniform": pytest.approx(uniformity_parts(X, torch.zeros(60))["total"]),
        "align": pytest.approx(float(((u - v) ** 2).sum(axis=1).mean()), abs=1e-6),
    }


def test_a_small_bank_is_used_whole():
    metric = KNNAccuracy(3, k=200)
    metric.update(X, Y, bank=True)
    with pytest.raises(EvalError, match="bank=False"):
        metric.compute()
    metric.update(X, Y)
    predicted = knn_predict(X, Y, X, 3, k=60, temperature=0.1)
    assert float(metric.compute()) == pytest.approx(100 * float((predicted == Y).double().mean()))


def test_what_does_not_fit_is_an_error():
    """Rows of another shape or not finite, labels, views, and queries without a bank."""
    for wrong in (X[:, :, None], X[0], torch.full((3, 5), torch.nan)):
        for update in (EffectiveRank().update, Uniformity().update, lambda x: KNNAccuracy(3).update(x, Y[: len(x)])):
            with pytest.raises(EvalError, match="finite numbers"):
                update(wrong)
    for labels in (Y + 3, Y[:5], -Y - 1, Y.float()):
        with pytest.raises(EvalError, match=r"give one in 0\.\.2 each"):
            KNNAccuracy(3).update(X, labels)
    with pytest.raises(EvalError, match="two of the same images"):
        Alignment().update(X, X[:1])
    queries = KNNAccuracy(3)
    queries.update(X, Y)
    with pytest.raises(EvalError, match="bank=True"):
        queries.compute()


def test_a_reset_metric_starts_again_and_a_batch_has_a_value_of_its_own():
    """As a trainer resets the metrics that a module logs, and logs them step by step."""
    for metric, rows, expected in ((EffectiveRank(), (X,), effective_rank(X)), (Alignment(), (X, 2 * X), 0)):
        metric.update(*(torch.rand(5, 5) for _ in rows))
        metric.reset()
        assert float(metric(*rows)) == pytest.approx(expected, abs=1e-6)
        metric(*(torch.rand(5, 5) for _ in rows))
        assert abs(float(metric.compute()) - expected) > 1e-3


@pytest.mark.ranks
def test_two_ranks_compute_the_same(tmp_path):
    """With unequal rows, and where one has none of a kind."""
    ranks = run_helpers.by_hand({"RANK": "0"}, {"RANK": "1"})
    children = [run_helpers.in_child(on_one_rank, tmp_path, environment=rank) for rank in ranks]
    assert [run_helpers.finish(child) for child in children] == [0, 0]
    alone = values_of(torch.arange(60))
    for rank in (0, 1):
        unequal, divided = torch.load(tmp_path / f"{rank}.pt")
        assert unequal == pytest.approx(alone, abs=1e-6)
        assert divided == pytest.approx({name: alone[name] for name in divided}, abs=1e-6)


def on_one_rank(folder):
    """Rank 0 has every third row, rank 1 the others; then see `divided`."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, rows = int(os.environ["RANK"]), torch.arange(60)
    torch.save((values_of(rows[(rows % 3 == 0) == (rank == 0)]), divided(rank)), folder / f"{rank}.pt")
    distributed.destroy_process_group()


def divided(rank):
    """Values on one of two ranks: rank 0 has the bank and all rows, rank 1 only the queries."""
    metrics = {"knn": KNNAccuracy(3, k=7), "rank": EffectiveRank(), "uniform": Uniformity()}
    if rank == 0:
        metrics["knn"].update(X[20:], Y[20:], bank=True)
        for name in ("rank", "uniform"):
            metrics[name].update(X)
    else:
        metrics["knn"].update(X[:20], Y[:20])
    with pytest.raises(EvalError, match="EffectiveRank was computed before update"):
        EffectiveRank().compute()
    return {name: float(metric.compute()) for name, metric in metrics.items()}
