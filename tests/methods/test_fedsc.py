from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.base import Outputs
from methods.maths import correlation
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract, MethodContract

SPECTRAL = "objective=spectral objective.negatives=correlation objective.mu=4"
"""FedAvg's overrides for FedSC's local loss."""
ALONE = "partition.name=iid partition.clients=1"


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
        matrix = 4 * 8 * 8
        return {
            ("correlate", "down", "weights"): WEIGHTS,
            ("correlate", "up", "R"): matrix,
            ("fit", "down", "others"): matrix,
            ("fit", "up", "weights"): WEIGHTS,
        }

    def test_everyone_correlates_in_round_0_and_the_cohort_later(self, unbroken):
        method = unbroken.loop.method
        assert [phase.cohort for phase in method.plan(0)] == ["all", "sampled"]
        assert [phase.cohort for phase in method.plan(1)] == ["sampled", "sampled"]
        assert set(unbroken.loop.server["R"]) == {0, 1, 2, 3}

    def test_matrices_of_absent_clients_stay_and_others_is_the_mean_of_the_rest(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "fedsc")
        loop, matrices = run.loop, []
        seen = run_helpers.collect_visits(
            run, lambda done: (done.visit.client.id, done.visit.message["others"]["R"]), "fit"
        )
        loop.restore()
        for round in range(2):
            loop.run_round(round)
            matrices.append(trees.clone(loop.server["R"]))
        present = set(loop.streams.cohort(1, 4, 0.5))
        for client in range(4):
            moved = not torch.equal(matrices[0][client]["R"], matrices[1][client]["R"])
            assert moved == (client in present)
        others = dict(seen)  # of the last round a client took part in
        for client in present:
            rest = [matrices[1][k]["R"] for k in range(4) if k != client]
            torch.testing.assert_close(others[client], sum(rest) / 3)

    def test_the_shared_matrix_is_the_clipped_correlation_of_the_clients_own_views(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "fedsc", "method.passes=1", "objective.mu=0.5")
        loop = run.loop
        loop.restore()
        loop.run_round(0)
        for client in range(4):
            R = loop.server["R"][client]["R"]
            torch.testing.assert_close(R, R.T)
            assert float(torch.linalg.eigvalsh(R.double()).min()) > -1e-6
            assert 0 < float(R.trace()) <= 0.5 + 1e-5  # rows are clipped to squared norm mu

    def test_gradient_of_the_clients_losses_is_the_pooled_ones(self, tmp_path):
        """FedSC's decomposition: with alpha = q_j the clients' weighted losses have the pooled loss's gradient."""
        method = run_helpers.build_run(tmp_path, "fedsc").loop.method
        generator = torch.Generator().manual_seed(0)
        views = [[torch.randn(n, 5, generator=generator) for _ in "ab"] for n in (3, 5)]
        pooled = [torch.cat(view).requires_grad_() for view in zip(*views, strict=True)]
        method.context = {}
        method.loss(Outputs((), tuple(pooled)), None).backward()
        leaves = [[view.clone().requires_grad_() for view in client] for client in views]
        matrices = [correlation(torch.cat(client)) for client in leaves]
        for weight, client, other in zip((3 / 8, 5 / 8), leaves, matrices[::-1], strict=True):
            method.context = {"others": {"R": other.detach()}, "cross": {"weight": 1 - weight}}
            (weight * method.loss(Outputs((), tuple(client)), None)).backward()
        for ours, view in zip(zip(*leaves, strict=True), pooled, strict=True):
            torch.testing.assert_close(torch.cat([leaf.grad for leaf in ours]), view.grad, rtol=1e-5, atol=1e-6)

    def test_the_clients_losses_and_their_cross_terms_are_the_pooled_loss(self, tmp_path):
        """The decomposition itself: sum_j q_j L_j with alpha = q_j, less half the cross terms, which count twice."""
        method = run_helpers.build_run(tmp_path, "fedsc").loop.method
        generator = torch.Generator().manual_seed(0)
        views = [[torch.randn(n, 5, generator=generator).double() for _ in "ab"] for n in (3, 5, 8)]
        method.context = {}
        pooled = method.loss(Outputs((), tuple(map(torch.cat, zip(*views, strict=True)))), None)
        matrices = [correlation(torch.cat(client)) for client in views]
        weights, total = [3 / 16, 5 / 16, 8 / 16], 0.0
        for j, (weight, client) in enumerate(zip(weights, views, strict=True)):
            rest = sum(weights[i] * matrices[i] for i in range(3) if i != j) / (1 - weight)
            method.context = {"others": {"R": rest}, "cross": {"weight": 1 - weight}}
            total += weight * float(method.loss(Outputs((), tuple(client)), None))
            total -= weight * (1 - weight) * float((matrices[j] * rest).sum())
        assert total == pytest.approx(float(pooled), abs=1e-6)

    def test_noise_is_on_what_is_shared_and_depends_on_the_client_alone(self, tmp_path):
        noisy = run_helpers.build_run(tmp_path / "a", "fedsc", "method.sigma=0.3").loop
        plain = run_helpers.build_run(tmp_path / "b", "fedsc").loop
        for loop in (noisy, plain):
            loop.restore()
            loop.run_round(0)
        added = torch.stack([noisy.server["R"][k]["R"] - plain.server["R"][k]["R"] for k in range(4)])
        assert float(added.std()) == pytest.approx(0.3, rel=0.15)
        assert abs(float(added.mean())) < 0.06
        assert abs(float((added[0] * added[1]).mean())) < 0.03

    def test_alpha_is_linear_over_rounds(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "fedsc", "federation.rounds=4")
        seen = run_helpers.collect_visits(
            run, lambda done: (done.visit.round, 1 - float(run.loop.method.context["cross"]["weight"]))
        )
        run.loop.fit()
        assert dict(seen) == pytest.approx({0: 1.0, 1: 0.8, 2: 0.6, 3: 0.4})

    def test_matrices_are_in_full_precision_under_bf16(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "fedsc", "training.precision=bf16-mixed", "federation.rounds=1")
        run.loop.fit()
        assert all(tree["R"].dtype == torch.float32 for tree in run.loop.server["R"].values())
        assert run.loop.ledger.lines[0, "correlate", "up", "R"] == 4 * 4 * 8 * 8

    def test_noise_is_drawn_anew_every_round(self, tmp_path):
        """At learning rate 0 only noise and views change a client's matrix from round to round."""
        still = ("optimizer.lr=0", "federation.participation=1", "federation.rounds=2")
        noisy = run_helpers.build_run(tmp_path, "fedsc", *still, "method.sigma=0.3").loop
        noise = []
        noisy.restore()
        for round in range(2):
            noisy.run_round(round)
            noise.append([noisy.server["R"][k]["R"].clone() for k in range(4)])
        for first, second in zip(*noise, strict=True):
            assert float((first - second).std()) == pytest.approx(0.3 * 2**0.5, rel=0.25)


class TestNoisyFedSC(InterfaceContract):
    """FedSC with noise: the privacy that clients have spent survives a kill, and is the same on two ranks."""

    variant = True
    method = "fedsc"
    overrides = ("method.sigma=0.05",)
    batch_norm = ("average", "recalibrate")
    falls = False  # noise of four rounds in a row is no smaller than the matrices

    def bill(self, run):
        return TestFedSC().bill(run)

    def test_every_release_is_on_the_account(self, unbroken):
        seen = {client: sum(counted.values()) for client, counted in unbroken.loop.accountant.releases.items()}
        cohorts = [unbroken.loop.streams.cohort(round, 4, 0.5) for round in (1, 2)]
        assert seen == {client: 1 + sum(client in cohort for cohort in cohorts) for client in range(4)}
