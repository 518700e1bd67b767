import math
from typing import ClassVar

import pytest
import torch

from benchmark.errors import ConfigError
from datamodules.federated import Batch
from methods import trees
from methods.base import Visit
from methods.maths import ensemble_similarity, similarity, similarity_distillation
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract, MethodContract

SHORT = ("method.distil_epochs=2", "method.distil_batch_size=8", "method.anchors=12")
OTHER = (
    "federation.encoders.wide.class=methods.networks.convnet",
    "federation.encoders.wide.widths=[10,8]",
    "federation.encoders.wide.strides=[2,2]",
    "federation.encoders.wide.clients=[2,3]",
)
EVERYONE = "federation.participation=1"
FILLED = "method.distil_batch_size=8 method.fill_anchors=true"


def examples(run):
    return len(run.data.public)


class TestFLESD(MethodContract):
    method = "flesd"
    overrides = SHORT
    equals = (("federation.rounds=1", " ".join(("flesd-cc", *SHORT)), "state"),)
    refused: ClassVar = {
        "public.name=fashion": "fashion",
        "public.name=null": r"public\.name",
        "public.client=9": "clients are 0 to 3",
        "public.share=0.5": "public.share means nothing",
        "public.name=synthetic public.share=1": "leaves no image",
        "partition.name=iid partition.clients=1": "nobody is left",
        "public.name=digits": "as many channels",
        "method.kept=0": "above 0",
        " ".join((*OTHER[:-1], "federation.encoders.wide.clients=[7]")): "is none of 0 to 3",
        " ".join((*OTHER[:-1], "federation.encoders.wide.clients=3")): "a list of ids",
        " ".join((*OTHER, "executor=side-by-side")): "one by one",
        "server_optimizer.class=methods.server.Adam": "would change nothing",
        "'method.addons=[{class: methods.fedx.CrossDistillation}]'": "leave it out",
        f"{FILLED} method.anchors=200": "makes no step with the first 25 batches of an epoch",
        f"{FILLED} method.anchors=4": "method.anchors=4 is less than a batch of 8",
    }
    falls = False  # a round starts from the distilled student, not from the client's own weights

    def bill(self, run):
        return {
            ("fit", "down", "weights"): WEIGHTS,
            ("infer", "up", "similarity"): 4 * examples(run) ** 2,
        }

    def test_who_gives_the_public_images_takes_no_part(self, unbroken):
        loop = unbroken.loop
        assert [client.id for client in loop.clients] == [1, 2, 3]
        assert (unbroken.data.public == unbroken.data.parts[0]).all()

    def test_no_weights_leave_a_client(self, unbroken):
        assert set(unbroken.loop.ledger.total("up")) == {"similarity"}

    def test_the_server_keeps_students_only(self, unbroken):
        assert set(unbroken.loop.server) == {"students"}
        assert not any(client < 0 for client in unbroken.loop.client_state.index)

    def test_images_of_the_server_and_of_clients_are_counted_separately(self, tmp_path):
        record, run = run_helpers.execute_run(tmp_path, "flesd", *SHORT)
        epochs = run.loop.method.distil_epochs
        assert record["server"]["images"] == run.loop.rounds * epochs * len(run.data.public)
        assert record["server"]["seconds"] > 0
        assert record["images"] == sum(row["images"] for row in run.loop.history)
        assert run_helpers.execute_run(tmp_path, "fedavg")[0]["server"] == {}

    def test_what_a_client_infers_with_is_what_it_has_trained(self, tmp_path):
        """The similarities are those of the networks the client has trained, not of the student it received."""
        run = run_helpers.build_run(tmp_path, "flesd", *SHORT, "federation.rounds=1")
        loop = run.loop
        sent = run_helpers.collect_visits(
            run, lambda done: (done.visit.client.id, done.message["similarity"]["values"].clone()), "infer"
        )
        loop.fit()
        assert sent
        for client, matrix in sent:
            loop.method.load(loop.client_state[client]["stays"])
            assert torch.allclose(matrix, embedded(run), atol=1e-5)
            loop.executor.flat_parameters.reset()
            assert not torch.allclose(matrix, embedded(run), atol=1e-3)
            torch.testing.assert_close(matrix, matrix.T)
            torch.testing.assert_close(matrix.diagonal(), torch.ones(len(matrix)))

    @pytest.mark.parametrize("clients", [1, 2])
    def test_the_servers_targets_are_the_sharpened_ensemble_of_what_was_sent(self, clients, tmp_path, monkeypatch):
        words = ("partition.name=iid", f"partition.clients={clients + 1}", EVERYONE, "method.teacher_temperature=0.3")
        run = run_helpers.build_run(tmp_path, "flesd", *SHORT, *words, "federation.rounds=1")
        seen = run_helpers.collect_visits(run, lambda done: trees.clone({**done.visit.message, **done.message}))
        run.loop.fit()
        sent = [entries["similarity"]["values"] for entries in seen if "similarity" in entries]
        taught = [entries["targets"]["M"] for entries in seen if "targets" in entries]
        assert len(sent) == clients
        by_hand = sum(((matrix - 1) / 0.3).exp() for matrix in sent) / clients
        torch.testing.assert_close(taught[0], by_hand)

    def test_the_distillations_rate_is_its_own_whatever_the_clients_schedule(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "flesd", *SHORT, "schedule.name=cosine", "method.distil_lr=0.002")
        seen = run_helpers.collect_visits(run, lambda done: done.visit)
        run.loop.fit()
        fit, distil = (
            [visit.lr_sum / visit.steps for visit in seen if visit.phase.name == name] for name in ("fit", "distil")
        )
        assert distil == pytest.approx([0.002] * 3)
        assert fit[-1] < fit[0]

    def test_the_first_batches_of_an_epoch_may_only_fill_the_anchors(self, tmp_path):
        """As in the code: they make no step, and a short last batch is left out."""
        words = ("public.client=2", "method.fill_anchors=true", "method.drop_last=true")
        run = run_helpers.build_run(tmp_path, "flesd", *SHORT, *words)
        visits = run_helpers.collect_visits(run, lambda done: done.visit, "distil")
        run.loop.fit()
        whole = examples(run) // 8
        assert examples(run) % 8
        assert whole > 1
        assert {visit.steps for visit in visits} == {2 * (whole - 12 // 8)}

    def test_everything_kept_is_no_quantisation(self, tmp_path, unbroken):
        """Whole rows sent as values and columns give the same ensemble and the same student."""
        most = run_helpers.train_run(tmp_path, "flesd", *SHORT, "method.kept=0.9999999")
        assert run_helpers.difference(most.loop.server, unbroken.loop.server) < 1e-5
        sent = most.loop.ledger.total("up")["similarity"]
        assert sent == 2 * unbroken.loop.ledger.total("up")["similarity"]

    def test_what_is_kept_is_sent_as_values_and_columns_and_billed_so(self, tmp_path, unbroken):
        run = run_helpers.train_run(tmp_path, "flesd", *SHORT, "method.kept=0.1")
        n = examples(run)
        k = int(0.1 * n) + 1
        assert run.loop.ledger.lines[0, "infer", "up", "similarity"] == 2 * (4 + 4) * n * k  # two clients a round
        assert run_helpers.difference(run.loop.server, unbroken.loop.server) > 1e-4

    @pytest.mark.parametrize("name", ["in-domain", "other"])
    def test_public_images_of_a_dataset(self, name, tmp_path):
        public = ("public.name=synthetic", "public.share=0.2") if name == "in-domain" else ("public.name=digits",)
        given = ("data.options={examples: 100, classes: 3, channels: 1}",) if name == "other" else ()
        run = run_helpers.train_run(tmp_path, "flesd", *SHORT, *public, *given, "federation.rounds=1")
        assert len(run.loop.clients) == 4
        held = set(run.data.parts.indices.tolist())
        if name == "in-domain":
            labels = run.data.source.train.labels
            public_labels = labels[run.data.public]
            assert not held & set(run.data.public.tolist())
            for label in range(3):
                assert (public_labels == label).sum() == round(0.2 * (labels == label).sum())
        else:
            assert run.data.public_images.shape[1:] == (1, 8, 8)
            assert len(held) == len(run.data.source.train.labels)


class TestQuantisedFLESD(InterfaceContract):
    variant = True
    method = "flesd"
    overrides = (*SHORT, "method.kept=0.1")
    falls = False

    def bill(self, run):
        n = examples(run)
        return {
            ("fit", "down", "weights"): WEIGHTS,
            ("infer", "up", "similarity"): (4 + 4) * n * (int(0.1 * n) + 1),
        }


class TestTwoArchitectures:
    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, tmp_path_factory):
        return run_helpers.train_run(tmp_path_factory.mktemp("two"), "flesd", *SHORT, *OTHER, EVERYONE)

    def test_both_train_and_distil(self, run):
        assert set(run.loop.server["students"]) == {"default", "wide"}
        assert [client.kind for client in run.loop.clients] == ["default", "wide", "wide"]
        for kind, method in {"default": run.loop.method, **run.loop.method.others}.items():
            fresh = method.weights()
            run.loop.executor.others.get(kind, run.loop.executor).flat_parameters.reset()
            student = run.loop.server["students"][kind]
            moved = {part: student[part] for part in fresh}
            assert run_helpers.difference(moved, fresh) > 1e-3
        widths = [run.loop.server["students"][kind]["encoder"] for kind in ("default", "wide")]
        assert [next(iter(tree.values())).shape[0] for tree in widths] == [6, 10]

    def test_each_is_evaluated_by_its_own_network(self, tmp_path):
        record, _ = run_helpers.execute_run(tmp_path, "flesd", *SHORT, *OTHER, EVERYONE, "federation.rounds=1")
        assert set(record["encoders"]) == {"global", "wide"}
        assert record["scores"]["knn/v1"]["accuracy"] == min(
            scores["knn/v1"]["accuracy"] for scores in record["encoders"].values()
        )

    @pytest.mark.ranks
    def test_two_ranks_give_the_same(self, run, tmp_path):
        run_helpers.on_two_ranks(tmp_path, "flesd", *SHORT, *OTHER, EVERYONE)
        both = run_helpers.build_run(tmp_path, "flesd", *SHORT, *OTHER, EVERYONE)
        both.loop.restore()
        assert run_helpers.same(run_helpers.state(both), run_helpers.state(run))

    def test_statistics_of_any_of_them_are_measured_where_none_are_sent(self, tmp_path):
        words = (*SHORT, *OTHER, EVERYONE, "federation.batch_norm=local", "encoder.norm=group", "heads.head_norm=false")
        assert run_helpers.build_run(tmp_path / "a", "flesd", *words).recalibrated
        plain = (*words, "federation.encoders.wide.norm=group")
        assert not run_helpers.build_run(tmp_path / "b", "flesd", *plain).recalibrated

    def test_a_method_that_averages_refuses(self, tmp_path):
        with pytest.raises(ConfigError, match="run one architecture"):
            run_helpers.build_run(tmp_path, "fedavg", *OTHER)


class TestDistillation:
    """The server's distillation steps against the functions of `methods.maths`, on one client's similarities."""

    @pytest.fixture
    def seat(self, tmp_path):
        run = run_helpers.build_run(
            tmp_path, "flesd", "method.anchors=64", "method.momentum=0", "method.distil_lr=0", EVERYONE
        )
        run.loop.restore()
        loop, method = run.loop, run.loop.method
        distil = method.plan(0)[2]
        (client,) = method.seats(loop.server)
        similarities = embedded(run)
        targets = {"M": ensemble_similarity([similarities], method.teacher_temperature)}
        visit = Visit(
            0, 1, distil, client, {"weights": loop.server["students"]["default"], "targets": targets}, {},
            torch.Generator(),
        )  # fmt: skip
        method.eval()
        method.start_visit(visit)
        return run, method, similarities

    def shown(self, run):
        (batch,) = run.data.batches(None, ("plain", "plain"), 1000, order=None, views=torch.Generator(), device="cpu")
        return batch

    def test_a_client_that_is_the_student_has_nothing_to_teach_it(self, seat):
        """With equal temperatures, equal networks and all images as anchors the KL divergence is 0."""
        run, method, similarities = seat
        step = method.hook("training_step", method.phase)
        assert abs(float(step(self.shown(run))["loss"])) < 1e-6
        method.context["targets"] = {"M": another(len(similarities))}
        assert float(step(self.shown(run))["loss"]) > 0.1

    def test_one_client_is_plain_similarity_distillation_of_it(self, seat):
        run, method, similarities = seat
        batch = self.shown(run)
        method.context["targets"] = {"M": another(len(similarities))}
        loss = method.hook("training_step", method.phase)(batch)["loss"]
        queries, anchors = (method.objective.embed(view)[1] for view in batch.views)
        cosines = similarity(spread(len(similarities)))
        by_hand = similarity_distillation(queries, anchors, (cosines / 0.1).exp(), 0.1)
        assert float(loss) == pytest.approx(float(by_hand), rel=1e-4)

    def test_anchors_are_first_in_first_out_and_the_key_encoder_follows(self, seat):
        run, method, _ = seat
        batch = self.shown(run)
        n = len(batch.index)
        step, end = method.hook("training_step", method.phase), method.hook("on_train_batch_end", method.phase)
        end(step(batch), batch)
        assert int(method.anchors_filled) == n
        first = Batch(tuple(view[:5] for view in batch.views), batch.index[:5])
        with torch.no_grad():
            for parameter in method.objective.parameters():
                parameter.add_(0.1)
        end(step(first), first)
        assert method.anchor_images[:5].tolist() == [0, 1, 2, 3, 4]
        assert method.anchor_images[5 : 5 + n].tolist() == list(range(n))
        assert int(method.anchors_filled) == min(64, n + 5)
        pairs = zip(method.key.parameters(), method.objective.parameters(), strict=True)
        assert all(torch.equal(parameter, lead) for parameter, lead in pairs)  # momentum 0: equal to the student

    def test_the_key_encoder_keeps_its_share_of_its_past(self, seat):
        run, method, _ = seat
        method.momentum = 0.9
        batch = self.shown(run)
        before = [parameter.clone() for parameter in method.key.parameters()]
        with torch.no_grad():
            for parameter in method.objective.parameters():
                parameter.add_(1.0)
        step, end = method.hook("training_step", method.phase), method.hook("on_train_batch_end", method.phase)
        end(step(batch), batch)
        for parameter, past in zip(method.key.parameters(), before, strict=True):
            torch.testing.assert_close(parameter, past + 0.1)

    def test_an_anchor_keeps_its_image(self, seat):
        """The second batch's loss by hand: anchors are the keys of both batches, each with the target of its image."""
        run, method, similarities = seat
        method.context["targets"] = {"M": another(len(similarities))}
        step, end = method.hook("training_step", method.phase), method.hook("on_train_batch_end", method.phase)
        whole = self.shown(run)
        first, second = (
            Batch(tuple(view[rows] for view in whole.views), whole.index[rows]) for rows in ([4, 1, 7], [2, 9, 5, 0])
        )
        end(step(first), first)
        z = method.objective.embed(whole.views[0])[1]
        images = [2, 9, 5, 0, 4, 1, 7]
        targets = method.context["targets"]["M"][[2, 9, 5, 0]][:, images]
        by_hand = similarity_distillation(z[[2, 9, 5, 0]], z[images], targets, 0.1)
        assert float(step(second)["loss"]) == pytest.approx(float(by_hand), rel=1e-4)

    def test_missing_anchors_have_no_effect(self, seat):
        run, method, _ = seat
        step = method.hook("training_step", method.phase)
        batch = self.shown(run)
        first = Batch(tuple(view[:5] for view in batch.views), batch.index[:5])
        before = step(first)["loss"]
        method.anchor_rows.normal_(generator=torch.Generator().manual_seed(0))
        assert float(step(first)["loss"]) == pytest.approx(float(before), rel=1e-6)
        assert math.isfinite(float(before))


def spread(n):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(3))


def another(n):
    """The ensemble similarities of one client with random embeddings."""
    return ensemble_similarity([similarity(spread(n))], 0.1)


def embedded(run):
    """Similarities of the public images by the current weights of the run's model, in eval mode."""
    method = run.loop.method.eval()
    (batch,) = run.data.batches(None, ("plain",), 1000, order=None, views=torch.Generator(), device="cpu")
    with torch.no_grad():
        return similarity(method.objective.embed(batch.views[0])[1])


def test_a_students_start_is_the_common_one(tmp_path):
    flesd = run_helpers.build_run(tmp_path / "a", "flesd")
    fedavg = run_helpers.build_run(tmp_path / "b", "fedavg")
    for run in (flesd, fedavg):
        run.loop.restore()
    student = flesd.loop.server["students"]["default"]
    assert run_helpers.same(trees.clone(student), trees.clone(fedavg.loop.server["weights"]))
