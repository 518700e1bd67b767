import pytest
import torch

from methods import trees
from methods.base import MethodError
from methods.maths import correlation
from tests import playing
from tests.methods.contract import WEIGHTS, MethodContract


class TestFedSC(MethodContract):
    method = "fedsc"

    def bill(self, run):
        matrix = 4 * 8 * 8
        return {
            ("correlate", "down", "weights"): WEIGHTS,
            ("correlate", "up", "R"): matrix,
            ("fit", "down", "others"): matrix,
            ("fit", "up", "weights"): WEIGHTS,
        }

    def test_with_one_client_it_is_the_spectral_objective(self, tmp_path):
        one = ("partition.name=iid", "partition.clients=1")
        fedsc = playing.played(tmp_path / "a", "fedsc", *one)
        plain = playing.played(
            tmp_path / "b", "fedavg", "objective=spectral", "objective.negatives=correlation", "objective.mu=4", *one
        )
        assert playing.same(fedsc.federation.server["weights"], plain.federation.server["weights"])

    def test_with_alpha_one_the_others_do_not_count(self, tmp_path):
        fedsc = playing.played(tmp_path / "a", "fedsc", "method.alpha_end=1")
        plain = playing.played(
            tmp_path / "b",
            "fedavg",
            "objective=spectral",
            "objective.negatives=correlation",
            "objective.mu=4",
            "method.weighting=clients",
        )
        assert playing.difference(fedsc.federation.server["weights"], plain.federation.server["weights"]) < 1e-6

    def test_everyone_correlates_in_round_0_and_the_cohort_later(self, unbroken):
        method = unbroken.federation.method
        assert [phase.cohort for phase in method.plan(0)] == ["all", "sampled"]
        assert [phase.cohort for phase in method.plan(1)] == ["sampled", "sampled"]
        assert set(unbroken.federation.server["R"]) == {0, 1, 2, 3}

    def test_matrices_of_absent_clients_stay_and_others_is_the_mean_of_the_rest(self, tmp_path):
        run = playing.prepared(tmp_path, "fedsc")
        federation, others, matrices = run.federation, {}, []

        class Spy:
            def on_visit_end(self, federation, done):
                if done.visit.phase.name == "fit":
                    others[done.visit.client.id] = done.visit.message["others"]["R"]

        federation.callbacks = [Spy()]
        federation.start()
        for round in range(2):
            federation.play(round)
            matrices.append(trees.clone(federation.server["R"]))
        present = set(federation.streams.cohort(1, 4, 0.5))
        for client in range(4):
            moved = not torch.equal(matrices[0][client]["R"], matrices[1][client]["R"])
            assert moved == (client in present)
        for client in present:
            rest = [matrices[1][k]["R"] for k in range(4) if k != client]
            torch.testing.assert_close(others[client], sum(rest) / 3)

    def test_the_shared_matrix_is_the_clipped_correlation_of_the_clients_own_views(self, tmp_path):
        run = playing.prepared(tmp_path, "fedsc", "method.passes=1", "objective.mu=0.5")
        federation = run.federation
        federation.start()
        federation.play(0)
        for client in range(4):
            R = federation.server["R"][client]["R"]
            torch.testing.assert_close(R, R.T)
            assert float(torch.linalg.eigvalsh(R.double()).min()) > -1e-6
            assert 0 < float(R.trace()) <= 0.5 + 1e-5  # rows are clipped to squared norm mu

    def test_gradient_of_the_decomposed_loss_is_the_pooled_ones(self):
        """FedSC's decomposition: with alpha = q_j the clients' terms add up to the pooled quadratic term's gradient."""
        generator = torch.Generator().manual_seed(0)
        clients = [torch.randn(n, 5, generator=generator, dtype=torch.float64).float() for n in (6, 10)]
        sizes = torch.tensor([6.0, 10.0])
        shares = sizes / sizes.sum()
        pooled = torch.cat(clients).requires_grad_()
        (correlation(pooled).square().sum() / 2).backward()
        leaves = [client.clone().requires_grad_() for client in clients]
        matrices = [correlation(leaf) for leaf in leaves]
        total = sum(
            q * (q * R.square().sum() / 2 + (1 - q) * (R * other.detach()).sum())
            for q, R, other in zip(shares, matrices, matrices[::-1], strict=True)
        )
        total.backward()
        torch.testing.assert_close(torch.cat([leaf.grad for leaf in leaves]), pooled.grad, rtol=1e-5, atol=1e-7)

    def test_no_gradient_reaches_the_others(self, tmp_path):
        run = playing.prepared(tmp_path, "fedsc", "federation.rounds=2")
        run.federation.fit()
        assert not any(tree["R"].requires_grad for tree in run.federation.server["R"].values())

    def test_alpha_is_linear_over_rounds(self, tmp_path):
        run = playing.prepared(tmp_path, "fedsc", "federation.rounds=4")
        seen = {}

        class Spy:
            def on_visit_end(self, federation, done):
                seen[done.visit.round] = federation.method.alpha

        run.federation.callbacks = [Spy()]
        run.federation.fit()
        assert seen == pytest.approx({0: 1.0, 1: 0.8, 2: 0.6, 3: 0.4})

    def test_matrices_are_in_full_precision_under_bf16(self, tmp_path):
        run = playing.prepared(tmp_path, "fedsc", "training.precision=bf16-mixed", "federation.rounds=1")
        run.federation.fit()
        assert all(tree["R"].dtype == torch.float32 for tree in run.federation.server["R"].values())
        assert run.federation.ledger.lines[0, "correlate", "up", "R"] == 4 * 4 * 8 * 8

    def test_another_objective_is_refused(self, tmp_path):
        with pytest.raises(MethodError, match="objective=spectral"):
            playing.prepared(tmp_path, "fedsc", "objective=simclr")
