from copy import deepcopy
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from benchmark.federation.accountant import Release, epsilon
from methods import trees
from methods.base import Client, MethodError, Phase, Replies, Turn, Visit
from methods.maths import gaussian_sigma, global_clusters
from methods.objectives.clustering import Clustering
from methods.orchestra import Orchestra
from tests import run_helpers
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, InterfaceContract, MethodContract
from tests.methods.objectives import batch, encoder, views

SMALL = ("objective.clusters=6", "objective.bank=16", "method.local_clusters=3", "method.server_steps=5")
PRIVATE = " ".join((*SMALL, "method.epsilon=1"))
ONLINE = 4 * (ENCODER + PROJECTOR - 8 + STATISTICS + 2 * 8)  # BatchNorm on the embeddings in the place of a bias
TARGET = ONLINE
HEAD = 4 * (8 * 4 + 4)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestOrchestra(MethodContract):
    method = "orchestra"
    overrides = SMALL
    refused: ClassVar = {
        "objective=simclr": "set objective=orchestra",
        "objective.target_view=x": "augment or plain",
        "method.local_clusters=0": "of at least 1",
        "objective.clusters=1": "of at least 2",
        "method.least=129": "at most 128",
        "method.epsilon=.inf": "give a finite number",
        "method.local_clusters=null method.least=16": "has no effect with method",
    }
    falls = False

    def bill(self, run):
        networks = ONLINE + TARGET + HEAD
        return {
            ("initialise", "down", "weights"): networks,
            ("initialise", "up", "centroids"): 4 * 3 * 8,
            ("fit", "down", "weights"): networks,
            ("fit", "down", "centroids"): 4 * 6 * 8,
            ("fit", "up", "weights"): networks,
            ("fit", "up", "centroids"): 4 * 3 * 8,
        }

    def test_the_first_exchange_leaves_the_networks_alone(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "orchestra", *SMALL, "optimizer.lr=0", "federation.rounds=1")
        run.loop.restore()
        before = trees.clone(run.loop.method.trainable())
        run.loop.run_round(0)
        after = run.loop.server["weights"]
        trained = {part: {name: after[part][name] for name in names} for part, names in before.items()}
        assert run_helpers.difference(trained, before) < 1e-6

    @pytest.mark.parametrize("choice", ["random", "first"])
    def test_the_first_clusters_may_be_of_the_first_rows(self, choice, tmp_path, monkeypatch):
        few = [word.replace("bank=16", "bank=4") for word in SMALL]
        run = run_helpers.build_run(tmp_path, "orchestra", *few, f"method.start_rows={choice}", "federation.rounds=1")
        cluster, are_first = run.loop.method.local_centroids, []

        def look(visit, rows):
            if visit.phase.name == "initialise":
                are_first.append(torch.equal(rows, visit.observed["rows"]["z"][:4]))
            return cluster(visit, rows)

        monkeypatch.setattr(run.loop.method, "local_centroids", look)
        run.loop.fit()
        assert len(are_first) == 4
        assert all(are_first) == (choice == "first")

    def test_centroids_are_unit_rows_that_move_with_the_rounds(self, tmp_path, unbroken):
        first = run_helpers.train_run(tmp_path, "orchestra", *SMALL, "federation.rounds=1").loop.server
        now = unbroken.loop.server["centroids"]["mu"]
        torch.testing.assert_close(now.norm(dim=1), torch.ones(6))
        assert float((now - first["centroids"]["mu"]).abs().max()) > 1e-3

    @pytest.mark.parametrize(
        ("override", "bytes_up"),
        [
            ("objective.rotation_weight=0", ONLINE + TARGET),
            ("objective.target=false", ONLINE + HEAD),
            ("method.stateful=true", ONLINE + HEAD),
        ],
    )
    def test_what_a_variant_does_not_send(self, override, bytes_up, tmp_path, unbroken):
        run = run_helpers.train_run(tmp_path, "orchestra", *SMALL, override)
        assert run.loop.ledger.total("up")["weights"] == bytes_up * sum(run.loop.ledger.visits.values())
        same = {part: run.loop.server["weights"][part] for part in ("encoder", "projector")}
        full = {part: unbroken.loop.server["weights"][part] for part in ("encoder", "projector")}
        assert run_helpers.difference(same, full) > 1e-6

    @pytest.mark.parametrize("phase", ["initialise", "fit", "cluster"])
    def test_the_server_groups_what_was_sent_from_its_last_centroids_on(self, phase, tmp_path):
        words = ("method.server_lr=0.3", "objective.temperature=0.2")
        run = run_helpers.build_run(tmp_path, "orchestra", *SMALL, *words)
        run.loop.restore()
        server, method = run.loop.server, run.loop.method
        rows = random(9, 8)
        replies = Replies({"centroids": {"rows": rows}, "weights": server["weights"]}, [0, 1])
        turn = Turn(1, 3, Phase(phase), [], [], torch.Generator())
        moved = method.hook("update", Phase(phase))(server, turn, replies)["centroids"]["mu"]
        by_hand = global_clusters(rows, server["centroids"]["mu"], steps=5, lr=0.3, temperature=0.2)
        assert torch.equal(moved, by_hand)
        assert not torch.equal(moved, server["centroids"]["mu"])

    def test_the_first_clusters_are_made_of_mixed_batches(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "orchestra", *SMALL)
        method, seen = run.loop.method, []
        observe = method.observe_initialise

        def spied(batch):
            seen.append(batch.index.tolist())
            return observe(batch)

        method.observe_initialise = spied
        run.loop.restore()
        run.loop.run_round(0)
        sizes = [client.examples for client in run.loop.clients]
        assert sum(map(len, seen)) >= sum(sizes) - len(sizes)  # a last batch of one image is left out
        assert all(indices != sorted(indices) for indices in seen if len(indices) > 4)

    def test_the_target_of_a_client_that_keeps_one_starts_at_its_first_training(self, tmp_path):
        words = (*SMALL, "method.stateful=true", "objective.momentum=1", "federation.rounds=3")
        run, apart = run_helpers.build_run(tmp_path, "orchestra", *words), {}

        def look(done):
            sent, stored = done.visit.message["weights"]["encoder"], done.client_state["stays"]["target_encoder"]
            keys = [key for key in sent if "running" not in key]
            return done.visit.client.id, max(float((sent[key] - stored[key]).abs().max()) for key in keys)

        seen = run_helpers.collect_visits(run, look, "fit")
        run.loop.fit()
        for client, most in seen:
            apart.setdefault(client, []).append(most)
        assert all(first < 1e-6 and all(later > 1e-4 for later in rest) for first, *rest in apart.values())
        assert any(len(batch_ids) > 1 for batch_ids in apart.values())

    @pytest.mark.parametrize(
        ("method", "objective", "message"),
        [
            ("orchestra", "simclr", "not SimCLR: set objective=orchestra"),
            ("flesd", "orchestra", "a part of"),
            ("fedavg", "orchestra", "a part of Orchestra"),
        ],
    )
    def test_where_a_scenario_has_settings_for_it_the_pair_is_still_what_is_wrong(
        self, method, objective, message, tmp_path
    ):
        with pytest.raises(MethodError, match=message):
            run_helpers.build_run(tmp_path, method, f"objective={objective}", scenario="digits")

    def test_stateful_clients_keep_target_and_bank(self, tmp_path):
        run = run_helpers.train_run(tmp_path, "orchestra", *SMALL, "method.stateful=true")
        memory = run.loop.client_state
        for client in memory.index:
            assert set(memory[client]["stays"]) == {"target_encoder", "target_projector", "bank"}

    def test_the_whole_bank_can_be_sent(self, tmp_path):
        run = run_helpers.train_run(
            tmp_path, "orchestra", *SMALL[:2], "method.local_clusters=null", "federation.rounds=1"
        )
        assert run.loop.ledger.total("up")["centroids"] > 4 * 3 * 8 * 6


class TestOrchestraStateful(InterfaceContract):
    variant = True
    method = "orchestra"
    overrides = (*SMALL, "method.stateful=true")
    falls = False

    def bill(self, run):
        networks = ONLINE + HEAD
        return {
            ("initialise", "down", "weights"): networks,
            ("initialise", "up", "centroids"): 4 * 3 * 8,
            ("fit", "down", "weights"): networks,
            ("fit", "down", "centroids"): 4 * 6 * 8,
            ("fit", "up", "weights"): networks,
            ("fit", "up", "centroids"): 4 * 3 * 8,
        }


class TestOrchestraPrivate(InterfaceContract):
    variant = True
    method = "orchestra"
    overrides = (*SMALL, "method.epsilon=1")
    refused: ClassVar = {
        f"{PRIVATE} {words}": message
        for words, message in {
            "method.stateful=true": "a target that stays",
            "method.least=2": "in a cluster of any size",
            "federation.batch_norm=local": "batch_norm=local",
            "federation.batch_norm=recalibrate": "are not measured",
            "method.delta=1": "method.delta",
        }.items()
    }
    batch_norm = ("average",)
    falls = False

    def test_ledger_equals_a_hand_count(self, unbroken):
        """Two clients a round train; all four cluster in round 1, the two of the cohort in round 2."""
        networks, expected = ONLINE + TARGET + HEAD, {}
        for round in range(3):
            expected[round, "fit", "down", "centroids"] = 2 * 4 * 6 * 8
            expected[round, "fit", "up", "weights"] = 2 * networks
        expected[0, "fit", "down", "weights"] = 2 * networks
        for round, clients in ((1, 4), (2, 2)):
            expected[round, "cluster", "down", "weights"] = clients * networks
            expected[round, "cluster", "down", "starts"] = clients * 4 * 3 * 8
            expected[round, "cluster", "up", "centroids"] = clients * 4 * 3 * 8
        assert unbroken.loop.ledger.lines == expected

    def test_with_a_huge_epsilon_a_release_is_a_step_of_lloyds_from_the_starts(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "orchestra", *SMALL, "method.epsilon=1e14", "federation.rounds=2")
        loop = run.loop
        seen = run_helpers.collect_visits(
            run,
            lambda done: (done.visit.client.id, done.visit.message["starts"]["mu"], done.message["centroids"]["rows"]),
            "cluster",
        )
        loop.restore()
        loop.run_round(0)
        assert not seen
        method, streams = loop.method, loop.streams
        expected = {}
        loop.executor.flat_parameters.reset()
        method.load(loop.server["weights"])
        method.eval()
        for client in range(4):
            views = streams.generator("views", round=1, phase="cluster", client=client)
            shown = run.data.batches(client, ("augment",), 8, order=None, views=views)
            expected[client] = torch.cat([method.objective.target_embeddings(batch.views[0]) for batch in shown])
        loop.run_round(1)
        moved = 0
        assert len(seen) == len(expected)
        for client, starts, released in seen:
            rows = expected[client]
            assert len(rows) == loop.clients[client].examples
            nearest = (rows @ starts.T).argmax(dim=1)
            for cluster, start in enumerate(starts):
                members = rows[nearest == cluster]
                centroid = torch.nn.functional.normalize(members.sum(dim=0), dim=0) if len(members) else start
                torch.testing.assert_close(released[cluster], centroid, rtol=0, atol=1e-5)
                moved += bool(len(members))
        assert 4 <= moved < 12  # some clusters have rows, some have none

    def test_an_exchanged_image_moves_its_own_clients_sums_alone_and_by_two_at_most(self, tmp_path):
        sums = []
        for exchanged in (False, True):
            run = run_helpers.build_run(
                tmp_path / str(exchanged), "orchestra", *self.overrides, "federation.participation=1"
            )
            seen = run_helpers.collect_visits(
                run, lambda done: (done.visit.client.id, done.visit.observed["sums"]["z"]), "cluster"
            )
            run.loop.restore()
            run.loop.run_round(0)
            if exchanged:
                source = run.data.source
                images = source.train.images.copy()
                images[run.data.parts[2][1]] = 255 - images[run.data.parts[2][1]]
                run.data.source = replace(source, train=replace(source.train, images=images))
            run.loop.run_round(1)
            sums.append(dict(seen))
        for client in range(4):
            moved = float((sums[0][client] - sums[1][client]).norm())
            assert 0 < moved <= 2 if client == 2 else moved == 0

    def test_a_budget_holds_though_the_first_round_releases_nothing(self, tmp_path):
        multiplier = gaussian_sigma(1, 1e-3)
        words = (
            *self.overrides,
            "federation.participation=1",
            f"privacy.epsilon={epsilon(((Release(multiplier), 1),), 1e-5)}",
        )
        record, _ = run_helpers.execute_run(tmp_path, "orchestra", *words)
        assert record["rounds"]["done"] == 2
        assert "budget" in record["rounds"]["ended"]

    def test_starts_are_global_centroids_and_differ_between_clients(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "orchestra", *self.overrides, "federation.rounds=2")
        starts = run_helpers.collect_visits(
            run, lambda done: {tuple(row) for row in done.visit.message["starts"]["mu"].tolist()}, "cluster"
        )
        run.loop.restore()
        known = {tuple(row) for row in run.loop.server["centroids"]["mu"].tolist()}
        run.loop.run_round(0)
        run.loop.run_round(1)
        assert all(len(start) == 3 and start <= known for start in starts)
        assert len(set.union(*starts)) > 3

    def test_everyone_clusters_after_a_round_and_the_cohort_later_and_training_sends_no_centroids(self, unbroken):
        plan, fit = unbroken.loop.method.plan, ("fit", "sampled", {"weights"})
        planned = [[(phase.name, phase.cohort, set(phase.uplink)) for phase in plan(round)] for round in (0, 1, 2)]
        assert planned == [
            [fit], [("cluster", "all", {"centroids"}), fit], [("cluster", "sampled", {"centroids"}), fit]
        ]  # fmt: skip

    def test_every_clients_releases_are_in_the_record(self, tmp_path):
        record, run = run_helpers.execute_run(tmp_path, "orchestra", *self.overrides)
        loop, multiplier = run.loop, gaussian_sigma(1, 1e-3)
        releases = dict.fromkeys(range(4), 1)
        for client in loop.streams.cohort(2, 4, 0.5):
            releases[client] += 1
        spent = {str(client): epsilon(((Release(multiplier), times),), 1e-5) for client, times in releases.items()}
        assert record["privacy"] == {"delta": 1e-5, "covers": ["centroids"], "clients": pytest.approx(spent)}
        assert record["epsilon"] == pytest.approx(max(spent.values()))


class TestRelease:
    def replied(self, sums, starts, seed=0, **settings):
        """The centroids a client sends for these sums `[L, d]`, and the method."""
        clusters, width = sums.shape
        method = Orchestra(
            Clustering(encoder(), projector=(5, width), clusters=clusters), local_clusters=clusters, **settings
        )
        stream = torch.Generator().manual_seed(seed)
        visit = Visit(0, 1, Phase("cluster"), Client(0, 12), {"starts": {"mu": starts}}, {}, stream)
        visit.observed = {"sums": {"z": sums}}
        rows = method.reply_cluster(visit)[0]["centroids"]["rows"]
        self.heard_fraction = visit.notes["heard"]
        return rows, method

    def test_the_noise_is_what_the_epsilon_asks_for(self):
        long = 1e4 * torch.eye(64)[:1].repeat(64, 1)
        rows, method = self.replied(long, long, epsilon=1.0)
        assert float((1e4 * rows[:, 1:]).std()) == pytest.approx(2 * gaussian_sigma(1.0, 1e-3), rel=0.05)
        assert method.noise(Phase("cluster"), Client(0, 12)) == {"centroids": gaussian_sigma(1.0, 1e-3)}

    def test_noise_alone_moves_no_centroid(self):
        starts = torch.nn.functional.normalize(random(64, 64), dim=1)
        rows, method = self.replied(torch.zeros(64, 64), starts, epsilon=1.0)
        assert self.heard_fraction < 0.05
        assert float((rows == starts).all(dim=1).float().mean()) > 0.95
        rows, _ = self.replied(3 * 8 * method.sigma * torch.eye(64), starts, epsilon=1.0)
        assert float((rows * torch.eye(64)).sum(dim=1).min()) > 0.8

    def test_the_noise_threshold_applies_to_noisy_sums(self):
        """Sums slightly below the threshold exceed it once noise is added."""
        starts = torch.nn.functional.normalize(random(64, 64), dim=1)
        _, method = self.replied(torch.zeros(64, 64), starts, epsilon=1.0)
        threshold = method.sigma * (8 + 3 / 2**0.5)
        self.replied(0.95 * threshold * torch.eye(64), starts, epsilon=1.0)
        assert self.heard_fraction > 0.9

    def test_every_release_has_noise_of_its_own(self):
        long = 1e3 * torch.eye(16)
        first, second = (self.replied(long, long, seed=seed, epsilon=1.0)[0] for seed in (0, 1))
        assert float((1e3 * (first - second)).std()) > 5

    @pytest.mark.parametrize("settings", [{"local_clusters": None}, {"local_clusters": 33}])
    def test_what_it_cannot_protect_is_refused(self, settings):
        with pytest.raises(MethodError, match="does not go with method"):
            Orchestra(Clustering(encoder(), projector=(5, 4), clusters=32), epsilon=1.0, **settings)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "not enforced"),
            ({"least": 4}, "at least 4 rows"),
            ({"local_clusters": None}, "as they are"),
            ({"epsilon": 1.0}, "epsilon 1 at delta 0.001"),
        ],
    )
    def test_the_privacy_sheet_describes_a_centroid(self, settings, message):
        method = Orchestra(Clustering(encoder(), projector=(5, 4)), **settings)
        assert message in method.guards()["centroids"]
        assert bool(method.noise(Phase("cluster"), Client(0, 12))) == ("epsilon" in settings)


class TestAnonymity:
    def noted(self, rows, **settings):
        """The notes and the sent centroids of a client of twelve images that clusters these rows."""
        method = Orchestra(Clustering(encoder(), projector=(5, 4)), **settings)
        visit = Visit(0, 1, Phase("fit"), Client(0, 12), {}, {}, torch.Generator().manual_seed(3))
        sent = method.local_centroids(visit, rows)["centroids"]["rows"]
        return visit.notes, sent

    def test_it_is_the_smallest_cluster_and_not_what_equal_ones_would_be(self):
        notes, sent = self.noted(torch.eye(4)[[0, 0, 0, 0, 1, 1]], local_clusters=2)
        assert sorted(sent.tolist()) == torch.eye(4)[[1, 0]].tolist()
        assert notes == {"anonymity": 2, "anonymity_claimed": 6}

    def test_least_enforces_it(self):
        rows = torch.eye(4)[[0, 0, 0, 0, 1, 1]]
        for clusters in (2, 3):  # six rows make two clusters of three, even if three are requested
            notes, sent = self.noted(rows, local_clusters=clusters, least=3)
            assert len(sent) == 2
            assert notes == {"anonymity": 3, "anonymity_claimed": 6}

    def test_a_cluster_without_rows_is_one_row(self):
        notes, sent = self.noted(torch.eye(4)[:1].repeat(6, 1), local_clusters=3)
        assert len(sent) == 3
        assert notes == {"anonymity": 1, "anonymity_claimed": 4}

    def test_whole_banks_hide_nobody(self):
        notes, sent = self.noted(random(6, 4), local_clusters=None)
        assert len(sent) == 6
        assert notes == {"anonymity": 1, "anonymity_claimed": 1}

    def test_it_is_in_the_rounds_lines_and_the_least_in_the_record(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "orchestra", *SMALL, "federation.participation=1")
        loop, visits = run.loop, run_helpers.collect_visits(run, lambda done: done.visit)
        loop.fit()
        sizes = [client.examples for client in loop.clients]
        for round, row in enumerate(loop.history):
            round_notes = [visit.notes for visit in visits if visit.round == round]
            assert len(round_notes) == (8 if round == 0 else 4)
            for name in ("anonymity", "anonymity_claimed"):
                values = [notes[name] for notes in round_notes]
                summed = {"least": min(values), "mean": sum(values) / len(round_notes), "most": max(values)}
                assert row["notes"][name] == pytest.approx(summed)
            assert row["notes"]["anonymity_claimed"]["least"] == pytest.approx(min(sizes) / 3)
        record, _ = run_helpers.execute_run(tmp_path, "orchestra", *SMALL, "federation.participation=1")
        assert record["privacy"] == {
            "anonymity": min(visit.notes["anonymity"] for visit in visits),
            "anonymity_claimed": pytest.approx(min(sizes) / 3),
        }


class TestClustering:
    @pytest.fixture
    def objective(self):
        objective = Clustering(encoder(), projector=(5, 4), clusters=3, bank=8)
        objective.centroids.copy_(torch.nn.functional.normalize(random(3, 4), dim=1))
        return objective

    def test_the_loss_by_hand(self, objective):
        shown = batch()._replace(views=(*views(2), *views(1, seed=3)), turns=torch.tensor([0, 1, 2, 3, 0]))
        out = objective(*shown.views)
        goal, student = (
            (torch.nn.functional.normalize(z.detach(), dim=1) @ objective.centroids.T / 0.1).softmax(dim=1)
            for z in (out.targets[0], out.embeddings[0])
        )
        clustering = -(goal * student.log()).sum(dim=1).mean()
        turns = torch.nn.functional.cross_entropy(objective.head(out.embeddings[1]), shown.turns)
        torch.testing.assert_close(objective.loss(out, shown), clustering + turns, rtol=1e-4, atol=1e-5)
        entropy = -(goal * goal.log()).sum(dim=1).mean()
        assert float(clustering) >= float(entropy)

    def test_the_goals_are_the_targets_embeddings_of_the_first_view_and_fill_the_bank(self, objective):
        with torch.no_grad():
            for parameter in objective.target_projector.parameters():
                parameter.add_(0.3)
        copied = deepcopy(objective)
        first, second, third = (*views(2), *views(1, seed=3))
        out = objective(first, second, third)
        by_hand = torch.nn.functional.normalize(copied.target_projector(copied.target_encoder(first)), dim=1)
        torch.testing.assert_close(out.targets[0], by_hand)
        objective.after_step(out.push)
        torch.testing.assert_close(objective.bank[: len(first)], by_hand)
        assert len(objective.bank) == 8

    def test_the_target_may_follow_before_a_batch(self):
        """As in the code: the step itself leaves it, the next pass in training moves it."""
        objective = Clustering(encoder(), projector=(5, 4), clusters=3, bank=8, momentum=0.5, target_first=True)
        before = [parameter.clone() for parameter in objective.target_encoder.parameters()]
        with torch.no_grad():
            for parameter in objective.encoder.parameters():
                parameter.add_(1.0)
        objective.after_step({"bank": torch.zeros(2, 4)})
        objective.eval()(*views(3))
        assert all(map(torch.equal, objective.target_encoder.parameters(), before))
        objective.train()(*views(3))
        for target, past in zip(objective.target_encoder.parameters(), before, strict=True):
            torch.testing.assert_close(target, past + 0.5)

    @pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
    def test_the_target_follows_with_the_momentum_asked_for(self, momentum):
        objective = Clustering(encoder(), projector=(5, 4), clusters=3, bank=8, momentum=momentum)
        before = [parameter.clone() for parameter in objective.target_encoder.parameters()]
        with torch.no_grad():
            for parameter in objective.encoder.parameters():
                parameter.add_(1.0)
        objective.after_step({"bank": torch.zeros(2, 4)})
        for target, past in zip(objective.target_encoder.parameters(), before, strict=True):
            torch.testing.assert_close(target, past + (1 - momentum))

    def test_the_rotation_loss_has_its_weight(self, objective):
        shown = batch()._replace(views=(*views(2), *views(1, seed=3)), turns=torch.tensor([0, 1, 2, 3, 0]))
        out, losses = objective(*shown.views), []
        for weight in (1.0, 3.0):
            objective.rotation_weight = weight
            losses.append(float(objective.loss(out, shown)))
        turns = torch.nn.functional.cross_entropy(out.predictions[0], shown.turns)
        assert losses[1] - losses[0] == pytest.approx(2 * float(turns), rel=1e-4)

    def test_the_target_may_see_an_image_as_it_is(self):
        plain = Clustering(encoder(), projector=(5, 4), target_view="plain")
        assert plain.views == ("plain", "augment", "rotate")
        assert Orchestra(plain).plan(0)[0].views == ("plain",)

    def test_neither_target_nor_centroids_get_a_gradient(self, objective):
        shown = batch()._replace(views=(*views(2), *views(1, seed=3)), turns=torch.tensor([0, 1, 2, 3, 0]))
        objective.loss(objective(*shown.views), shown).backward()
        moved = {name.split(".")[0] for name, parameter in objective.named_parameters() if parameter.grad is not None}
        assert moved == {"encoder", "projector", "head"}
        assert not objective.centroids.requires_grad

    def test_permuted_centroids_are_permuted_assignments(self, objective):
        z = random(5, 4)
        logits = objective.assignment_logits(z)
        objective.centroids.copy_(objective.centroids.flip(0))
        torch.testing.assert_close(objective.assignment_logits(z), logits.flip(1))


class TestGlobalClusters:
    def grouped(self, rows, steps=200):
        return global_clusters(rows, random(4, 6), steps=steps, lr=0.1, temperature=0.1)

    def test_the_order_of_the_clients_has_no_effect(self):
        rows = random(24, 6, seed=1)
        mixed = rows[torch.randperm(24, generator=torch.Generator().manual_seed(2))]
        torch.testing.assert_close(self.grouped(rows, 20), self.grouped(mixed, 20), rtol=1e-3, atol=1e-4)

    def test_separate_groups_get_a_centroid_each(self):
        centres = torch.nn.functional.normalize(torch.linalg.qr(random(6, 6, seed=5)).Q[:4], dim=1)
        rows = centres.repeat(10, 1) + 0.05 * random(40, 6, seed=1)
        assigned = (rows @ self.grouped(rows).T).argmax(dim=1).reshape(10, 4)
        assert (assigned == assigned[0]).all()
        assert sorted(assigned[0].tolist()) == [0, 1, 2, 3]

    def test_no_step_leaves_them(self):
        torch.testing.assert_close(self.grouped(random(9, 6), 0), torch.nn.functional.normalize(random(4, 6), dim=1))
