"""Objectives with a queue of earlier rows or with prototypes: MoCo, ProtoCL and SwAV."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmark.experiment import factory
from methods.base import Client, FederatedMethod, Outputs, Visit
from methods.maths import cosines, info_nce, prototype_nce, sinkhorn, swav
from methods.objectives.moco import MoCo
from methods.objectives.protocl import ProtoCL
from methods.objectives.swav import SwAV
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, normal, step, views
from tests.methods.toys import fit_pooled

EVERY = torch.ones(7, dtype=torch.bool)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("objective", "queues", "views", "travels"),
    [("moco", ("queue",), 2, ()), ("swav", ("queue_a", "queue_b"), 1, ("prototypes",))],
)
def test_queues_stay_with_their_client_and_only_weights_travel(objective, queues, views, travels, keep, tmp_path):
    words = (f"objective={objective}", "objective.queue_size=64", f"objective.keep_queue={str(keep).lower()}")
    run = run_helpers.train_run(tmp_path, "fedavg", *words, "federation.participation=1")
    for client in run.loop.clients:
        kept = run.loop.client_state.get(client.id, {}).get("stays", {})
        assert set(kept) == (set(queues) if keep else set())
        seen = views * sum(size for size in (client.examples - client.examples % 8, client.examples % 8) if size > 1)
        assert all(int(kept[name][f"{name}_filled"]) == min(64, 3 * seen) for name in kept)
    assert {entry for direction in ("up", "down") for entry in run.loop.ledger.total(direction)} == {"weights"}
    assert set(run.loop.server["weights"]) == {"encoder", "projector", *travels}


class TestMoCo(ObjectiveContract):
    objective, targets = MoCo, True
    settings: ClassVar[dict[str, Any]] = {"queue_size": 30, "temperature": 0.3}
    refused = (("momentum", 1.5, ""), ("temperature", 0.0, ""), ("queue_size", 0, ""))

    def build(self, **settings: Any) -> MoCo:
        objective = super().build(**settings)
        objective.after_step({"queue": normalize(normal(7, 4, seed=2), dim=1)})
        return objective

    def expected(self, out: Outputs) -> Tensor:
        pairs = ((out.embeddings[0], out.targets[1]), (out.embeddings[1], out.targets[0]))
        return sum(info_nce(q, k, self.build().queue[:7], EVERY, 0.3) for q, k in pairs)

    @pytest.mark.parametrize(("momentum", "follows"), [(1.0, False), (0.0, True)])
    def test_keys_start_as_the_queries_and_follow_with_their_momentum(self, momentum: float, follows: bool):
        objective = self.build(momentum=momentum)
        before = [parameter.clone() for parameter in objective.key_encoder.parameters()]
        out = objective.eval()(*batch().views)
        torch.testing.assert_close(torch.stack(out.targets), normalize(torch.stack(out.embeddings), dim=2))
        step(objective.train(), batch())
        queries, keys = objective.encoder.parameters(), objective.key_encoder.parameters()
        for start, query, key in zip(before, queries, keys, strict=True):
            assert torch.equal(key, query if follows else start)
            assert not torch.equal(start, query)

    def test_the_queue_is_first_in_first_out_and_of_unit_rows(self):
        objective = self.build()
        first, seen = objective.queue[:7].clone(), []
        for seed in range(3):
            given = batch()._replace(views=tuple(view + seed for view in batch().views))
            seen.append(torch.cat(objective(*given.views).targets))
            step(objective, given)
            assert int(objective.queue_filled) == min(30, 7 + 10 * (seed + 1))
        torch.testing.assert_close(objective.queue, torch.cat([*seen[::-1], first])[:30])
        torch.testing.assert_close(objective.queue.norm(dim=1), torch.ones(30))
        objective = self.build(symmetric=False)  # one direction
        out = objective(*batch().views)
        expected = info_nce(out.embeddings[0], out.targets[1], objective.queue[:7], EVERY, 0.3)
        torch.testing.assert_close(objective.loss(out, batch()), expected)
        assert torch.equal(out.push["queue"], out.targets[1])


class TestProtoCL(ObjectiveContract):
    objective, targets = ProtoCL, True
    settings: ClassVar[dict[str, Any]] = {**TestMoCo.settings, "clusters": (3, 5), "warmup": 0}
    refused = (("clusters", [], ""), ("clusters", [5, 0], ""))

    def build(self, examples: int = 24, **settings: Any) -> ProtoCL:
        """After the E-step of a client over its images, in round 1."""
        objective = super().build(**settings)
        method = FederatedMethod(objective)
        objective.receive(Visit(1, 9, method.phases[0], Client(0, examples), {}, {}, torch.Generator()))
        (pictures,) = views(1, images=examples, seed=4)
        before = {name: value.clone() for name, value in objective.state_dict().items() if "ncoder" in name}

        def plain_batches():
            return iter(batch()._replace(views=(piece,)) for piece in pictures.split(5))

        method.start_epoch(plain_batches, torch.Generator().manual_seed(0))
        assert objective.training  # and the networks are left as they were
        assert all(torch.equal(value, objective.state_dict()[name]) for name, value in before.items())
        return objective

    def expected(self, out: Outputs) -> Tensor:
        objective, index = self.build(), batch().index
        total = MoCo.loss(objective, out, batch())
        for m, (start, end) in enumerate(((0, 3), (3, 8))):
            prototypes, phi = objective.prototypes[start:end], objective.concentration[start:end]
            for z in out.embeddings:
                total = total + prototype_nce(z, prototypes, phi, objective.clusters_of[m][index]) / 2
        return total

    def test_prototypes_are_of_unit_length_and_concentrations_are_tau_in_the_mean(self):
        objective = self.build()
        torch.testing.assert_close(objective.prototypes.norm(dim=1), torch.ones(8))
        assert [float(each.mean()) for each in objective.concentration.split([3, 5])] == pytest.approx(
            [0.3] * 2, rel=1e-5
        )
        assert objective.clusters_of.shape == (2, 32)  # 24 images, rounded up so that few sizes occur
        assert [int(row.max()) < k for row, k in zip(objective.clusters_of, (3, 5), strict=True)] == [True, True]

    @pytest.mark.parametrize("settings", [{"warmup": 2}, {"clusters": (1,)}])
    def test_within_the_warm_up_and_with_one_cluster_it_is_moco(self, settings: dict[str, Any]):
        objective = self.build(**settings)
        out = objective(*batch().views)
        torch.testing.assert_close(objective.loss(out, batch()), MoCo.loss(objective, out, batch()))
        assert bool(objective.prototypes.any()) == ("clusters" in settings)

    def test_a_small_client_has_fewer_clusters(self):
        objective = self.build(examples=9, clusters=(3, 50))
        assert objective.concentration.isfinite().tolist() == [True] * 3 + [True] * 4 + [False] * 46
        loss = objective.loss(objective(*batch().views), batch())
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())

    def test_the_e_step_comes_before_each_epoch_and_sees_every_image(self, tmp_path, monkeypatch):
        run = run_helpers.build_run(tmp_path, "fedavg", "objective=protocl", "objective.clusters=[3,5]")
        method, seen = factory.method(run.config, run.data.source), []
        for epochs, expected in ((1, False), (2, True)):  # under Trainer an epoch stands for a round
            fit_pooled(method, run.data, tmp_path, epochs)
            assert bool(method.objective.prototypes.any()) == expected

        def start_epoch(self, plain_batches, stream):
            seen.append((self.training, torch.is_grad_enabled(), sum(len(shown.index) for shown in plain_batches())))

        monkeypatch.setattr(ProtoCL, "start_epoch", start_epoch)
        overrides = ("objective=protocl", "training.epochs=2", "federation.rounds=1", "federation.participation=1")
        run_helpers.train_run(tmp_path, "fedavg", *overrides)
        assert sorted(seen) == sorted((False, False, client.examples) for client in run.loop.clients for _ in range(2))


SWAV_REFUSED = {"temperature": 0.0, "epsilon": 0.0, "iterations": 0, "prototypes": 1, "queue_size": -1}


class TestSwAV(ObjectiveContract):
    objective, contrastive, predicts = SwAV, True, True
    settings: ClassVar[dict[str, Any]] = {"prototypes": 4, "temperature": 0.3}
    travels = ("encoder", "projector", "prototypes")
    refused = tuple((name, value, "") for name, value in SWAV_REFUSED.items())
    earlier = torch.zeros(0, 4)
    """Rows that take part in the assignment beside the batch's own."""

    def expected(self, out: Outputs) -> Tensor:
        prototypes = self.build().prototypes.weight.detach()
        scores, more = [cosines(z, prototypes) for z in out.embeddings], cosines(self.earlier, prototypes)
        codes = [sinkhorn(torch.cat([own.detach(), more]), 0.05, 3, weighted=True)[: len(own)] for own in scores]
        return swav(torch.stack(scores), torch.stack(codes), 0.3)

    def test_prototypes_count_by_their_direction_alone(self):
        """So the gradient is orthogonal to them, and a mean of clients' prototypes needs no unit length."""
        objective, given = self.build(), self.batch()
        weight = objective.prototypes.weight
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(4))
        assert objective.prototypes.bias is None
        before = objective.loss(objective(*given.views), given)
        before.backward()
        torch.testing.assert_close((weight.grad * weight).sum(dim=1), torch.zeros(4), atol=1e-6, rtol=0)
        with torch.no_grad():
            weight.mul_(torch.tensor([[0.1], [1.0], [3.0], [20.0]]))
        torch.testing.assert_close(objective.loss(objective(*given.views), given), before)

    def test_further_views_predict_the_codes_of_the_first_two(self):
        """As the crops of multi-crop would; the queues, too, are of the first two."""
        objective, given = self.build().eval(), self.batch()
        out, two = objective(*given.views, *views(2, seed=7)), objective(*given.views)
        assert (len(out.predictions), len(out.targets)) == (4, 2)
        torch.testing.assert_close(out.targets, two.targets)
        expected = swav(torch.stack(out.predictions), torch.stack(out.targets), 0.3)
        torch.testing.assert_close(objective.loss(out, given), expected)
        assert set(out.push) == set(two.push)


class TestWithAQueue(TestSwAV):
    """Both views' queues hold the same seven rows, so that the views may change places."""

    settings: ClassVar[dict[str, Any]] = {**TestSwAV.settings, "queue_size": 30}
    earlier = normalize(normal(7, 4, seed=2), dim=1)

    def build(self, **settings: Any) -> SwAV:
        objective = super().build(**settings)
        objective.after_step(dict.fromkeys(objective.queues, self.earlier))
        return objective

    def test_a_queue_for_each_view_is_first_in_first_out_and_of_unit_rows(self):
        objective, given = self.build(queue_size=11), batch()
        for seed in range(2):
            given = given._replace(views=tuple(view + seed for view in given.views))
            rows = [normalize(z.detach(), dim=1) for z in objective(*given.views).embeddings]
            step(objective, given)
            for name, newest in zip(objective.queues, rows, strict=True):
                # a pass moves BatchNorm's running statistics only, so that the step's own rows are these
                torch.testing.assert_close(getattr(objective, name)[:5], newest)
                assert int(getattr(objective, f"{name}_filled")) == min(11, 7 + 5 * (seed + 1))
        assert not torch.equal(objective.queue_a, objective.queue_b)
        torch.testing.assert_close(objective.queue_a[10:], self.earlier[:1])
        out = objective.eval()(*given.views)
        for name, z, code in zip(objective.queues, out.embeddings, out.targets, strict=True):
            scores = objective.scores(torch.cat([z, getattr(objective, name)]))  # of its own view's queue
            torch.testing.assert_close(code, sinkhorn(scores, 0.05, 3, weighted=True)[:5])

    def test_an_empty_queue_is_none(self):
        with_queue, without = super().build(), super().build(queue_size=0)
        without.load_state_dict(with_queue.state_dict(), strict=False)
        torch.testing.assert_close(with_queue(*batch().views).targets, without(*batch().views).targets)
