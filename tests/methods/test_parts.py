"""The networks of a method as Trees, and the parts that stay with a client; on toy classes outside the package."""

import itertools

import pytest
import torch

from methods import trees
from methods.networks import convnet
from tests.methods.toys import EVERYONE, FIT, Follow, Toy, prepared, tiny, train_run, visit_of
from tests.run_helpers import difference, same

# --- what stays with a client


class Noting(Toy):
    """Notes what `kept` returns at the start and at the end of each visit."""

    def receive(self, visit):
        super().receive(visit)
        self.calls.append(((visit.client.id, visit.round, "start"), trees.clone(self.kept())))

    def reply(self, visit):
        self.calls.append(((visit.client.id, visit.round, "end"), trees.clone(self.kept())))
        return super().reply(visit)


class Homebody(Noting):
    """A method whose projector stays with the client, and whose memory counts visits."""

    travels = ("encoder",)
    stays = ("projector",)

    def init_client(self, visit):
        return {"visits": {"n": torch.zeros(1)}}

    def reply(self, visit):
        return super().reply(visit)[0], {"visits": {"n": visit.memory["visits"]["n"] + 1}}

    def kept(self):
        return {"projector": self.tensors("projector")}


@pytest.mark.parametrize("policy", ["average", "recalibrate"])
def test_what_stays_is_there_again_at_the_next_visit_and_nowhere_else(tmp_path, policy):
    rounds = ("federation.rounds=5", "federation.participation=0.75", f"federation.batch_norm={policy}")
    loop = prepared(tmp_path, Homebody, *rounds).loop
    left = dict.fromkeys(range(4), pristine := trees.clone(loop.method.kept()))
    loop.fit()
    log = dict(loop.method.calls)
    assert len(log) == 2 * 15
    for client, round in sorted({key[:2] for key in log}):
        assert same(log[client, round, "start"], left[client])
        left[client] = log[client, round, "end"]
    for one, other in itertools.combinations([*left.values(), pristine], 2):
        assert difference(one, other) > 0
    visits = [int(loop.client_state[client]["memory"]["visits"]["n"]) for client in range(4)]
    assert visits == [sum(key[0] == client for key in log) // 2 for client in range(4)]
    assert set(loop.server["weights"]) == {"encoder"}
    assert set(loop.ledger.total("up")) == {"weights"} | ({"statistics"} if policy == "recalibrate" else set())


def test_a_queue_is_first_in_first_out_with_the_newest_rows_first():
    objective, pushed = Follow(convnet(widths=(4,), strides=(2,)), projector=(1,)), []
    for n in (0, 10, 10, 3, 10):
        rows = torch.arange(len(pushed), len(pushed) + n).float()[:, None].requires_grad_()
        objective.after_step({"bank": rows})
        pushed += rows.flatten().tolist()
        filled = min(25, len(pushed))
        assert int(objective.bank_filled) == filled
        valid = objective.bank[:filled].flatten().tolist()
        assert sorted(valid[:n]) == pushed[len(pushed) - n :]
        assert len(set(valid)) == filled
        assert set(valid) <= set(pushed)
        assert not objective.bank[filled:].any()
    assert set(pushed[-23:]) < set(valid)  # all but part of the oldest batch
    objective.after_step({"bank": torch.full((40, 1), 5.0)})
    assert objective.bank.eq(5).all()
    assert not objective.bank.requires_grad


@pytest.mark.parametrize("momentum", [0.0, 0.75, 1.0])
def test_a_target_follows_its_source(momentum):
    objective = Follow(convnet(widths=(4,), strides=(2,)), projector=(3, 2), momentum=momentum)
    for part, value in ((objective.target, 1.0), (objective.projector, 2.0)):
        for parameter in part.parameters():
            torch.nn.init.constant_(parameter, value)
    objective.projector[1].running_mean.fill_(9.0)
    objective.after_step({"bank": torch.zeros(1, 2)})
    assert all(p.eq(momentum * 1 + (1 - momentum) * 2).all() for p in objective.target.parameters())
    assert all(p.eq(2).all() for p in objective.projector.parameters())
    assert objective.target[1].running_mean.eq(0).all()  # the EMA moves parameters only


class Followed(Toy):
    def configure_optimizers(self):
        self.calls.append(self.objective.bank_filled.item())
        assert same(self.tensors("target"), self.tensors("projector"))  # as a visit starts
        return super().configure_optimizers()

    def reply(self, visit):
        assert difference(self.tensors("target"), self.tensors("projector")) > 0
        assert self.objective.bank_filled == min(25, visit.client.examples)
        return super().reply(visit)


def test_targets_start_at_their_source_and_queues_empty_at_each_visit(tmp_path):
    assert train_run(tmp_path, Followed, objective=Follow).loop.method.calls == [0] * 6


class Hoarder(Noting):
    stays = ("bank",)

    def kept(self):
        return {"bank": self.objective.bank[: int(self.objective.bank_filled)]}


def test_a_queue_that_stays_keeps_its_rows_and_their_count(tmp_path):
    loop = train_run(tmp_path, Hoarder, EVERYONE, objective=Follow).loop
    log = dict(loop.method.calls)
    for client in range(4):
        assert len(log[client, 0, "start"]["bank"]) == 0
        for round in (1, 2):
            assert len(log[client, round, "start"]["bank"]) > 0
            assert same(log[client, round, "start"], log[client, round - 1, "end"])
    assert set(loop.ledger.total("up")) == {"weights"}


# --- the networks as Trees


def test_weights_statistics_and_trainable_parts():
    def paths(tree):
        return set(dict(trees.leaves(tree)))

    method = tiny()
    method.objective.projector[0].requires_grad_(False)
    everything = paths(method.weights())
    running = {path for path in everything if path[-1].endswith(("running_mean", "running_var"))}
    assert paths(method.statistics()) == running
    assert len(running) == 2 * 3
    assert not any("num_batches" in path[-1] for path in everything)
    assert paths(method.trainable()) == everything - running - {("projector", "0.weight")}
    for policy in ("local", "recalibrate"):
        method.batch_norm = policy
        assert paths(method.weights()) == everything - running
        assert paths(method.weights(statistics=True)) == everything


def test_load_copies_what_is_named_and_leaves_the_rest():
    method = tiny()
    before = trees.clone(method.weights())
    new = {"projector": {"0.weight": torch.full((5, 6), 2.0), "1.running_var": torch.full((5,), 3.0)}}
    method.load(new)
    assert same(trees.clone(method.weights()), trees.overlay(before, new))
    new["projector"]["0.weight"].fill_(0)
    assert method.objective.projector[0].weight.eq(2).all()


def test_export_and_adopt_are_each_others_way_back():
    method = tiny()
    server = {"weights": trees.clone(method.weights()), "c": {"x": torch.ones(1)}}
    assert same(method.adopt(server, method.export(server, {})), server)
    other = trees.map(torch.zeros_like, server["weights"])
    assert same(method.adopt(server, {"global": other}), {**server, "weights": other})


def test_receive_adds_to_a_fresh_context():
    method = tiny()
    weights = trees.map(lambda leaf: leaf + 1, method.weights())
    method.context = {"stale": {}}
    method.start_visit(visit_of(FIT, {"weights": weights, "hint": {"x": torch.ones(1)}}))
    assert set(method.context) == {"hint"}
    assert same(trees.clone(method.weights()), weights)
