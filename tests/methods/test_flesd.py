from typing import ClassVar

import pytest
import torch

from benchmark.errors import ConfigError
from datamodules.federated import Batch
from methods import trees
from methods.base import Visit
from methods.maths import ensemble_similarity, similarity, similarity_distillation
from tests.methods.contract import WEIGHTS, InterfaceContract, MethodContract
from tests.methods.toys import EVERYONE, embedded, replies, shift, shown
from tests.run_helpers import build_run, collect_visits, difference, execute_run, on_two_ranks, same, state, trained

SHORT = ("method.distil_epochs=2", "method.distil_batch_size=8", "method.anchors=12")
OTHER = tuple(
    f"federation.encoders.wide.{word}"
    for word in ("class=methods.networks.convnet", "widths=[10,8]", "strides=[2,2]", "clients=[2,3]")
)
FILLED = "method.distil_batch_size=8 method.fill_anchors=true"


def examples(run):
    return len(run.data.public)


def similarities(run):
    """Of the public images, by the current weights of the run's model."""
    return similarity(embedded(run.loop.method, shown(run, "plain").views[0]))


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
        " ".join((*OTHER, "executor=parallel")): "one by one",
        "server_optimizer.class=methods.server.Adam": "would change nothing",
        "'method.addons=[{class: methods.fedx.CrossDistillation}]'": "leave it out",
        f"{FILLED} method.anchors=200": "makes no step with the first 25 batches of an epoch",
        f"{FILLED} method.anchors=4": "method.anchors=4 is less than a batch of 8",
    }
    falls = False  # a round starts from the distilled student, not from the client's own weights

    def bill(self, run):
        return {("fit", "down", "weights"): WEIGHTS, ("infer", "up", "similarity"): 4 * examples(run) ** 2}

    def test_who_gives_the_public_images_takes_no_part_and_no_weights_leave_a_client(self, unbroken):
        loop = unbroken.loop
        assert [client.id for client in loop.clients] == [1, 2, 3]
        assert (unbroken.data.public == unbroken.data.parts[0]).all()
        assert (set(loop.ledger.total("up")), set(loop.server)) == ({"similarity"}, {"students"})
        assert not any(client < 0 for client in loop.client_state.index)

    def test_images_of_the_server_and_of_clients_are_counted_separately(self, tmp_path):
        record, run = execute_run(tmp_path, "flesd", *SHORT)
        loop = run.loop
        assert record["server"]["images"] == loop.rounds * loop.method.distil_epochs * len(run.data.public)
        assert record["server"]["seconds"] > 0
        assert record["images"] == sum(row["images"] for row in loop.history)
        assert execute_run(tmp_path, "fedavg", "federation.rounds=1")[0]["server"] == {}

    def test_a_client_infers_with_what_it_has_trained_and_not_the_student_it_received(self, tmp_path):
        loop = (run := build_run(tmp_path, "flesd", *SHORT, "federation.rounds=1")).loop
        sent = replies(run, "infer")
        loop.fit()
        assert sent
        for visit, message in sent:
            matrix = message["similarity"]["values"]
            loop.method.load(loop.client_state[visit.client.id]["stays"])
            assert torch.allclose(matrix, similarities(run), atol=1e-5)
            loop.executor.flat_parameters.reset()
            assert not torch.allclose(matrix, similarities(run), atol=1e-3)

    @pytest.mark.parametrize("clients", [1, 2])
    def test_the_servers_targets_are_the_sharpened_ensemble_of_what_was_sent(self, clients, tmp_path):
        words = ("partition.name=iid", f"partition.clients={clients + 1}", EVERYONE, "method.teacher_temperature=0.3")
        run = build_run(tmp_path, "flesd", *SHORT, *words, "federation.rounds=1")
        seen = collect_visits(run, lambda done: trees.clone({**done.visit.message, **done.message}))
        run.loop.fit()
        sent = [entries["similarity"]["values"] for entries in seen if "similarity" in entries]
        taught = [entries["targets"]["M"] for entries in seen if "targets" in entries]
        assert len(sent) == clients
        torch.testing.assert_close(taught[0], sum(((matrix - 1) / 0.3).exp() for matrix in sent) / clients)

    def test_the_distillations_rate_is_its_own_and_the_first_batches_of_an_epoch_may_only_fill_the_anchors(
        self, tmp_path
    ):
        """As in the code: they make no step, and a short last batch is left out."""
        words = ("public.client=2", "method.fill_anchors=true", "method.drop_last=true", "method.distil_lr=0.002")
        run = build_run(tmp_path, "flesd", *SHORT, *words, "schedule.name=cosine")
        seen = collect_visits(run, lambda done: done.visit)
        run.loop.fit()
        distil, fit = ([visit for visit in seen if visit.phase.name == name] for name in ("distil", "fit"))
        assert [visit.lr_sum / visit.steps for visit in distil] == pytest.approx([0.002] * 3)
        assert fit[-1].lr_sum / fit[-1].steps < fit[0].lr_sum / fit[0].steps
        whole, rest = divmod(examples(run), 8)
        assert min(whole - 1, rest) > 0
        assert [visit.steps for visit in distil] == [2 * (whole - 12 // 8)] * 3

    def test_everything_kept_is_no_quantisation(self, unbroken):
        """Whole rows sent as values and columns give the same ensemble and the same student."""
        most = trained("flesd", *SHORT, "method.kept=0.9999999").loop
        assert difference(most.server, unbroken.loop.server) < 1e-5
        assert most.ledger.total("up")["similarity"] == 2 * unbroken.loop.ledger.total("up")["similarity"]

    def test_public_images_may_be_a_share_of_each_class_or_of_another_dataset(self):
        words = ("flesd", *SHORT, "federation.rounds=1")
        data = trained(*words, "public.name=synthetic", "public.share=0.2").data
        labels = data.source.train.labels
        assert not set(data.parts.indices.tolist()) & set(data.public.tolist())
        for label in range(3):
            assert (labels[data.public] == label).sum() == round(0.2 * (labels == label).sum())
        own = "data.options={examples: 100, classes: 3, channels: 1}"
        other = trained(*words, "public.name=digits", own).data
        assert (len(data.parts), len(other.parts)) == (4, 4)
        assert other.public_images.shape[1:] == (1, 8, 8)
        assert len(set(other.parts.indices.tolist())) == len(other.source.train.labels)


class TestQuantisedFLESD(InterfaceContract):
    """What is kept of a row is sent as values and columns."""

    variant = True
    method = "flesd"
    overrides = (*SHORT, "method.kept=0.1")
    falls = False

    def bill(self, run):
        n = examples(run)
        return {("fit", "down", "weights"): WEIGHTS, ("infer", "up", "similarity"): (4 + 4) * n * (int(0.1 * n) + 1)}

    def test_the_student_is_another(self, unbroken):
        assert difference(unbroken.loop.server, trained("flesd", *SHORT).loop.server) > 1e-4


class TestTwoArchitectures:
    words = ("flesd", *SHORT, *OTHER, EVERYONE)

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls):
        return trained(*cls.words)

    def test_both_train_and_distil(self, run):
        loop, students = run.loop, run.loop.server["students"]
        assert [client.architecture for client in loop.clients] == ["default", "wide", "wide"]
        for kind, method in {"default": loop.method, **loop.method.others}.items():
            loop.executor.others.get(kind, loop.executor).flat_parameters.reset()
            fresh = trees.clone(method.weights())
            assert difference(fresh, trees.select(students[kind], fresh)) > 1e-3
        widths = {kind: next(iter(tree["encoder"].values())).shape[0] for kind, tree in students.items()}
        assert widths == {"default": 6, "wide": 10}

    def test_each_is_evaluated_by_its_own_network(self, tmp_path):
        record, _ = execute_run(tmp_path, *self.words, "federation.rounds=1")
        each = {name: scores["knn/v1"]["accuracy"] for name, scores in record["encoders"].items()}
        assert each.keys() == {"global", "wide"}
        assert record["scores"]["knn/v1"]["accuracy"] == min(each.values())

    @pytest.mark.ranks
    def test_two_ranks_give_the_same(self, run, tmp_path):
        on_two_ranks(tmp_path, *self.words)
        both = build_run(tmp_path, *self.words)
        both.loop.restore()
        assert same(state(both), state(run))

    def test_statistics_of_any_of_them_are_measured_where_none_are_sent(self, tmp_path):
        words = (*self.words, "federation.batch_norm=local", "encoder.norm=group", "heads.head_norm=false")
        assert build_run(tmp_path / "a", *words).evaluator.recalibrated
        assert not build_run(tmp_path / "b", *words, "federation.encoders.wide.norm=group").evaluator.recalibrated
        with pytest.raises(ConfigError, match="run one architecture"):
            build_run(tmp_path / "c", "fedavg", *OTHER)  # as it averages


class TestDistillation:
    """The server's distillation steps against the functions of `methods.maths`, on one client's similarities."""

    @pytest.fixture(autouse=True)
    def _seat(self, tmp_path):
        words = ("method.anchors=64", "method.momentum=0", "method.distil_lr=0", EVERYONE)
        run = build_run(tmp_path, "flesd", *words)
        run.loop.restore()
        server, self.method = run.loop.server, run.loop.method
        (client,) = self.method.server_workers(server)
        M = ensemble_similarity([similarities(run)], self.method.teacher_temperature)
        message = {"weights": server["students"]["default"], "targets": {"M": M}}
        self.method.eval()
        self.method.start_visit(Visit(0, 1, self.method.plan(0)[2], client, message, {}, torch.Generator()))
        self.batch = shown(run, "plain", "plain")
        z = torch.randn(len(self.batch.index), 6, generator=torch.Generator().manual_seed(3))
        self.another = ensemble_similarity([similarity(z)], 0.1)  # of one client with random embeddings
        self.by_hand = (similarity(z) / 0.1).exp()

    def step(self, batch, *, end=False):
        """The loss of a step on a batch."""
        result = self.method.hook("training_step", self.method.phase)(batch)
        if end:
            self.method.hook("on_train_batch_end", self.method.phase)(result, batch)
        return float(result["loss"].detach())

    def rows(self, *images):
        return Batch(tuple(view[[*images]] for view in self.batch.views), self.batch.index[[*images]])

    def test_one_client_is_plain_similarity_distillation_of_it(self):
        """With equal temperatures, equal networks and all images as anchors the KL divergence is 0."""
        assert abs(self.step(self.batch)) < 1e-6
        self.method.context["targets"] = {"M": self.another}
        queries, anchors = (self.method.objective.embed(view)[1] for view in self.batch.views)
        expected = similarity_distillation(queries, anchors, self.by_hand, 0.1)
        assert self.step(self.batch) == pytest.approx(float(expected.detach()), rel=1e-4)

    def test_anchors_are_first_in_first_out(self):
        method, n, few = self.method, len(self.batch.index), self.rows(0, 1, 2, 3, 4)
        before = self.step(few)
        method.anchor_rows.normal_(generator=torch.Generator().manual_seed(0))
        assert self.step(few) == pytest.approx(before, rel=1e-6)  # what is missing has no effect
        self.step(self.batch, end=True)
        assert int(method.anchors_filled) == n
        self.step(few, end=True)
        assert method.anchor_images[: 5 + n].tolist() == [0, 1, 2, 3, 4, *range(n)]
        assert int(method.anchors_filled) == min(64, n + 5)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_the_key_encoder_keeps_its_share_of_its_past(self, momentum):
        self.method.momentum = momentum
        before = [parameter.clone() for parameter in self.method.key.parameters()]
        shift(self.method.objective, 1.0)
        self.step(self.batch, end=True)
        for parameter, past in zip(self.method.key.parameters(), before, strict=True):
            torch.testing.assert_close(parameter, past + 1 - momentum)

    def test_an_anchor_keeps_its_image(self):
        """The second batch's loss by hand: anchors are the keys of both batches, each with the target of its image."""
        self.method.context["targets"] = {"M": self.another}
        self.step(self.rows(4, 1, 7), end=True)
        z = self.method.objective.embed(self.batch.views[0])[1]
        own, images = [2, 9, 5, 0], [2, 9, 5, 0, 4, 1, 7]
        by_hand = similarity_distillation(z[own], z[images], self.another[own][:, images], 0.1)
        assert self.step(self.rows(*own)) == pytest.approx(float(by_hand.detach()), rel=1e-4)


def test_a_students_start_is_the_common_one(tmp_path):
    flesd, fedavg = (build_run(tmp_path / name, name).loop for name in ("flesd", "fedavg"))
    flesd.restore()
    fedavg.restore()
    assert same(trees.clone(flesd.server["students"]["default"]), trees.clone(fedavg.server["weights"]))
