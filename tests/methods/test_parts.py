"""The networks of a method as Trees, and the parts that stay with a client; on toy classes outside the package."""

import itertools
from pathlib import Path

import pytest
import torch

from methods import trees
from methods.base import (
    Message,
    Tree,
    Visit,
)
from methods.networks import convnet
from tests import run_helpers
from tests.methods.toys import EVERYONE, FIT, Follow, Toy, prepared, tiny, train_run, visit_of

# --- what stays with a client


class Homebody(Toy):
    """A method whose projector stays with the client, and whose memory counts visits."""

    travels = ("encoder",)
    stays = ("projector",)

    def init_client(self, visit: Visit) -> Tree:
        return {"visits": {"n": torch.zeros(1)}}

    def receive(self, visit: Visit) -> None:
        super().receive(visit)
        self.log.append((visit.client.id, int(visit.memory["visits"]["n"]), "start", trees.clone(self.projector())))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        visits = visit.memory["visits"]["n"]
        self.log.append((visit.client.id, int(visits), "end", trees.clone(self.projector())))
        return super().reply(visit)[0], {"visits": {"n": visits + 1}}

    def projector(self) -> Tree:
        return {"projector": self.tensors("projector")}


@pytest.mark.parametrize("policy", ["average", "recalibrate"])
def test_what_stays_is_there_again_at_the_next_visit_and_nowhere_else(tmp_path: Path, policy: str) -> None:
    rounds = ("federation.rounds=5", "federation.participation=0.75", f"federation.batch_norm={policy}")
    run = prepared(tmp_path, Homebody, *rounds)
    pristine = trees.clone(run.loop.method.projector())
    run.loop.fit()
    log = {line[:3]: line[3] for line in run.loop.method.log}
    visits = {client: max(n for k, n, _ in log if k == client) + 1 for client in range(4)}
    assert sum(visits.values()) == 15
    for client, count in visits.items():
        assert run_helpers.same(log[client, 0, "start"], pristine)
        for visit in range(1, count):
            assert run_helpers.same(log[client, visit, "start"], log[client, visit - 1, "end"])
            assert run_helpers.difference(log[client, visit, "end"], log[client, visit, "start"]) > 0
    for first, second in itertools.combinations(range(4), 2):
        assert run_helpers.difference(log[first, 0, "end"], log[second, 0, "end"]) > 0
    assert set(run.loop.server["weights"]) == {"encoder"}
    assert set(run.loop.ledger.total("up")) == {"weights"} | ({"statistics"} if policy == "recalibrate" else set())


def test_a_queue_is_first_in_first_out_with_the_newest_rows_first() -> None:
    objective = Follow(convnet(widths=(4,), strides=(2,)), projector=(1,))
    assert int(objective.bank_filled) == 0
    pushed: list[float] = []
    for n in (10, 10, 3, 10):
        rows = torch.arange(len(pushed), len(pushed) + n).float()[:, None].requires_grad_()
        objective.after_step({"bank": rows})
        pushed += rows.flatten().tolist()
        filled = min(25, len(pushed))
        assert int(objective.bank_filled) == filled
        valid = objective.bank[:filled].flatten().tolist()
        assert sorted(valid[:n]) == pushed[-n:]
        assert len(set(valid)) == filled
        assert set(valid) <= set(pushed)
        assert not objective.bank[filled:].any()
    assert set(pushed[-23:]) < set(valid)  # all but part of the oldest batch
    objective.after_step({"bank": torch.full((40, 1), 5.0)})
    assert objective.bank.eq(5).all()
    assert not objective.bank.requires_grad


@pytest.mark.parametrize("momentum", [0.0, 0.75, 1.0])
def test_a_target_follows_its_source(momentum: float) -> None:
    objective = Follow(convnet(widths=(4,), strides=(2,)), projector=(3, 2), momentum=momentum)
    with torch.no_grad():
        for parameter in objective.target.parameters():
            parameter.fill_(1.0)
        for parameter in objective.projector.parameters():
            parameter.fill_(2.0)
        objective.projector[1].running_mean.fill_(9.0)
    objective.after_step({"bank": torch.zeros(1, 2)})
    assert all(p.eq(momentum * 1 + (1 - momentum) * 2).all() for p in objective.target.parameters())
    assert all(p.eq(2).all() for p in objective.projector.parameters())
    assert objective.target[1].running_mean.eq(0).all()  # the EMA moves parameters only


class Followed(Toy):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.log.append((self.tensors("target"), self.tensors("projector"), self.objective.bank_filled.item()))
        assert run_helpers.same(*self.log[-1][:2])  # a visit starts with a target equal to its source
        return super().configure_optimizers()

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        assert run_helpers.difference(self.tensors("target"), self.tensors("projector")) > 0
        assert self.objective.bank_filled == min(25, visit.client.examples)
        return super().reply(visit)


def test_targets_start_at_their_source_and_queues_empty_at_each_visit(tmp_path: Path) -> None:
    log = train_run(tmp_path, Followed, objective=Follow).loop.method.log
    assert len(log) == 6
    assert [filled for *_, filled in log] == [0] * 6


class Hoarder(Toy):
    stays = ("bank",)

    def receive(self, visit: Visit) -> None:
        super().receive(visit)
        bank = self.objective.bank.clone(), int(self.objective.bank_filled)
        self.log.append((visit.client.id, visit.round, "start", bank))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        bank = self.objective.bank.clone(), int(self.objective.bank_filled)
        self.log.append((visit.client.id, visit.round, "end", bank))
        return super().reply(visit)


def test_a_queue_that_stays_keeps_its_rows_and_their_count(tmp_path: Path) -> None:
    run = train_run(tmp_path, Hoarder, EVERYONE, objective=Follow)
    log = {line[:3]: line[3] for line in run.loop.method.log}
    for client in range(4):
        assert log[client, 0, "start"][1] == 0
        for round in (1, 2):
            (rows, filled), (before, count) = log[client, round, "start"], log[client, round - 1, "end"]
            assert filled == count > 0
            assert torch.equal(rows, before)
    assert set(run.loop.ledger.total("up")) == {"weights"}


# --- the networks as Trees


def test_weights_statistics_and_trainable_parts() -> None:
    method = tiny()
    method.objective.projector[0].requires_grad_(False)
    everything, statistics = dict(trees.leaves(method.weights())), dict(trees.leaves(method.statistics()))
    running = {path for path in everything if path[-1].endswith(("running_mean", "running_var"))}
    assert statistics.keys() == running
    assert len(running) == 2 * 3
    assert not any("num_batches" in path[-1] for path in everything)
    frozen = {("projector", "0.weight")}
    assert dict(trees.leaves(method.trainable())).keys() == everything.keys() - running - frozen
    for policy in ("local", "recalibrate"):
        method.batch_norm = policy
        assert dict(trees.leaves(method.weights())).keys() == everything.keys() - running
        assert dict(trees.leaves(method.weights(statistics=True))).keys() == everything.keys()


def test_load_copies_what_is_named_and_leaves_the_rest() -> None:
    method = tiny()
    before = trees.clone(method.weights())
    new = {"projector": {"0.weight": torch.full((5, 6), 2.0), "1.running_var": torch.full((5,), 3.0)}}
    method.load(new)
    assert run_helpers.same(trees.clone(method.weights()), trees.overlay(before, new))
    new["projector"]["0.weight"].fill_(0)
    assert method.objective.projector[0].weight.eq(2).all()


def test_export_and_adopt_are_each_others_way_back() -> None:
    method = tiny()
    server = {"weights": trees.clone(method.weights()), "c": {"x": torch.ones(1)}}
    assert run_helpers.same(method.adopt(server, method.export(server, {})), server)
    other = trees.map(torch.zeros_like, server["weights"])
    assert run_helpers.same(method.adopt(server, {"global": other}), {**server, "weights": other})


def test_receive_adds_to_a_fresh_context() -> None:
    method = tiny()
    weights = trees.map(lambda leaf: leaf + 1, method.weights())
    method.context = {"stale": {}}
    method.start_visit(visit_of(FIT, {"weights": weights, "hint": {"x": torch.ones(1)}}))
    assert set(method.context) == {"hint"}
    assert run_helpers.same(trees.clone(method.weights()), weights)
