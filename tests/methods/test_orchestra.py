from copy import deepcopy
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from benchmark.federation.accountant import Release, epsilon
from methods.base import Client, MethodError, Phase, Replies, RoundContext, Visit
from methods.maths import gaussian_sigma, global_clusters
from methods.objectives.clustering import Clustering
from methods.orchestra import Orchestra
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, InterfaceContract, MethodContract
from tests.methods.objectives import batch, encoder, views
from tests.methods.toys import EVERYONE, replies, shift
from tests.run_helpers import apart, build_run, collect_visits, execute_run, trained

SMALL = ("objective.clusters=6", "objective.bank=16", "method.local_clusters=3", "method.server_steps=5")
PRIVATE = " ".join((*SMALL, "method.epsilon=1"))
ONLINE = 4 * (ENCODER + PROJECTOR - 8 + STATISTICS + 2 * 8)  # BatchNorm on the embeddings in the place of a bias
TARGET = ONLINE
HEAD = 4 * (8 * 4 + 4)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exchange(networks):
    """What one client sends and receives, of the bytes of the networks."""
    sent = {(phase, "up", "centroids"): 4 * 3 * 8 for phase in ("initialise", "fit")}
    received = {(phase, "down", "weights"): networks for phase in ("initialise", "fit")}
    return {**sent, **received, ("fit", "up", "weights"): networks, ("fit", "down", "centroids"): 4 * 6 * 8}


class TestOrchestra(MethodContract):
    method = "orchestra"
    overrides = SMALL
    shipped = ("method.server_steps=50",)
    refused: ClassVar = {
        "objective=simclr": "set objective=orchestra",
        "objective.target_view=x": "augment or plain",
        "method.local_clusters=0": "of at least 1",
        "method.local_clusters=129": "at most 128",
        "objective.clusters=1": "of at least 2",
        "method.least=129": "at most 128",
        "method.server_steps=-1": "at least 0",
        "method.epsilon=.inf": "give a finite number",
        "method.local_clusters=null method.least=16": "has no effect with method",
    }
    falls = False

    def bill(self, run):
        return exchange(ONLINE + TARGET + HEAD)

    @pytest.mark.parametrize("choice", ["random", "first"])
    def test_the_first_clusters_are_of_mixed_batches_and_may_be_of_the_first_rows(self, choice, tmp_path, monkeypatch):
        few = [word.replace("bank=16", "bank=4") for word in SMALL]
        run = build_run(tmp_path, "orchestra", *few, f"method.start_rows={choice}", "federation.rounds=1")
        method, are_first, seen = run.loop.method, [], []
        cluster, observe = method.local_centroids, method.observe_initialise

        def clustered(visit, rows):
            if visit.phase.name == "initialise":
                are_first.append(torch.equal(rows, visit.observed["rows"]["z"][:4]))
            return cluster(visit, rows)

        def observed(batch):
            seen.append(batch.index.tolist())
            return observe(batch)

        monkeypatch.setattr(method, "local_centroids", clustered)
        monkeypatch.setattr(method, "observe_initialise", observed)
        run.loop.fit()
        assert are_first == [choice == "first"] * 4
        assert sum(map(len, seen)) >= len(run.data.parts.indices) - 4  # a last batch of one image is left out
        assert all(indices != sorted(indices) for indices in seen if len(indices) > 4)

    def test_what_a_variant_sends(self, unbroken):
        for override, sent in {"rotation_weight=0": ONLINE + TARGET, "target=false": ONLINE + HEAD}.items():
            loop = trained("orchestra", *SMALL, f"objective.{override}").loop
            assert loop.ledger.total("up")["weights"] == sent * sum(loop.ledger.visits.values())
            assert apart(loop.server["weights"], unbroken.loop.server["weights"]) > 1e-6
        bank = trained("orchestra", *SMALL[:2], SMALL[3], "method.local_clusters=null", "federation.rounds=1").loop
        assert bank.ledger.total("up")["centroids"] > 4 * 3 * 8 * 6

    @pytest.mark.parametrize("phase", ["initialise", "fit", "cluster"])
    def test_the_server_groups_what_was_sent_from_its_last_centroids_on(self, phase, tmp_path):
        loop = build_run(tmp_path, "orchestra", *SMALL, "method.server_lr=0.3", "objective.temperature=0.2").loop
        loop.restore()
        before, rows, phase = loop.server["centroids"]["mu"], random(9, 8), Phase(phase)
        sent = Replies({"centroids": {"rows": rows}, "weights": loop.server["weights"]}, [0, 1])
        round_context = RoundContext(1, 3, phase, [], [], torch.Generator())
        moved = loop.method.hook("update", phase)(loop.server, round_context, sent)["centroids"]["mu"]
        assert torch.equal(moved, global_clusters(rows, before, steps=5, lr=0.3, temperature=0.2))
        assert not torch.equal(moved, before)

    def test_where_a_scenario_has_settings_for_it_the_pair_is_still_what_is_wrong(self, tmp_path):
        pairs = {"orchestra": ("simclr", "set objective=orchestra"), "fedavg": ("orchestra", "a part of Orchestra")}
        for method, (objective, message) in pairs.items():
            with pytest.raises(MethodError, match=message):
                build_run(tmp_path, method, f"objective={objective}", scenario="digits")


class TestOrchestraStateful(InterfaceContract):
    variant = True
    method = "orchestra"
    overrides = (*SMALL, "method.stateful=true")
    falls = False

    def bill(self, run):
        return exchange(ONLINE + HEAD)

    def test_target_and_bank_stay_with_the_client_from_its_first_training_on(self, unbroken, tmp_path):
        run, distances = build_run(tmp_path, "orchestra", *self.overrides, "objective.momentum=1"), {}

        def look(done):
            assert done.client_state["stays"].keys() == {"target_encoder", "target_projector", "bank"}
            sent, stored = done.visit.message["weights"]["encoder"], done.client_state["stays"]["target_encoder"]
            most = max(float((sent[key] - stored[key]).abs().max()) for key in sent if "running" not in key)
            distances.setdefault(done.visit.client.id, []).append(most)

        collect_visits(run, look, "fit")
        run.loop.fit()
        assert all(first < 1e-6 and all(later > 1e-4 for later in rest) for first, *rest in distances.values())
        assert any(len(each) > 1 for each in distances.values())
        theirs = trained("orchestra", *SMALL).loop.server["weights"]
        assert apart(unbroken.loop.server["weights"], theirs) > 1e-6


class TestOrchestraPrivate(InterfaceContract):
    variant = True
    method = "orchestra"
    overrides = (*SMALL, "method.epsilon=1")
    refused: ClassVar = {
        f"{PRIVATE} method.stateful=true": "a target that stays",
        f"{PRIVATE} method.least=2": "in a cluster of any size",
        f"{PRIVATE} federation.batch_norm=local": "batch_norm=local",
        f"{PRIVATE} federation.batch_norm=recalibrate": "are not measured",
        f"{PRIVATE} method.delta=1": "method.delta",
    }
    batch_norm = ("average",)
    falls = False

    def test_ledger_equals_a_hand_count(self, unbroken):
        """Two clients a round train; all four cluster in round 1, the two of the cohort in round 2."""
        networks = ONLINE + TARGET + HEAD
        fit = {("down", "centroids"): 2 * 4 * 6 * 8, ("up", "weights"): 2 * networks}
        cluster = {("down", "weights"): networks, ("down", "starts"): 4 * 3 * 8, ("up", "centroids"): 4 * 3 * 8}
        expected = {(round, "fit", *line): size for round in range(3) for line, size in fit.items()}
        for round, clients in ((1, 4), (2, 2)):
            expected |= {(round, "cluster", *line): clients * size for line, size in cluster.items()}
        assert unbroken.loop.ledger.lines == {**expected, (0, "fit", "down", "weights"): 2 * networks}

    def test_with_a_huge_epsilon_a_release_is_a_step_of_lloyds_from_the_starts(self, tmp_path):
        """The starts of a client are global centroids, not those of another."""
        run = build_run(tmp_path, "orchestra", *SMALL, "method.epsilon=1e14", "federation.rounds=2")
        loop, method, seen, expected = run.loop, run.loop.method, replies(run, "cluster"), {}
        loop.restore()
        known = set(map(tuple, loop.server["centroids"]["mu"].tolist()))
        loop.run_round(0)
        assert not seen
        loop.executor.flat_parameters.reset()
        method.eval().load(loop.server["weights"])
        for client in range(4):
            stream = loop.streams.generator("views", round=1, phase="cluster", client=client)
            shown = run.data.batches(client, ("augment",), 8, order=None, views=stream)
            expected[client] = torch.cat([method.objective.target_embeddings(batch.views[0]) for batch in shown])
            assert len(expected[client]) == loop.clients[client].examples
        loop.run_round(1)
        assert {visit.client.id for visit, _ in seen} == expected.keys()
        moved, all_starts = 0, set()
        for visit, message in seen:
            rows, starts = expected[visit.client.id], visit.message["starts"]["mu"]
            sums = torch.eye(3)[(rows @ starts.T).argmax(dim=1)].T @ rows
            filled = sums.any(dim=1, keepdim=True)
            centroids = torch.where(filled, normalize(sums, dim=1), starts)
            torch.testing.assert_close(message["centroids"]["rows"], centroids, rtol=0, atol=1e-5)
            moved += int(filled.sum())
            all_starts |= set(map(tuple, starts.tolist()))
        assert 4 <= moved < 12  # some clusters have rows, some have none
        assert all_starts <= known
        assert len(all_starts) > 3

    def test_an_exchanged_image_moves_its_own_clients_sums_alone_and_by_two_at_most(self, tmp_path):
        sums = []
        for exchanged in (False, True):
            run = build_run(tmp_path / str(exchanged), "orchestra", *self.overrides, EVERYONE)
            seen = collect_visits(run, lambda done: (done.visit.client.id, done.visit.observed["sums"]["z"]), "cluster")
            run.loop.restore()
            run.loop.run_round(0)
            if exchanged:
                source, image = run.data.source, run.data.parts[2][1]
                images = source.train.images.copy()
                images[image] = 255 - images[image]
                run.data.source = replace(source, train=replace(source.train, images=images))
            run.loop.run_round(1)
            sums.append(dict(seen))
        for client in range(4):
            moved = float((sums[0][client] - sums[1][client]).norm())
            assert 0 < moved <= 2 if client == 2 else moved == 0

    def test_a_budget_holds_though_the_first_round_releases_nothing(self, tmp_path):
        budget = epsilon(((Release(gaussian_sigma(1, 1e-3)), 1),), 1e-5)
        record, _ = execute_run(tmp_path, "orchestra", *self.overrides, EVERYONE, f"privacy.epsilon={budget}")
        assert record["rounds"]["done"] == 2
        assert "budget" in record["rounds"]["ended"]

    def test_everyone_clusters_after_a_round_and_the_cohort_later_and_training_sends_no_centroids(self, unbroken):
        plan = unbroken.loop.method.plan
        phases = [(round, phase.name, phase.cohort, *phase.uplink) for round in (0, 1, 2) for phase in plan(round)]
        clustered = {(1, "cluster", "all", "centroids"), (2, "cluster", "sampled", "centroids")}
        assert {*phases} == {*((round, "fit", "sampled", "weights") for round in range(3))} | clustered

    def test_every_clients_releases_are_in_the_record(self, tmp_path):
        record, run = execute_run(tmp_path, "orchestra", *self.overrides)
        cohort, release = run.loop.streams.cohort(2, 4, 0.5), Release(gaussian_sigma(1, 1e-3))
        spent = {str(client): epsilon(((release, 1 + (client in cohort)),), 1e-5) for client in range(4)}
        assert record["privacy"] == {"delta": 1e-5, "covers": ["centroids"], "clients": pytest.approx(spent)}
        assert record["epsilon"] == pytest.approx(max(spent.values()))


def orchestra(width=4, clusters=32, bank=128, **settings):
    return Orchestra(Clustering(encoder(), projector=(5, width), clusters=clusters, bank=bank), **settings)


class TestRelease:
    def replied(self, sums, starts, seed=0):
        """The centroids a client sends for these sums `[L, d]`, and the fraction that exceeds the noise."""
        clusters, width = sums.shape
        method, stream = orchestra(width, clusters, local_clusters=clusters, epsilon=1.0), torch.Generator()
        visit = Visit(0, 1, Phase("cluster"), Client(0, 12), {"starts": {"mu": starts}}, {}, stream.manual_seed(seed))
        visit.observed = {"sums": {"z": sums}}
        return method.reply_cluster(visit)[0]["centroids"]["rows"], float(visit.notes["above_noise"])

    sigma = 2 * gaussian_sigma(1.0, 1e-3)
    starts = normalize(random(64, 64), dim=1)

    def test_the_noise_is_what_the_epsilon_asks_for_and_every_release_has_its_own(self):
        long = 1e4 * torch.eye(64)[:1].repeat(64, 1)
        first, second = (1e4 * self.replied(long, long, seed)[0][:, 1:] for seed in (0, 1))
        assert float(first.std()) == pytest.approx(self.sigma, rel=0.05)
        assert float((first - second).std()) == pytest.approx(2**0.5 * self.sigma, rel=0.05)
        noise = orchestra(local_clusters=32, epsilon=1.0).noise(Phase("cluster"), Client(0, 12))
        assert noise == {"centroids": gaussian_sigma(1.0, 1e-3)}

    def test_noise_alone_moves_no_centroid_and_sums_well_above_it_all(self):
        """The threshold is 10.1 sigma; the squared norm of the noise is about 64 sigma^2, and adds to that of a sum."""
        rows, above_noise = self.replied(torch.zeros(64, 64), self.starts)
        assert above_noise < 0.05
        assert float((rows == self.starts).all(dim=1).float().mean()) > 0.95
        rows, _ = self.replied(3 * 8 * self.sigma * torch.eye(64), self.starts)
        assert float((rows * torch.eye(64)).sum(dim=1).min()) > 0.8
        assert self.replied(6.8 * self.sigma * torch.eye(64), self.starts)[1] > 0.5

    def test_sums_are_over_all_images_and_clusters_without_noise_of_the_bank(self):
        assert orchestra(bank=8, local_clusters=16, epsilon=1.0).local_clusters == 16
        with pytest.raises(MethodError, match="at most 8"):
            orchestra(bank=8, local_clusters=16)
        for clusters in (None, 33):  # what it cannot protect
            with pytest.raises(MethodError, match=r"does not go with method\.local_clusters"):
                orchestra(local_clusters=clusters, epsilon=1.0)

    def test_the_privacy_sheet_describes_a_centroid(self):
        described = {"not enforced": {}, "at least 4 rows": {"least": 4}, "as they are": {"local_clusters": None}}
        for message, settings in {**described, "epsilon 1 at delta 0.001": {"epsilon": 1.0}}.items():
            method = orchestra(clusters=128, **settings)
            assert message in method.protections()["centroids"]
            assert bool(method.noise(Phase("cluster"), Client(0, 12))) == ("epsilon" in settings)


class TestAnonymity:
    @pytest.mark.parametrize(
        ("rows", "settings", "sent", "anonymity", "claimed"),
        [
            ([0, 0, 0, 0, 1, 1], {"local_clusters": 2}, 2, 2, 6),  # of the smallest cluster
            ([0, 0, 0, 0, 1, 1], {"local_clusters": 2, "least": 3}, 2, 3, 6),
            ([0, 0, 0, 0, 1, 1], {"local_clusters": 3, "least": 3}, 2, 3, 6),  # six rows make two of 3
            ([0] * 6, {"local_clusters": 3}, 3, 1, 4),  # a cluster without rows is one row
            (range(4), {"local_clusters": None}, 4, 1, 1),  # whole banks hide nobody
        ],
    )
    def test_it_is_that_of_the_smallest_cluster(self, rows, settings, sent, anonymity, claimed):
        """Of a client of twelve images that clusters these axes."""
        visit = Visit(0, 1, Phase("fit"), Client(0, 12), {}, {}, torch.Generator().manual_seed(3))
        found = orchestra(clusters=128, **settings).local_centroids(visit, torch.eye(4)[[*rows]])["centroids"]["rows"]
        assert len(found) == sent
        assert visit.notes == {"anonymity": anonymity, "anonymity_claimed": claimed}
        if settings == {"local_clusters": 2}:
            assert sorted(found.tolist()) == torch.eye(4)[[1, 0]].tolist()

    def test_it_is_in_the_rounds_lines_and_the_least_in_the_record(self, tmp_path):
        run = build_run(tmp_path, "orchestra", *SMALL, EVERYONE)
        visits = collect_visits(run, lambda done: done.visit)
        run.loop.fit()
        for round, row in enumerate(run.loop.history):
            for name in ("anonymity", "anonymity_claimed"):
                values = [visit.notes[name] for visit in visits if visit.round == round]
                assert len(values) == (8 if round == 0 else 4)
                summed = {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}
                assert row["notes"][name] == pytest.approx(summed)
        record, _ = execute_run(tmp_path, "orchestra", *SMALL, EVERYONE)
        claimed = min(client.examples for client in run.loop.clients) / 3
        least = min(visit.notes["anonymity"] for visit in visits)
        assert record["privacy"] == {"anonymity": least, "anonymity_claimed": pytest.approx(claimed)}


class TestClustering:
    @pytest.fixture
    def objective(self):
        objective = self.clustering()
        objective.centroids.copy_(normalize(random(3, 4), dim=1))
        return objective

    def clustering(self, **settings):
        return Clustering(encoder(), projector=(5, 4), clusters=3, bank=8, **settings)

    shown = batch()._replace(views=(*views(2), *views(1, seed=3)), turns=torch.tensor([0, 1, 2, 3, 0]))

    def test_the_loss_by_hand_and_its_gradients(self, objective):
        objective.rotation_weight = 3.0
        out = objective(*self.shown.views)
        rows = (out.targets[0].detach(), out.embeddings[0])
        goal, student = ((normalize(z, dim=1) @ objective.centroids.T / 0.1).softmax(dim=1) for z in rows)
        clustering = -(goal * student.log()).sum(dim=1).mean()
        turns = cross_entropy(objective.head(out.embeddings[1]), self.shown.turns)
        loss = objective.loss(out, self.shown)
        torch.testing.assert_close(loss, clustering + 3 * turns, rtol=1e-4, atol=1e-5)
        loss.backward()
        moved = {name.split(".")[0] for name, parameter in objective.named_parameters() if parameter.grad is not None}
        assert moved == {"encoder", "projector", "head"}
        assert not objective.centroids.requires_grad

    def test_the_goals_are_the_targets_embeddings_of_the_first_view_and_fill_the_bank(self, objective):
        shift(objective.target_projector, 0.3)
        copied, first = deepcopy(objective), self.shown.views[0]
        out = objective(*self.shown.views)
        by_hand = normalize(copied.target_projector(copied.target_encoder(first)), dim=1)
        torch.testing.assert_close(out.targets[0], by_hand)
        objective.after_step(out.push)
        torch.testing.assert_close(objective.bank[: len(first)], by_hand)
        assert len(objective.bank) == 8

    @pytest.mark.parametrize(("momentum", "first"), [(0.0, False), (0.9, False), (1.0, False), (0.5, True)])
    def test_the_target_follows_with_the_momentum_asked_for_or_before_a_batch(self, momentum, first):
        """As in the code, where the step itself leaves it and the next pass in training moves it."""
        objective = self.clustering(momentum=momentum, target_first=first)
        before = [parameter.clone() for parameter in objective.target_encoder.parameters()]
        shift(objective.encoder, 1.0)
        objective.after_step({"bank": torch.zeros(2, 4)})
        if first:
            objective.eval()(*views(3))
            assert all(map(torch.equal, objective.target_encoder.parameters(), before))
            objective.train()(*views(3))
        for target, past in zip(objective.target_encoder.parameters(), before, strict=True):
            torch.testing.assert_close(target, past + (1 - momentum))

    def test_the_target_may_see_an_image_as_it_is(self):
        plain = Clustering(encoder(), projector=(5, 4), target_view="plain")
        assert plain.views == ("plain", "augment", "rotate")
        assert Orchestra(plain).plan(0)[0].views == ("plain",)


def test_global_clusters_do_not_depend_on_the_order_of_clients_and_find_separate_groups():
    def grouped(rows, steps):
        return global_clusters(rows, random(4, 6), steps=steps, lr=0.1, temperature=0.1)

    rows = random(24, 6, seed=1)
    mixed = rows[torch.randperm(24, generator=torch.Generator().manual_seed(2))]
    torch.testing.assert_close(grouped(rows, 20), grouped(mixed, 20), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(grouped(rows, 0), normalize(random(4, 6), dim=1))
    centres = torch.linalg.qr(random(6, 6, seed=5)).Q[:4]
    rows = centres.repeat(10, 1) + 0.05 * random(40, 6, seed=1)
    found = grouped(rows, 200)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))
    assigned = (rows @ found.T).argmax(dim=1).reshape(10, 4)
    assert (assigned == assigned[0]).all()
    assert sorted(assigned[0].tolist()) == [0, 1, 2, 3]
