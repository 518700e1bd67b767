"""Phases run as declared: mail, observations, server workers, entries; on toy methods outside the package."""

import numpy as np
import pytest
import torch

from datamodules.partition import PartitionError
from datamodules.views import plain
from methods import trees
from methods.base import Cat, Client, Each, Mail, Mean, MethodError, Phase, Sum
from tests import run_helpers
from tests.methods.toys import EVERYONE, FIT, Toy, prepared, train_run


class Distil(Toy):
    """After local training the server continues training on public images."""

    WORKER = -1
    phases = (FIT, Phase("distil", where="server", data="public", views=("plain", "augment"), epochs=2, batch_size=6,
                         uplink={"weights": Mean("clients")}))  # fmt: skip

    def server_workers(self, server):
        return (Client(self.WORKER, 20, "student"),)

    def send_distil(self, server, round_context):
        self.calls.append(("sent", trees.clone(server["weights"]), round_context.members))
        return Mail({"weights": server["weights"]}, {self.WORKER: {"hint": {"x": torch.tensor(3.0)}}})

    def training_step_distil(self, batch, batch_idx=0):
        self.calls.append(("step", batch.index, batch.views[0].clone(), self.context["hint"]["x"].item()))
        return super().training_step(batch, batch_idx)

    def reply(self, visit):
        self.calls.append(("visited", visit.round, visit.phase.name, visit.client.id, dict(visit.memory)))
        return super().reply(visit)[0], {"phase": {visit.phase.name: torch.ones(1)}}

    def update_distil(self, server, round_context, replies):
        self.calls.append(("updated", replies.clients))
        return super().update(server, round_context, replies)


def test_a_phase_on_the_server_trains_on_public_images_and_bills_nothing(tmp_path):
    run = prepared(tmp_path, Distil, "federation.rounds=1")
    public = run.data.public = np.array([70, 3, 9, 55, 21, 4, 33, 12, 60, 2, 41])
    server = run.loop.fit()
    log = {kind: [line[1:] for line in run.loop.method.calls if line[0] == kind] for kind in ("sent", "step")}
    ((before, members),) = log["sent"]
    assert [worker.architecture for worker in members] == ["student"]
    assert run_helpers.difference(before, server["weights"]) > 0
    assert len(log["step"]) == 2 * 2  # 11 images in batches of 6, twice
    images = plain(torch.from_numpy(run.data.source.train.images[public]), run.data.recipe)
    for index, view, hint in log["step"]:
        torch.testing.assert_close(view, images[index])
        assert hint == 3
    for epoch in (log["step"][:2], log["step"][2:]):
        assert sorted(torch.cat([index for index, *_ in epoch]).tolist()) == list(range(11))
    assert {phase for _, phase, _, _ in run.loop.ledger.lines} == {"fit"}
    assert run.loop.ledger.visits == {0: 2}
    assert ("updated", (-1,)) in run.loop.method.calls


class Look(Toy):
    phases = (Phase("look", work="observe", views=("plain",), epochs=2, gather={"count": Sum(), "last": Cat(last=7)},
                    uplink={"count": Each(), "last": Cat(), "total": Sum()}),)  # fmt: skip

    def observe(self, batch):
        assert not self.training
        assert not torch.is_grad_enabled()
        return {"count": {"n": torch.tensor([len(batch.index)])}, "last": {"index": batch.index}}

    def reply(self, visit):
        seen = visit.observed
        named = {"index": seen["last"]["index"], "id": torch.full((len(seen["last"]["index"]),), visit.client.id)}
        return {"count": seen["count"], "last": named, "total": seen["count"]}, visit.memory

    def update(self, server, round_context, replies):
        self.calls.append((round_context, replies))
        return server


def test_observations_are_gathered_and_combined_as_declared(tmp_path):
    run = train_run(tmp_path, Look, "federation.rounds=2")
    sizes = [len(indices) for indices in run.data.parts]
    for round_context, replies in run.loop.method.calls:
        ids = [client.id for client in round_context.members]
        assert len(ids) == 2
        assert replies.clients == tuple(ids) == tuple(sorted(ids))
        assert {k: tree["n"].item() for k, tree in replies["count"].items()} == {k: 2 * sizes[k] for k in ids}
        assert replies["total"]["n"].item() == sum(2 * sizes[k] for k in ids)
        assert replies["last"]["id"].tolist() == [k for k in ids for _ in range(7)]
        assert replies["last"]["index"].tolist() == [i for k in ids for i in range(sizes[k] - 7, sizes[k])]


class Post(Toy):
    phases = (Phase("first", work="none"), Phase("second", work="none"), Phase("third", work="none", cohort="all"))

    def send_first(self, server, round_context):
        private = {k.id: {"own": {"x": k.id}, "both": {"x": 100 + k.id}} for k in round_context.clients}
        return Mail(_tensors({"round": {"x": round_context.round}, "both": {"x": -1}}), _tensors(private))

    def send_second(self, server, round_context):
        return Mail(private=_tensors({k.id: {"later": {"x": 10 + k.id}} for k in round_context.members}))

    def send_third(self, server, round_context):
        return Mail(_tensors({"both": {"x": 7}}))

    def reply(self, visit):
        received = {entry: int(tree["x"]) for entry, tree in visit.message.items()}
        assert received == {entry: int(tree["x"]) for entry, tree in self.context.items()}
        self.calls.append((visit.round, visit.phase.name, visit.client.id, received))
        return {}, {}


def _tensors(tree):
    return {key: _tensors(value) if isinstance(value, dict) else torch.tensor(value) for key, value in tree.items()}


def test_mail_adds_up_over_the_phases_of_a_round_for_its_addressee_alone(tmp_path):
    run = train_run(tmp_path, Post)
    expected = []
    cohorts = [run.loop.streams.cohort(round, 4, 0.5) for round in range(3)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1  # a client of one cohort is missing in another
    for round, cohort in enumerate(cohorts):
        first = {k: {"round": round, "both": 100 + k, "own": k} for k in cohort}
        second = {k: {**first[k], "later": 10 + k} for k in cohort}
        third = {k: {**second.get(k, {}), "both": 7} for k in range(4)}
        for name, messages in (("first", first), ("second", second), ("third", third)):
            expected += [(round, name, k, message) for k, message in messages.items()]
    assert sorted(run.loop.method.calls, key=str) == sorted(expected, key=str)


class Impostor(Distil):
    WORKER = 0  # with a client's id it could read and overwrite that client's memory


class Mumble(Look):
    def observe(self, batch):
        return {"count": {"n": torch.ones(1)}}


class Blabbing(Toy):
    def reply_fit(self, visit):
        return {**super().reply(visit)[0], "secret": {"x": torch.ones(1)}}, visit.memory


@pytest.mark.parametrize(
    ("method", "public", "line"),
    [
        (Distil, None, "public images"),
        (Impostor, np.arange(11), "server worker"),
        (Mumble, None, r"observe gave \['count'\], the phase gathers \['count', 'last'\]"),
        (Blabbing, None, r"client \d replied with secret, which phase 'fit' does not declare"),
    ],
)
def test_what_was_not_declared_is_an_error(tmp_path, method, public, line):
    run = prepared(tmp_path, method, EVERYONE)
    run.data.public = public
    with pytest.raises((MethodError, PartitionError), match=line):
        run.loop.fit()
