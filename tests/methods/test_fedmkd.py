from typing import ClassVar

import pytest
import torch
from torch.nn.functional import normalize

from benchmark.evaluation.drift import has_drift
from methods import trees
from methods.base import MethodError, Visit
from methods.maths import attended, byol_regression, info_nce
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract
from tests.methods.test_flesd import EVERYONE, OTHER

QUICK = ("method.queue_size=32", "method.distil_epochs=1", "optimizer.lr=0.01")
"""At the tiny scenario's rate of 0.05 differences by rounding grow a thousandfold in each round."""
MODEL = WEIGHTS + 4 * (2 * 4 * 8 + 2 * 4 + 8 + 2 * 4)
"""Bytes of a client's networks: with the predictor 8-4-8 and its running statistics."""


class TestFedMKD(InterfaceContract):
    method = "fedmkd"
    overrides = QUICK
    refused: ClassVar = {
        "objective=simclr": "distils into BYOL's predictions, which SimCLR has not: set objective=byol",
        "objective.stateful=true": "target_encoder starts each round as a copy",
        "method.predictions=x": "trained or fixed",
        "method.stays=[predictor]": "runs and aligns",
        "method.distil_weight=1.5": "at most 1",
        "server_optimizer.class=methods.server.Adam": "would change nothing",
    }
    batch_norm = ("average",)

    def bill(self, run):
        return {("fit", "down", "weights"): MODEL, ("fit", "up", "model"): MODEL}

    def test_the_server_keeps_the_student_and_the_networks_of_clients_that_took_part(self, unbroken):
        loop = unbroken.loop
        assert set(loop.server) == {"weights", "target", "integration", "queue", "initial", "clients"}
        cohorts = [loop.cohort(round) for round in range(3)]
        assert set(loop.server["clients"]) == {loop.clients[k].id for cohort in cohorts for k in cohort}
        assert not loop.client_state.index

    def test_images_of_the_server_and_of_clients_are_counted_separately(self, unbroken):
        public = len(unbroken.data.public)
        for line in unbroken.loop.history:
            assert line["server_images"] == (1 + 2) * public  # one pass to distil, one for each client to align


class TestTwoArchitectures(InterfaceContract):
    variant = True
    method = "fedmkd"
    overrides = (*QUICK, *OTHER)
    batch_norm = ("average",)

    def test_ledger_equals_a_hand_count(self, unbroken):
        wide = MODEL + 4 * (4 * 3 * 9 + 4 * 8 * 9 + 4 * 4)  # a first layer of 10 channels in place of 6
        loop, expected = unbroken.loop, {}
        for round in range(3):
            cohort = loop.cohort(round)
            size = sum({"default": MODEL, "wide": wide}[loop.clients[k].kind] for k in cohort)
            expected |= {(round, "fit", "down", "weights"): size, (round, "fit", "up", "model"): size}
        assert loop.ledger.lines == expected

    def test_the_global_model_is_the_default_one_and_clients_have_theirs(self, unbroken):
        server = unbroken.loop.server

        def channels(model):
            return next(iter(model["encoder"].values())).shape[0]

        assert channels(server["weights"]) == 6
        assert {channels(model) for model in server["clients"].values()} == {6, 10}
        kinds = {client.id: client.kind for client in unbroken.loop.clients}
        assert all(channels(model) == channels(server["initial"][kinds[k]]) for k, model in server["clients"].items())
        assert list(unbroken.loop.export()) == ["global"]

    # clients of several architectures are visited one by one, Trainer knows one, and no shipped config has this one
    test_clients_side_by_side_give_the_bits_of_one_by_one = None
    test_a_step_recorded_for_one_client_serves_the_others_and_waits_for_no_value = None
    test_trainer_fits_pooled_data_where_training_comes_first = None


# --- identities


def test_without_the_distillation_the_student_learns_from_public_images_alone(tmp_path):
    """Whatever the clients learn; with it, it depends on them."""

    def student(name, *words):
        return run_helpers.train_run(tmp_path / name, "fedmkd", *QUICK, *words).loop.server["weights"]

    alone = ("method.distil_weight=0", "training.epochs=2")
    assert run_helpers.same(student("a", *alone), student("b", alone[0]))
    assert not run_helpers.same(student("c", alone[1]), student("d"))


def test_without_alignment_clients_are_those_of_the_method_local(tmp_path):
    """And what the server does changes nothing at the clients."""
    words = ("objective=byol", "public.name=client", "optimizer.lr=0.01")
    ours = run_helpers.train_run(tmp_path / "a", "fedmkd", *QUICK, "method.align_epochs=0", EVERYONE)
    theirs = run_helpers.train_run(tmp_path / "b", "local", *words, EVERYONE)
    for client, model in ours.loop.server["clients"].items():
        assert run_helpers.same(trees.clone(model), trees.select(theirs.loop.client_state[client]["stays"], model))


def test_the_alignment_moves_clients_and_not_the_student_of_the_round(tmp_path):
    one = ("federation.rounds=1", EVERYONE)
    aligned = run_helpers.train_run(tmp_path / "a", "fedmkd", *QUICK, *one).loop.server
    plain = run_helpers.train_run(tmp_path / "b", "fedmkd", *QUICK, *one, "method.align_epochs=0").loop.server
    assert run_helpers.same(aligned["weights"], plain["weights"])
    for client in (1, 2, 3):
        assert run_helpers.difference(aligned["clients"][client], plain["clients"][client]) > 1e-4


def test_a_client_starts_from_its_own_aligned_networks(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedmkd", *QUICK, EVERYONE)
    seen = run_helpers.collect_visits(
        run, lambda done: (done.visit.phase.name, done.visit.client.id, trees.clone(done.visit.message), done.message)
    )
    run.loop.restore()
    start = trees.clone(run.loop.server["initial"]["default"])
    run.loop.run_round(0)
    assert all(run_helpers.same(received["weights"], start) for name, _, received, _ in seen if name == "fit")
    after = trees.clone({"clients": run.loop.server["clients"]})["clients"]
    seen.clear()
    run.loop.run_round(1)
    fits = {client: received["weights"] for name, client, received, _ in seen if name == "fit"}
    assert set(fits) == {1, 2, 3}
    assert all(run_helpers.same(received, after[client]) for client, received in fits.items())


def test_the_students_target_and_queue_go_on_in_the_next_round(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedmkd", *QUICK, EVERYONE, "objective.momentum=0.9")
    loop, starts = run.loop, []
    start_visit = type(loop.method).start_visit

    def look(method, visit, stored=None):
        start_visit(method, visit, stored)
        if visit.phase.name == "distil":
            starts.append(trees.clone(method.student()))

    loop.restore()
    loop.run_round(0)
    first = trees.clone({name: loop.server[name] for name in ("weights", "target", "integration", "queue")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(loop.method), "start_visit", look)
        loop.run_round(1)
    assert run_helpers.same(starts[0], first)
    parts = ("encoder", "projector")
    online = {part: first["weights"][part] for part in parts}
    assert run_helpers.difference(online, {part: first["target"][f"target_{part}"] for part in parts}) > 1e-4
    assert int(first["queue"]["filled"]) == min(32, 2 * len(run.data.public))


def test_add_ons_of_clients_learn(tmp_path):
    """FedX's predictor travels with a client's networks, and the optimiser has its parameters."""
    term = "method.addons=[{class: methods.fedx.CrossDistillation}]"
    run = run_helpers.train_run(tmp_path, "fedmkd", *QUICK, term, EVERYONE, "row=fedmkd-fedx")
    server = run.loop.server
    for model in server["clients"].values():
        assert run_helpers.difference(model["fedx"], server["initial"]["default"]["fedx"]) > 1e-3


# --- the distillation, at the student's seat


class TestDistillation:
    @pytest.fixture
    def seat(self, tmp_path):
        """A run's method at the student's seat, before the first step, with three teachers that have trained."""
        return at_the_seat(tmp_path)

    def test_the_loss_by_hand(self, seat):
        run, method, server, batch = seat
        method.queue[:3] = normalize(torch.randn(3, 8), dim=1)
        method.queue_filled.fill_(3)
        method.train()
        before = trees.clone(method.student())
        found = method.training_step_distil(batch)
        method.load(before["weights"])
        out = method.objective(*batch.views)
        p, images = torch.cat(out.predictions), torch.cat(batch.views)
        teachers = by_hand(run, server, images)
        integration = method.integration
        reduced = [integration.reduce(teacher) for teacher in teachers]
        mean = attended(
            torch.stack(teachers, 1), integration.reduce(p), torch.stack(reduced, 1), integration.of_queries,
            integration.of_keys,
        )  # fmt: skip
        distilled = info_nce(mean, p, method.queue, torch.arange(32) < 3, 0.1)
        byol = byol_regression(out.predictions[0], out.targets[1]) + byol_regression(out.predictions[1], out.targets[0])
        assert float(found["loss"].detach()) == pytest.approx(float((0.1 * byol + 0.9 * distilled).detach()), rel=1e-5)
        torch.testing.assert_close(found["push"]["rows"], normalize(p.detach(), dim=1))

    def test_teachers_have_no_gradient_and_student_and_integration_do(self, seat):
        _, method, _, batch = seat
        method.train()
        method.training_step_distil(batch)["loss"].backward()
        assert all(value.grad is None for value in method.teacher.parameters())
        for module in (method.objective.encoder, method.objective.predictor, method.integration):
            assert all(value.grad is not None for value in module.parameters())
        assert all(value.grad is None for part in method.objective.ema for value in method.part(part).parameters())

    def test_predictions_enter_the_queue_newest_first_and_the_target_follows(self, seat):
        _, method, _, batch = seat
        method.train()
        before = trees.clone({part: method.tensors(part) for part in method.objective.ema})
        first = method.training_step_distil(batch)
        method.on_train_batch_end_distil(first, batch)
        second = method.training_step_distil(batch)
        with torch.no_grad():
            for value in method.objective.parameters():
                value.add_(1.0)
        method.on_train_batch_end_distil(second, batch)
        rows = torch.cat([second["push"]["rows"], first["push"]["rows"]])
        assert torch.equal(method.queue[: len(rows)], rows[:32])
        assert int(method.queue_filled) == min(32, len(rows))
        assert run_helpers.difference(before, {part: method.tensors(part) for part in method.objective.ema}) > 1e-3


def test_with_one_teacher_fixed_predictions_learn_nothing_of_it(tmp_path):
    """As the authors' code: its weight is 1 whatever the student predicts."""
    for variant, learns in (("fixed", False), ("trained", True)):
        words = (f"method.predictions={variant}", "method.distil_weight=1", "partition.clients=2")
        _, method, server, batch = at_the_seat(tmp_path / variant, *words)
        assert len(server["trained"]["default"]) == 1
        method.train()
        method.queue[:3] = normalize(torch.randn(3, 8), dim=1)
        method.queue_filled.fill_(3)
        method.training_step_distil(batch)["loss"].backward()
        moved = max(float(value.grad.abs().max()) for value in method.objective.encoder.parameters())
        assert (moved > 1e-6) == learns


def test_with_an_empty_queue_there_is_nothing_to_tell_apart(tmp_path):
    _, method, _, batch = at_the_seat(tmp_path, "method.distil_weight=1")
    assert float(method.training_step_distil(batch)["loss"].detach()) == 0


def at_the_seat(folder, *words):
    """(run, its method before the first step of a distillation, the server's state, a batch of public images)."""
    run = run_helpers.build_run(folder, "fedmkd", *QUICK, EVERYONE, *words)
    loop, method = run.loop, run.loop.method
    found = []
    update_distil = type(method).update_fit

    def look(self, server, turn, replies):
        found.append(update_distil(self, server, turn, replies))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "update_fit", look)
        loop.restore()
        loop.run_round(0)
    (server,) = found
    loop.executor.flat_parameters.reset()
    phase, (client,) = method.plan(0)[1], method.seats(server)
    message = method.send_distil(server, None).to(client.id)
    method.start_visit(Visit(0, 1, phase, client, message, {}, torch.Generator()))
    (batch,) = run.data.batches(
        None, ("augment", "augment"), 1000, order=None, views=torch.Generator(), device="cpu"
    )  # fmt: skip
    return run, method, server, batch


def by_hand(run, server, images):
    """The teachers' embeddings of images, by the objective's own networks in eval mode."""
    method, own, rows = run.loop.method, trees.clone(run.loop.method.student()), []
    for models in server["trained"].values():
        for model in models.values():
            method.load({part: model[part] for part in ("encoder", "projector")})
            with torch.no_grad():
                rows.append(method.eval().objective.embed(images)[1])
    method.train().load(own["weights"])
    return rows


# --- the alignment


def test_the_alignment_by_hand(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedmkd", *QUICK)
    method = run.loop.method.train()
    anchors = torch.randn(9, 8)
    method.context = {"anchors": {"z": anchors}}
    (batch,) = run.data.batches(
        None, ("augment", "augment"), 1000, order=None, views=torch.Generator(), device="cpu"
    )  # fmt: skip
    batch = batch._replace(views=tuple(view[:4] for view in batch.views), index=torch.tensor([8, 0, 2, 5]))
    found = method.training_step_align(batch)["loss"]
    objective = method.objective
    p, q = objective.predictor(objective.embed(torch.cat(batch.views))[1]).split(4)
    by_hand = sum(byol_regression(rows, anchors[[8, 0, 2, 5]]) for rows in (p, q))
    assert float(found.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)


def test_anchors_are_the_trained_students_embeddings_of_plain_images(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedmkd", *QUICK, "federation.rounds=1")
    seen = run_helpers.collect_visits(run, lambda done: trees.clone(done.visit.message), "align")
    run.loop.fit()
    method = run.loop.method.eval()
    method.load(run.loop.server["weights"])
    (batch,) = run.data.batches(None, ("plain",), 1000, order=None, views=torch.Generator(), device="cpu")
    with torch.no_grad():
        z = method.objective.embed(batch.views[0])[1]
    assert len(seen) == 2
    for received in seen:
        torch.testing.assert_close(received["anchors"]["z"], z, atol=1e-5, rtol=1e-4)


def test_architectures_of_unequal_embeddings_are_refused(tmp_path):
    words = (word.replace("[10,8]", "[10,9]") for word in OTHER)
    with pytest.raises(MethodError, match=r"set heads\.projector"):
        run_helpers.train_run(tmp_path, "fedmkd", *words, "heads.projector=[]")


def test_there_is_no_drift_to_measure(tmp_path):
    run = run_helpers.train_run(tmp_path, "fedmkd", *QUICK, "federation.rounds=1")
    assert not has_drift(run.loop)
