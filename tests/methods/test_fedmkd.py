from typing import ClassVar

import pytest
import torch
from torch.nn.functional import normalize

from benchmark.evaluation.drift import drift_unavailable
from methods import trees
from methods.base import MethodError, Visit
from methods.maths import attended, byol_regression, info_nce
from tests.methods.contract import WEIGHTS, InterfaceContract
from tests.methods.test_flesd import OTHER
from tests.methods.toys import EVERYONE, embedded, shift, shown
from tests.run_helpers import build_run, collect_visits, difference, same, train_run, trained

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
        assert set(loop.server["clients"]) == {loop.clients[k].id for round in range(3) for k in loop.cohort(round)}
        assert not loop.client_state.index
        for line in loop.history:  # one pass to distil, one for each client to align
            assert line["server_images"] == (1 + 2) * len(unbroken.data.public)


class TestTwoArchitectures(InterfaceContract):
    variant = True
    method = "fedmkd"
    overrides = (*QUICK, *OTHER)
    batch_norm = ("average",)

    def test_ledger_equals_a_hand_count(self, unbroken):
        wide = MODEL + 4 * (4 * 3 * 9 + 4 * 8 * 9 + 4 * 4)  # a first layer of 10 channels in place of 6
        loop, expected = unbroken.loop, {}
        for round in range(3):
            size = sum({"default": MODEL, "wide": wide}[loop.clients[k].architecture] for k in loop.cohort(round))
            expected |= {(round, "fit", "down", "weights"): size, (round, "fit", "up", "model"): size}
        assert loop.ledger.lines == expected

    def test_the_global_model_is_the_default_one_and_clients_have_theirs(self, unbroken):
        loop, server = unbroken.loop, unbroken.loop.server

        def channels(model):
            return next(iter(model["encoder"].values())).shape[0]

        widths = {client.id: {"default": 6, "wide": 10}[client.architecture] for client in loop.clients}
        assert channels(server["weights"]) == 6
        assert {k: channels(model) for k, model in server["clients"].items()} == {
            k: widths[k] for k in server["clients"]
        }
        assert list(loop.export()) == ["global"]

    # clients of several architectures are visited one by one, Trainer knows one, and no shipped config has this one
    test_clients_side_by_side_give_the_bits_of_one_by_one = None
    test_a_step_recorded_for_one_client_serves_the_others_and_waits_for_no_value = None
    test_trainer_fits_pooled_data_where_training_comes_first = None


# --- identities


def test_without_the_distillation_the_student_learns_from_public_images_alone():
    """Whatever the clients learn; with it, it depends on them."""
    without, longer = "method.distil_weight=0", "training.epochs=2"
    words = ((), (longer,), (without,), (without, longer))
    students = [trained("fedmkd", *QUICK, *own).loop.server["weights"] for own in words]
    assert (same(*students[:2]), same(*students[2:])) == (False, True)


def test_without_alignment_clients_are_those_of_the_method_local():
    """And what the server does changes nothing at the clients."""
    words = ("objective=byol", "public.name=client", "optimizer.lr=0.01", EVERYONE)
    ours, theirs = trained("fedmkd", *QUICK, "method.align_epochs=0", EVERYONE), trained("local", *words)
    for client, model in ours.loop.server["clients"].items():
        assert same(trees.clone(model), trees.select(theirs.loop.client_state[client]["stays"], model))


def test_the_alignment_moves_clients_and_not_the_student_of_the_round():
    words = ("fedmkd", *QUICK, "federation.rounds=1", EVERYONE)
    aligned, plain = (trained(*words, *own).loop.server for own in ((), ("method.align_epochs=0",)))
    assert same(aligned["weights"], plain["weights"])
    for client in (1, 2, 3):
        assert difference(aligned["clients"][client], plain["clients"][client]) > 1e-4


def test_clients_start_from_their_aligned_networks_and_the_students_target_and_queue_go_on(tmp_path, monkeypatch):
    loop = (run := build_run(tmp_path, "fedmkd", *QUICK, EVERYONE, "objective.momentum=0.9")).loop
    seen = collect_visits(run, lambda done: (done.visit.client.id, trees.clone(done.visit.message)["weights"]), "fit")
    starts, start_visit = [], type(loop.method).start_visit

    def look(method, visit, stored=None):
        start_visit(method, visit, stored)
        if visit.phase.name == "distil":
            starts.append(trees.clone(method.student()))

    monkeypatch.setattr(type(loop.method), "start_visit", look)
    loop.restore()
    start = trees.clone(loop.server["initial"]["default"])
    loop.run_round(0)
    after = trees.clone(loop.server)
    loop.run_round(1)
    assert all(same(received, start) for _, received in seen[:3])
    assert sorted(client for client, _ in seen[3:]) == [1, 2, 3]
    assert all(same(received, after["clients"][client]) for client, received in seen[3:])
    assert same(starts[1], {name: after[name] for name in ("weights", "target", "integration", "queue")})
    for part in ("encoder", "projector"):
        assert difference(after["weights"][part], after["target"][f"target_{part}"]) > 1e-4
    assert int(after["queue"]["filled"]) == min(32, 2 * len(run.data.public))


def test_add_ons_of_clients_learn():
    """FedX's predictor travels with a client's networks, and the optimiser has its parameters."""
    term = "method.addons=[{class: methods.fedx.CrossDistillation}]"
    server = trained("fedmkd", *QUICK, term, EVERYONE, "row=fedmkd-fedx").loop.server
    for model in server["clients"].values():
        assert difference(model["fedx"], server["initial"]["default"]["fedx"]) > 1e-3


# --- the distillation, by the student's worker


def at_the_seat(folder, *words, rows=0):
    """(run, its method before the first step of a distillation, the server's state, a batch of public images).

    rows: random ones in the queue.
    """
    run = build_run(folder, "fedmkd", *QUICK, EVERYONE, *words)
    loop, method, found = run.loop, run.loop.method, []
    update_fit = type(method).update_fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "update_fit", lambda *args: found.append(update_fit(*args)) or found[-1])
        loop.restore()
        loop.run_round(0)
    (server,) = found
    loop.executor.flat_parameters.reset()
    phase, (client,) = method.plan(0)[1], method.server_workers(server)
    message = method.send_distil(server, None).to(client.id)
    method.start_visit(Visit(0, 1, phase, client, message, {}, torch.Generator()))
    method.train()
    method.queue[:rows] = normalize(torch.randn(rows, 8), dim=1)
    method.queue_filled.fill_(rows)
    return run, method, server, shown(run, "augment", "augment")


def test_the_loss_by_hand_and_its_gradients(tmp_path):
    """Three teachers have trained, which have no gradient; their embeddings are those in eval mode."""
    _, method, server, batch = at_the_seat(tmp_path, rows=3)
    before = trees.clone(method.student())
    found = method.training_step_distil(batch)
    found["loss"].backward()
    for module in (method.objective.encoder, method.objective.predictor, method.integration):
        assert all(value.grad is not None for value in module.parameters())
    for module in (method.teacher, *(method.part(part) for part in method.objective.ema)):
        assert all(value.grad is None for value in module.parameters())
    teachers, integration = [], method.integration
    for model in server["trained"]["default"].values():
        method.load({part: model[part] for part in ("encoder", "projector")})
        teachers.append(embedded(method, torch.cat(batch.views)))
    method.train().load(before["weights"])
    out = method.objective(*batch.views)
    (p, q), (s, t) = out.predictions, out.targets
    reduced = torch.stack([integration.reduce(teacher) for teacher in teachers], 1)
    matrices = (integration.of_queries, integration.of_keys)
    mean = attended(torch.stack(teachers, 1), integration.reduce(torch.cat([p, q])), reduced, *matrices)
    distilled = info_nce(mean, torch.cat([p, q]), method.queue, torch.arange(32) < 3, 0.1)
    expected = 0.1 * (byol_regression(p, t) + byol_regression(q, s)) + 0.9 * distilled
    assert len(teachers) == 3
    assert float(found["loss"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(found["push"]["rows"], normalize(torch.cat([p, q]).detach(), dim=1))


def test_predictions_enter_the_queue_newest_first_and_the_target_follows(tmp_path):
    _, method, _, batch = at_the_seat(tmp_path)
    before = trees.clone({part: method.tensors(part) for part in method.objective.ema})
    first = method.training_step_distil(batch)
    method.on_train_batch_end_distil(first, batch)
    second = method.training_step_distil(batch)
    shift(method.objective, 1.0)
    method.on_train_batch_end_distil(second, batch)
    rows = torch.cat([second["push"]["rows"], first["push"]["rows"]])
    assert torch.equal(method.queue[: len(rows)], rows[:32])
    assert int(method.queue_filled) == min(32, len(rows))
    assert difference(before, {part: method.tensors(part) for part in method.objective.ema}) > 1e-3


def test_with_one_teacher_fixed_predictions_learn_nothing_of_it(tmp_path):
    """As the authors' code: its weight is 1 whatever the student predicts. An empty queue has nothing to tell apart."""
    for variant, rows in (("fixed", 3), ("trained", 3), ("trained", 0)):
        words = (f"method.predictions={variant}", "method.distil_weight=1", "partition.clients=2")
        _, method, server, batch = at_the_seat(tmp_path / f"{variant}{rows}", *words, rows=rows)
        assert len(server["trained"]["default"]) == 1
        (loss := method.training_step_distil(batch)["loss"]).backward()
        moved = max(float(value.grad.abs().max()) for value in method.objective.encoder.parameters())
        assert (moved > 1e-6) == (variant == "trained" and rows > 0)
        assert rows or float(loss.detach()) == 0


# --- the alignment


def test_the_alignment_by_hand(tmp_path):
    run = build_run(tmp_path, "fedmkd", *QUICK)
    method, anchors, images = run.loop.method.train(), torch.randn(9, 8), torch.tensor([8, 0, 2, 5])
    method.context = {"anchors": {"z": anchors}}
    batch = shown(run, "augment", "augment")
    batch = batch._replace(views=tuple(view[:4] for view in batch.views), index=images)
    found = method.training_step_align(batch)["loss"]
    p, q = method.objective.predictor(method.objective.embed(torch.cat(batch.views))[1]).split(4)
    expected = byol_regression(p, anchors[images]) + byol_regression(q, anchors[images])
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_anchors_are_the_trained_students_embeddings_of_plain_images_and_there_is_no_drift(tmp_path):
    run = build_run(tmp_path, "fedmkd", *QUICK, "federation.rounds=1")
    seen = collect_visits(run, lambda done: trees.clone(done.visit.message)["anchors"]["z"], "align")
    run.loop.fit()
    assert drift_unavailable(run.loop)
    run.loop.method.load(run.loop.server["weights"])
    z = embedded(run.loop.method, shown(run, "plain").views[0])
    assert len(seen) == 2
    for received in seen:
        torch.testing.assert_close(received, z, atol=1e-5, rtol=1e-4)


def test_architectures_of_unequal_embeddings_are_refused(tmp_path):
    words = (word.replace("[10,8]", "[10,9]") for word in OTHER)
    with pytest.raises(MethodError, match=r"set heads\.projector"):
        train_run(tmp_path, "fedmkd", *words, "heads.projector=[]")
