from typing import ClassVar

import pytest
import torch

from methods.base import Outputs
from methods.maths import correlation
from tests.methods.contract import WEIGHTS, InterfaceContract, MethodContract
from tests.run_helpers import build_run, collect_visits

SPECTRAL = "objective=spectral objective.negatives=correlation objective.mu=4"
"""FedAvg's overrides for FedSC's local loss."""
ALONE = "partition.name=iid partition.clients=1"


def after_a_round(folder, *words):
    """A loop after its first round."""
    loop = build_run(folder, "fedsc", *words).loop
    loop.restore()
    loop.run_round(0)
    return loop


def matrices(loop):
    return torch.stack([loop.server["R"][client]["R"] for client in range(4)])


class TestFedSC(MethodContract):
    method = "fedsc"
    equals = (
        (ALONE, f"fedavg {SPECTRAL} {ALONE}", "weights"),
        ("method.alpha_end=1", f"fedavg {SPECTRAL} method.weighting=clients", 1e-6),  # the others do not count
    )
    refused: ClassVar = {
        "method.sigma=0.3 federation.batch_norm=local": "batch_norm=local",
        "objective=simclr": "objective=spectral",
    }

    def bill(self, run):
        matrices = {("correlate", "up", "R"): 4 * 8 * 8, ("fit", "down", "others"): 4 * 8 * 8}
        return {("correlate", "down", "weights"): WEIGHTS, ("fit", "up", "weights"): WEIGHTS, **matrices}

    def test_everyone_correlates_in_round_0_and_the_cohort_later(self, unbroken):
        planned = [[phase.cohort for phase in unbroken.loop.method.plan(round)] for round in (0, 1)]
        assert planned == [["all", "sampled"], ["sampled", "sampled"]]
        assert set(unbroken.loop.server["R"]) == {0, 1, 2, 3}

    def test_matrices_of_absent_clients_stay_and_others_is_the_mean_of_the_rest(self, tmp_path):
        loop = (run := build_run(tmp_path, "fedsc")).loop
        seen = collect_visits(run, lambda done: (done.visit.client.id, done.visit.message["others"]["R"]), "fit")
        loop.restore()
        loop.run_round(0)
        first = matrices(loop)
        loop.run_round(1)
        second, present = matrices(loop), set(loop.streams.cohort(1, 4, 0.5))
        assert {client for client in range(4) if not torch.equal(first[client], second[client])} == present
        others = dict(seen)  # of the last round a client took part in
        for client in present:
            torch.testing.assert_close(others[client], (second.sum(0) - second[client]) / 3)

    def test_the_shared_matrix_is_the_clipped_correlation_of_the_clients_own_views(self, tmp_path):
        for R in matrices(after_a_round(tmp_path, "method.passes=1", "objective.mu=0.5")):
            torch.testing.assert_close(R, R.T)
            assert float(torch.linalg.eigvalsh(R.double()).min()) > -1e-6
            assert 0 < float(R.trace()) <= 0.5 + 1e-5  # rows are clipped to squared norm mu

    def test_the_clients_losses_and_gradients_are_the_pooled_ones(self, tmp_path):
        """FedSC's decomposition with alpha = q_j: the clients' weighted losses have the pooled loss's gradient.

        Their values sum to the pooled loss too, less half the cross terms, which count twice.
        """
        method = build_run(tmp_path, "fedsc").loop.method
        generator, sizes = torch.Generator().manual_seed(0), (3, 5, 8)
        views = [[torch.randn(n, 5, generator=generator, dtype=torch.float64) for _ in "ab"] for n in sizes]
        pooled = [torch.cat(view).requires_grad_() for view in zip(*views, strict=True)]
        method.context = {}
        (whole := method.loss(Outputs((), tuple(pooled)), None)).backward()
        leaves = [[view.clone().requires_grad_() for view in client] for client in views]
        own = [correlation(torch.cat(client)) for client in views]
        weights, total = [n / 16 for n in sizes], 0.0
        for j, (weight, client) in enumerate(zip(weights, leaves, strict=True)):
            rest = sum(weights[i] * own[i] for i in range(3) if i != j) / (1 - weight)
            method.context = {"others": {"R": rest}, "cross": {"weight": 1 - weight}}
            loss = weight * method.loss(Outputs((), tuple(client)), None)
            loss.backward()
            total += float(loss.detach()) - weight * (1 - weight) * float((own[j] * rest).sum())
        assert total == pytest.approx(float(whole.detach()), abs=1e-6)
        for ours, view in zip(zip(*leaves, strict=True), pooled, strict=True):
            torch.testing.assert_close(torch.cat([leaf.grad for leaf in ours]), view.grad, rtol=1e-5, atol=1e-6)

    def test_noise_is_on_what_is_shared_depends_on_the_client_and_is_drawn_anew_every_round(self, tmp_path):
        """At learning rate 0 only noise and views change a client's matrix from round to round."""
        words = ("optimizer.lr=0", "federation.participation=1")
        noisy, plain = after_a_round(tmp_path / "a", *words, "method.sigma=0.3"), after_a_round(tmp_path / "b", *words)
        first = matrices(noisy)
        added = first - matrices(plain)
        assert float(added.std()) == pytest.approx(0.3, rel=0.15)
        assert abs(float(added.mean())) < 0.06
        assert abs(float((added[0] * added[1]).mean())) < 0.03
        noisy.run_round(1)
        for change in matrices(noisy) - first:
            assert float(change.std()) == pytest.approx(0.3 * 2**0.5, rel=0.25)

    def test_alpha_is_linear_over_rounds(self, tmp_path):
        run = build_run(tmp_path, "fedsc", "federation.rounds=4")
        method = run.loop.method
        seen = collect_visits(run, lambda done: (done.visit.round, 1 - float(method.context["cross"]["weight"])))
        run.loop.fit()
        assert dict(seen) == pytest.approx({0: 1.0, 1: 0.8, 2: 0.6, 3: 0.4})


class TestNoisyFedSC(InterfaceContract):
    """FedSC with noise: the privacy that clients have spent survives a kill, and is the same on two ranks."""

    variant = True
    method = "fedsc"
    overrides = ("method.sigma=0.05",)
    batch_norm = ("average", "recalibrate")
    falls = False  # noise of four rounds in a row is no smaller than the matrices
    bill = TestFedSC.bill

    def test_every_release_is_on_the_account(self, unbroken):
        seen = {client: sum(counted.values()) for client, counted in unbroken.loop.accountant.releases.items()}
        cohorts = [unbroken.loop.streams.cohort(round, 4, 0.5) for round in (1, 2)]
        assert seen == {client: 1 + sum(client in cohort for cohort in cohorts) for client in range(4)}
