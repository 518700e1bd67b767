"""The metrics are the functions they are named after, on one rank and on two."""

import os

import numpy as np
import pytest
import torch
from torch import distributed

from eval.features import EvalError
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn_predict
from eval.metrics import Alignment, EffectiveRank, KNNAccuracy, Uniformity
from tests import run_helpers

pytestmark = pytest.mark.usefixtures("one_thread")
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 5, generator=GENERATOR)
NEAR = X + 0.3 * torch.randn(60, 5, generator=GENERATOR)
Y = torch.randint(3, (60,), generator=GENERATOR)


def shown(share):
    """Values of all metrics that were shown these rows, in uneven batches."""
    metrics = {"knn": KNNAccuracy(3, k=7), "rank": EffectiveRank(), "uniform": Uniformity(), "align": Alignment()}
    for rows in share.split(11):
        metrics["rank"].update(X[rows])
        metrics["uniform"].update(X[rows])
        metrics["align"].update(X[rows], NEAR[rows])
        held = rows[rows >= 20]
        metrics["knn"].update(X[held], Y[held], bank=True)
        asked = rows[rows < 20]
        metrics["knn"].update(X[asked], Y[asked])
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@pytest.fixture(scope="module")
def alone():
    return shown(torch.arange(60))


def test_metrics_are_their_functions(alone):
    voted = knn_predict(X[20:], Y[20:], X[:20], 3, k=7, temperature=0.1)
    assert alone["knn"] == pytest.approx(100 * float((voted == Y[:20]).double().mean()))
    assert alone["rank"] == pytest.approx(effective_rank(X))
    assert alone["uniform"] == pytest.approx(uniformity_parts(X, torch.zeros(60))["total"])


def test_alignment_is_numpys(alone):
    u, v = (part.double().numpy() / np.linalg.norm(part.double().numpy(), axis=1, keepdims=True) for part in (X, NEAR))
    assert alone["align"] == pytest.approx(float(((u - v) ** 2).sum(axis=1).mean()), abs=1e-6)


def test_a_reset_forgets(alone):
    metric = EffectiveRank()
    metric.update(10 * X[:5])
    metric.reset()
    metric.update(X)
    assert float(metric.compute()) == pytest.approx(alone["rank"])


def test_a_small_bank_is_used_whole():
    metric = KNNAccuracy(3, k=200)
    metric.update(X, Y, bank=True)
    metric.update(X, Y)
    voted = knn_predict(X, Y, X, 3, k=60, temperature=0.1)
    assert float(metric.compute()) == pytest.approx(100 * float((voted == Y).double().mean()))


@pytest.mark.parametrize(("bank", "missing"), [(True, "bank=False"), (False, "bank=True")])
def test_knn_wants_a_bank_and_queries(bank, missing):
    metric = KNNAccuracy(3)
    metric.update(X, Y, bank=bank)
    with pytest.raises(EvalError, match=missing):
        metric.compute()


@pytest.mark.parametrize("wrong", [X[:, :, None], X[0], torch.full((3, 5), torch.nan)])
def test_what_is_no_rows_is_refused(wrong):
    for metric in (EffectiveRank(), Uniformity()):
        with pytest.raises(EvalError, match="finite numbers"):
            metric.update(wrong)
    with pytest.raises(EvalError, match="finite numbers"):
        KNNAccuracy(3).update(wrong, Y[: len(wrong)])


def test_labels_and_views_that_do_not_fit_are_refused():
    for labels in (Y + 3, Y[:5], -Y - 1):
        with pytest.raises(EvalError, match=r"give one in 0\.\.2 each"):
            KNNAccuracy(3).update(X, labels)
    with pytest.raises(EvalError, match="two of the same images"):
        Alignment().update(X, X[:1])


def test_metrics_take_part_in_a_lightning_loop():
    """Logged as they are, a trainer updates, computes and resets them."""
    from lightning.pytorch import LightningModule, Trainer

    class Watched(LightningModule):
        def __init__(self):
            super().__init__()
            self.rank = EffectiveRank()

        def validation_step(self, batch, batch_idx):
            self.rank.update(batch)
            self.log("rank", self.rank, on_epoch=True)

    trainer = Trainer(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    loader = torch.utils.data.DataLoader(X, batch_size=25)
    for _ in range(2):
        (found,) = trainer.validate(Watched(), loader, verbose=False)
        assert found["rank"] == pytest.approx(effective_rank(X), abs=1e-4)


def by_two(values, folder):
    """What `values(rank)` is on each of two ranks that run it together."""
    ranks = run_helpers.by_hand({"RANK": "0"}, {"RANK": "1"})
    children = [run_helpers.in_child(one_rank, values, folder, environment=rank) for rank in ranks]
    assert [run_helpers.finish(child) for child in children] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def one_rank(values, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.save(values(rank), folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.ranks
def test_two_ranks_of_unequal_shares_compute_the_same(alone, tmp_path):
    for found in by_two(half, tmp_path):
        assert found == pytest.approx(alone, abs=1e-6)


def half(rank):
    """One rank of two: it sees every third row, or all others."""
    rows = torch.arange(60)
    return shown(rows[(rows % 3 == 0) == (rank == 0)])


@pytest.mark.ranks
def test_a_rank_that_has_seen_nothing_takes_part(alone, tmp_path):
    for found in by_two(apart, tmp_path):
        assert found == pytest.approx({name: alone[name] for name in found}, abs=1e-6)


def apart(rank):
    """One rank of two: the first has the bank and all rows, the second the queries alone."""
    metrics = {"knn": KNNAccuracy(3, k=7), "rank": EffectiveRank(), "uniform": Uniformity()}
    if rank == 0:
        metrics["knn"].update(X[20:], Y[20:], bank=True)
        metrics["rank"].update(X)
        metrics["uniform"].update(X)
    else:
        metrics["knn"].update(X[:20], Y[:20])
    with pytest.raises(EvalError, match="EffectiveRank was asked before update"):
        EffectiveRank().compute()
    return {name: float(metric.compute()) for name, metric in metrics.items()}
