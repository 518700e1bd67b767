"""The interface of methods, objectives and add-ons, proved on toys that live outside the package as a user's do."""

import itertools
import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from benchmark import build
from benchmark.runs import Run
from datamodules import federated
from datamodules.partition import PartitionError
from datamodules.views import plain
from methods import trees
from methods.base import (
    PHASE_HOOKS,
    AddOn,
    Batch,
    Cat,
    Client,
    Each,
    FederatedMethod,
    Mail,
    Mean,
    Message,
    MethodError,
    Objective,
    Outputs,
    Phase,
    Replies,
    Sum,
    Tree,
    Turn,
    Visit,
)
from methods.maths import nt_xent
from methods.networks import Encoder, convnet, mlp
from methods.objectives.simclr import SimCLR
from tests import playing

HERE = "tests.methods.test_base"
FIT = Phase("fit", uplink={"weights": Mean("examples")})
EVERYONE = "federation.participation=1"


def prepared(
    folder: Path, method: type, *overrides: str, objective: Any = "simclr", addons: Sequence[type] = ()
) -> Run:
    """A run of the tiny scenario with a class of this file (or any other), as its own config would start it."""
    if not isinstance(objective, str):
        file = folder / f"{objective.__name__.lower()}.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(f"objective:\n  class: {HERE}.{objective.__name__}\n")
        objective = str(file)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{method.__name__.lower()}.yaml"
    listed = ", ".join(f"{{class: {HERE}.{addon.__name__}}}" for addon in addons)
    text = f"objective: {objective}\nmethod:\n  class: {method.__module__}.{method.__name__}\n  addons: [{listed}]\n"
    file.write_text(text)
    return playing.prepared(folder, str(file), *overrides)


def played(folder: Path, method: type, *overrides: str, **kwargs: Any) -> Run:
    run = prepared(folder, method, *overrides, **kwargs)
    run.federation.fit()
    return run


def tiny(**kwargs: Any) -> FederatedMethod:
    torch.manual_seed(0)
    return FederatedMethod(SimCLR(convnet(widths=(4, 6), strides=(2, 2)), projector=(5, 4)), **kwargs)


def visit_of(phase: Phase, message: Message | None = None) -> Visit:
    return Visit(0, 1, phase, Client(0, 5), message or {}, {}, torch.Generator())


class Toy(FederatedMethod):
    """Writes down what happens to it."""

    def __init__(self, objective: Objective, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.log: list[Any] = []


# --- hooks that carry a phase's name


def noted(name: str, hook: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.log.append(name)
        return {"n": {"x": torch.ones(1)}} if hook == "observe" else getattr(Toy, hook)(self, *args, **kwargs)

    return call


PLAYED = tuple(Phase(name, "observe", gather={"n": Sum()}) if name == "look" else FIT for name in ("look", "fit"))
BODY = {f"{hook}_{phase}": noted(f"{hook}_{phase}", hook) for hook in PHASE_HOOKS for phase in ("look", "fit")}
Suffixed = type("Suffixed", (Toy,), {"phases": PLAYED, "__module__": __name__, **BODY})


def test_every_hook_may_carry_its_phases_name(tmp_path: Path) -> None:
    one = ("partition.name=iid", "partition.clients=1", "training.batch_size=40", "federation.rounds=1")
    log = played(tmp_path, Suffixed, *one).federation.method.log
    look = [*["draw_look", "observe_look"] * 2, "reply_look", "update_look"]
    step = ["draw_fit", "training_step_fit", "loss_fit", "adjust_gradients_fit", "on_train_batch_end_fit"]
    assert log == [
        *["send_look", "init_client_look", "receive_look"],
        *look,
        *["send_fit", "init_client_fit", "receive_fit", "configure_optimizers_fit"],
        *step * 2,
        *["reply_fit", "update_fit"],
    ]
    assert set(log) | {f"{hook}_{other}" for hook in PHASE_HOOKS for other in ("look", "fit")} == set(BODY)


@pytest.mark.parametrize("hook", PHASE_HOOKS)
def test_a_hook_with_the_phases_name_is_preferred_to_the_plain_one(hook: str) -> None:
    two = {"phases": (Phase("one"), Phase("two"))}
    both = type("Both", (Toy,), {**two, hook: lambda self: "plain", f"{hook}_two": lambda self: "two"})
    method = both(SimCLR(convnet(widths=(4,), strides=(2,)), projector=(4,)))
    assert [method.hook(hook, phase)() for phase in both.phases] == ["plain", "two"]


class Listening(Toy):
    phases = (Phase("listen", work="none"), FIT)

    def update_listen(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        return server


def test_a_suffix_that_names_no_phase_is_refused() -> None:
    with pytest.raises(MethodError, match="update_lisen names no phase of the method; its phases are fit, listen"):
        type("Misspelt", (Listening,), {"update_lisen": Listening.update_listen})
    warm = {"warmup": (Phase("assign", work="none"),), "update_assign": Listening.update_listen}
    assert type("Warm", (Listening,), warm)


def test_a_plain_hook_that_an_inherited_one_hides_is_refused() -> None:
    hides = "update would never be called .* inherited update_listen is preferred; override update_listen"
    plain_hook = {"update": FederatedMethod.update}
    with pytest.raises(MethodError, match=hides):
        type("Hidden", (Listening,), plain_hook)
    assert type("Both", (Listening,), {**plain_hook, "update_listen": Listening.update_listen})


def test_a_plain_hook_of_a_mixin_is_not_hidden_in_silence_either() -> None:
    mixin = type("Mixin", (FederatedMethod,), {"update": lambda self, server, turn, replies: server})
    with pytest.raises(MethodError, match="update_listen"):
        type("Mixed", (mixin, Listening), {})


def test_values_that_cannot_be_are_refused() -> None:
    with pytest.raises(MethodError, match="'fit': work='rest'; choose one of train, observe, none"):
        Phase("fit", work="rest")
    with pytest.raises(MethodError, match=r"Mean\(by='size'\): choose examples, batches, clients or a function"):
        Mean("size")
    with pytest.raises(MethodError, match=r"Mean\(over='all'\)"):
        Mean(over="all")


# --- what phases exchange


class Distil(Toy):
    """After local training the server trains on, on public images."""

    SEAT = -1
    phases = (FIT, Phase("distil", where="server", data="public", views=("plain", "augment"), epochs=2, batch_size=6,
                         uplink={"weights": Mean("clients")}))  # fmt: skip

    def seats(self, server: Tree) -> tuple[Client, ...]:
        return (Client(self.SEAT, 20, "student"),)

    def send_distil(self, server: Tree, turn: Turn) -> Mail:
        self.log.append(("sent", trees.clone(server["weights"]), turn.members))
        return Mail({"weights": server["weights"]}, {self.SEAT: {"hint": {"x": torch.tensor(3.0)}}})

    def training_step_distil(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        self.log.append(("step", batch.index, batch.views[0].clone(), self.context["hint"]["x"].item()))
        return super().training_step(batch, batch_idx)

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        self.log.append(("visited", visit.round, visit.phase.name, visit.client.id, dict(visit.memory)))
        return super().reply(visit)[0], {"phase": {visit.phase.name: torch.ones(1)}}

    def update_distil(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        self.log.append(("updated", replies.clients))
        return super().update(server, turn, replies)


def test_a_phase_on_the_server_trains_on_public_images_and_bills_nothing(tmp_path: Path) -> None:
    run = prepared(tmp_path, Distil, "federation.rounds=1")
    public = run.data.public = np.array([70, 3, 9, 55, 21, 4, 33, 12, 60, 2, 41])
    server = run.federation.fit()
    log = {kind: [line[1:] for line in run.federation.method.log if line[0] == kind] for kind in ("sent", "step")}
    ((before, members),) = log["sent"]
    assert [seat.kind for seat in members] == ["student"]
    assert playing.difference(before, server["weights"]) > 0
    assert len(log["step"]) == 2 * 2  # 11 images in batches of 6, twice
    images = plain(torch.from_numpy(run.data.source.train.images[public]), run.data.recipe)
    for index, view, hint in log["step"]:
        torch.testing.assert_close(view, images[index])
        assert hint == 3
    for epoch in (log["step"][:2], log["step"][2:]):
        assert sorted(torch.cat([index for index, *_ in epoch]).tolist()) == list(range(11))
    assert {phase for _, phase, _, _ in run.federation.ledger.lines} == {"fit"}
    assert run.federation.ledger.visits == {0: 2}
    assert ("updated", (-1,)) in run.federation.method.log


def test_a_public_phase_without_public_images_says_so(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="public images"):
        played(tmp_path, Distil)


class Impostor(Distil):
    SEAT = 0


def test_a_seat_is_no_client(tmp_path: Path) -> None:
    """A seat that bears a client's id must not be given that client's memory, nor leave its own in its place."""
    run = prepared(tmp_path, Impostor, EVERYONE)
    run.data.public = np.arange(11)
    with pytest.raises(MethodError, match="seat"):
        run.federation.fit()


class Look(Toy):
    phases = (Phase("look", work="observe", views=("plain",), epochs=2, gather={"count": Sum(), "last": Cat(last=7)},
                    uplink={"count": Each(), "last": Cat(), "total": Sum()}),)  # fmt: skip

    def observe(self, batch: Batch) -> Message:
        assert not self.training
        assert not torch.is_grad_enabled()
        return {"count": {"n": torch.tensor([len(batch.index)])}, "last": {"index": batch.index}}

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        seen = visit.observed
        named = {"index": seen["last"]["index"], "id": torch.full((len(seen["last"]["index"]),), visit.client.id)}
        return {"count": seen["count"], "last": named, "total": seen["count"]}, visit.memory

    def update(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        self.log.append((turn, replies))
        return server


def test_observations_are_gathered_and_combined_as_declared(tmp_path: Path) -> None:
    run = played(tmp_path, Look, "federation.rounds=2")
    sizes = [len(part) for part in run.data.parts]
    for turn, replies in run.federation.method.log:
        ids = [client.id for client in turn.members]
        assert len(ids) == 2
        assert replies.clients == tuple(ids) == tuple(sorted(ids))
        assert {k: tree["n"].item() for k, tree in replies["count"].items()} == {k: 2 * sizes[k] for k in ids}
        assert replies["total"]["n"].item() == sum(2 * sizes[k] for k in ids)
        assert replies["last"]["id"].tolist() == [k for k in ids for _ in range(7)]
        assert replies["last"]["index"].tolist() == [i for k in ids for i in range(sizes[k] - 7, sizes[k])]


class Mumble(Look):
    def observe(self, batch: Batch) -> Message:
        return {"count": {"n": torch.ones(1)}}


def test_observations_that_are_not_gathered_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=r"observe gave \['count'\], the phase gathers \['count', 'last'\]"):
        played(tmp_path, Mumble)


class Post(Toy):
    phases = (Phase("first", work="none"), Phase("second", work="none"), Phase("third", work="none", cohort="all"))

    def send_first(self, server: Tree, turn: Turn) -> Mail:
        private = {k.id: {"own": {"x": k.id}, "both": {"x": 100 + k.id}} for k in turn.clients}
        return Mail(_tensors({"round": {"x": turn.round}, "both": {"x": -1}}), _tensors(private))

    def send_second(self, server: Tree, turn: Turn) -> Mail:
        return Mail(private=_tensors({k.id: {"later": {"x": 10 + k.id}} for k in turn.members}))

    def send_third(self, server: Tree, turn: Turn) -> Mail:
        return Mail(_tensors({"both": {"x": 7}}))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        received = {entry: int(tree["x"]) for entry, tree in visit.message.items()}
        assert received == {entry: int(tree["x"]) for entry, tree in self.context.items()}
        self.log.append((visit.round, visit.phase.name, visit.client.id, received))
        return {}, {}


def _tensors(tree: Any) -> Any:
    return {key: _tensors(value) if isinstance(value, dict) else torch.tensor(value) for key, value in tree.items()}


def test_mail_adds_up_over_the_phases_of_a_round_for_its_addressee_alone(tmp_path: Path) -> None:
    run = played(tmp_path, Post)
    expected = []
    cohorts = [run.federation.streams.cohort(round, 4, 0.5) for round in range(3)]
    assert len({tuple(cohort) for cohort in cohorts}) > 1  # someone sits out a round after having taken part in one
    for round, cohort in enumerate(cohorts):
        first = {k: {"round": round, "both": 100 + k, "own": k} for k in cohort}
        second = {k: {**first[k], "later": 10 + k} for k in cohort}
        third = {k: {**second.get(k, {}), "both": 7} for k in range(4)}
        for name, messages in (("first", first), ("second", second), ("third", third)):
            expected += [(round, name, k, message) for k, message in messages.items()]
    assert sorted(run.federation.method.log, key=str) == sorted(expected, key=str)


class Blabbing(Toy):
    def reply_fit(self, visit: Visit) -> tuple[Message, Tree]:
        return {**super().reply(visit)[0], "secret": {"x": torch.ones(1)}}, visit.memory


def test_an_undeclared_entry_is_an_error_that_names_client_and_phase(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=r"client \d replied with secret, which phase 'fit' does not declare"):
        played(tmp_path, Blabbing)


# --- what stays with a client


class Homebody(Toy):
    """Keeps its projector to itself, and counts its visits."""

    travels = ("encoder",)
    stays = ("projector",)

    def init_client(self, visit: Visit) -> Tree:
        return {"visits": {"n": torch.zeros(1)}}

    def receive(self, visit: Visit) -> None:
        super().receive(visit)
        self.log.append((visit.client.id, int(visit.memory["visits"]["n"]), "start", trees.clone(self.kept())))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        visits = visit.memory["visits"]["n"]
        self.log.append((visit.client.id, int(visits), "end", trees.clone(self.kept())))
        return super().reply(visit)[0], {"visits": {"n": visits + 1}}

    def kept(self) -> Tree:
        return {"projector": self.tensors("projector")}


@pytest.mark.parametrize("policy", ["average", "recalibrate"])
def test_what_stays_is_there_again_at_the_next_visit_and_nowhere_else(tmp_path: Path, policy: str) -> None:
    rounds = ("federation.rounds=5", "federation.participation=0.75", f"federation.batch_norm={policy}")
    run = prepared(tmp_path, Homebody, *rounds)
    pristine = trees.clone(run.federation.method.kept())
    run.federation.fit()
    log = {line[:3]: line[3] for line in run.federation.method.log}
    visits = {client: max(n for k, n, _ in log if k == client) + 1 for client in range(4)}
    assert sum(visits.values()) == 15
    for client, count in visits.items():
        assert playing.same(log[client, 0, "start"], pristine)
        for visit in range(1, count):
            assert playing.same(log[client, visit, "start"], log[client, visit - 1, "end"])
            assert playing.difference(log[client, visit, "end"], log[client, visit, "start"]) > 0
    for one, other in itertools.combinations(range(4), 2):
        assert playing.difference(log[one, 0, "end"], log[other, 0, "end"]) > 0
    assert set(run.federation.server["weights"]) == {"encoder"}
    assert set(run.federation.ledger.total("up")) == {"weights"} | (
        {"statistics"} if policy == "recalibrate" else set()
    )


class Follow(Objective):
    """A target, and a queue of its embeddings."""

    ema: ClassVar[dict[str, str]] = {"target": "projector"}
    queues = ("bank",)

    def __init__(self, encoder: Encoder, *, projector: Sequence[int] = (8,), momentum: float = 0.5) -> None:
        super().__init__(encoder)
        self.projector = mlp((encoder.dim, *projector))
        self.target = deepcopy(self.projector).requires_grad_(False)
        self.momentum = momentum
        self.add_queue("bank", 25, projector[-1])

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        out = super().forward(*views, extra=extra)
        with torch.no_grad():
            targets = tuple(self.target(h) for h in out.h)
        return out._replace(t=targets, push={"bank": targets[0]})

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        return nt_xent(*out.z)


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
    assert objective.target[1].running_mean.eq(0).all()  # parameters only


class Followed(Toy):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.log.append((self.tensors("target"), self.tensors("projector"), self.objective.bank_filled.item()))
        assert playing.same(*self.log[-1][:2])  # the visit starts with the target at its source, statistics and all
        return super().configure_optimizers()

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        assert playing.difference(self.tensors("target"), self.tensors("projector")) > 0
        assert self.objective.bank_filled == min(25, visit.client.examples)
        return super().reply(visit)


def test_targets_start_at_their_source_and_queues_empty_at_each_visit(tmp_path: Path) -> None:
    log = played(tmp_path, Followed, objective=Follow).federation.method.log
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
    run = played(tmp_path, Hoarder, EVERYONE, objective=Follow)
    log = {line[:3]: line[3] for line in run.federation.method.log}
    for client in range(4):
        assert log[client, 0, "start"][1] == 0
        for round in (1, 2):
            (rows, filled), (before, count) = log[client, round, "start"], log[client, round - 1, "end"]
            assert filled == count > 0
            assert torch.equal(rows, before)
    assert set(run.federation.ledger.total("up")) == {"weights"}


# --- the local step


class Pull(AddOn):
    """Wants a plain view, has a network of its own, and looks at everything."""

    name = "pull"
    views = ("plain",)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.log: list[Any] = []

    def networks(self) -> nn.Module:
        return self.head

    def receive(self, visit: Visit, method: FederatedMethod) -> None:
        self.log.append(("received", visit.round, visit.client.id, playing.difference(
            {"pull": method.tensors("pull")}, {"pull": visit.message["weights"]["pull"]})))  # fmt: skip

    def forward(self, out: Outputs, batch: Batch, method: FederatedMethod) -> Tensor:
        self.log.append(("step", len(batch.views), len(out.h), len(out.z), len(out.extra)))
        ((h, z),) = out.extra
        assert z.shape == out.z[0].shape
        return (self.head(h) - out.h[0].detach()).square().mean()


def test_an_add_ons_networks_travel_and_its_views_stay_apart(tmp_path: Path) -> None:
    run = prepared(tmp_path, Toy, addons=[Pull])
    method = run.federation.method
    start = trees.clone({"pull": method.tensors("pull")})
    server = run.federation.fit()
    assert method.travelling == ("encoder", "projector", "pull")
    assert method.views(FIT) == ("augment", "augment", "plain")
    assert method.views(Phase("look", work="observe")) == ("augment", "augment")
    assert playing.difference(start, {"pull": server["weights"]["pull"]}) > 0
    assert run.federation.ledger.total("up", 0)["weights"] == 2 * trees.nbytes(method.weights())
    log = method.addons["pull"].log
    received = [line for line in log if line[0] == "received"]
    cohorts = [(round, k) for round in range(3) for k in run.federation.streams.cohort(round, 4, 0.5)]
    assert sorted(line[1:3] for line in received) == cohorts
    assert all(difference == 0 for *_, difference in received)
    assert {line[1:] for line in log if line[0] == "step"} == {(3, 2, 2, 1)}


def test_an_add_on_receives_on_clients_that_train() -> None:
    class Listener(AddOn):
        heard: ClassVar[list[str]] = []

        def receive(self, visit: Visit, method: FederatedMethod) -> None:
            self.heard.append(visit.phase.name)
            assert method.context == {"hint": {}}  # the method has received before

    method = tiny(addons=[Listener()])
    for phase in (FIT, Phase("look", "observe"), Phase("rest", "none"), Phase("distil", where="server")):
        method.start_visit(visit_of(phase, {"hint": {}}))
    assert Listener.heard == ["fit"]


def test_a_step_adds_the_terms_to_the_loss() -> None:
    class Constant(AddOn):
        def __init__(self, name: str, value: float) -> None:
            super().__init__()
            self.name, self.value = name, value

        def forward(self, out: Outputs, batch: Batch, method: FederatedMethod) -> Tensor:
            return torch.tensor(self.value)

    images = torch.rand(2, 5, 3, 8, 8, generator=torch.Generator().manual_seed(1)).unbind()
    batch = federated.Batch(images, torch.arange(5))
    bare, both = tiny(), tiny(addons=[Constant("a", 10.0), Constant("b", 200.0)])
    difference = both.training_step(batch)["loss"] - bare.training_step(batch)["loss"]
    assert difference.item() == pytest.approx(210, rel=1e-5)
    assert both.travelling == bare.travelling


def test_add_ons_of_one_name_are_refused() -> None:
    with pytest.raises(MethodError, match="pull"):
        tiny(addons=[Pull(), Pull()])
    projector = Pull()
    projector.name = "projector"
    with pytest.raises(MethodError, match="projector"):
        tiny(addons=[projector])


class Random(Toy):
    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        return {"noise": torch.rand(len(batch.index), generator=stream)}

    def receive(self, visit: Visit) -> None:
        super().receive(visit)
        self.visit = visit

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        self.log.append((batch.index, batch.draws["noise"], batch.labels))
        return super().loss(out, batch)

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        self.drawn = {**getattr(self, "drawn", {}), (visit.round, visit.client.id): self.log}
        self.log = []
        return super().reply(visit)


def test_draws_depend_on_seed_round_and_client_alone(tmp_path: Path) -> None:
    half, again, other = (played(tmp_path / str(n), Random, f"seed={n // 2}") for n in range(3))
    full = played(tmp_path / "full", Random, EVERYONE)

    def noise(run: Run) -> dict[tuple[int, int], Tensor]:
        return {key: torch.cat([drawn for _, drawn, _ in log]) for key, log in run.federation.method.drawn.items()}

    assert len(noise(half)) == 6
    assert playing.same(noise(half), noise(again))
    assert all(torch.equal(noise(full)[key], drawn) for key, drawn in noise(half).items())
    firsts = [drawn[:8].tolist() for run in (full, other) for drawn in noise(run).values()]
    assert len({tuple(first) for first in firsts}) == len(firsts)


@pytest.mark.parametrize("objective", ["supervised", "simclr"])
def test_labels_are_handed_out_on_demand_only(objective: str, tmp_path: Path) -> None:
    run = played(tmp_path, Random, EVERYONE, "federation.rounds=1", objective=objective)
    for (_, client), log in run.federation.method.drawn.items():
        for index, _, labels in log:
            if objective == "simclr":
                assert labels is None
            else:
                assert labels.tolist() == run.data.source.train.labels[run.data.parts[client]][index].tolist()


def fitted_by_trainer(folder: Path, method: type, objective: Any = "simclr") -> Any:
    """The method after one epoch over the pooled images under Lightning's own Trainer."""
    run = prepared(folder, method, objective=objective)
    built = build.method(run.config, run.data.source)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(built, run.data)
    return built


def test_draws_reach_the_step_under_trainer_too(tmp_path: Path) -> None:
    log = fitted_by_trainer(tmp_path, Random).log
    assert len(log) == 10
    assert all(len(noise) == len(index) for index, noise, _ in log)


class Trailing(Toy):
    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        target, source = (
            nn.utils.parameters_to_vector(self.part(name).parameters()) for name in ("target", "projector")
        )
        super().on_train_batch_end(outputs, batch, batch_idx)
        after = nn.utils.parameters_to_vector(self.part("target").parameters())
        self.log.append((target.detach(), source.detach(), after.detach(), self.objective.bank_filled.item()))


def test_targets_and_queues_move_under_trainer_too(tmp_path: Path) -> None:
    log = fitted_by_trainer(tmp_path, Trailing, objective=Follow).log
    assert [filled for *_, filled in log] == [8, 16, 24, *[25] * 7]
    for target, source, after, _ in log:
        assert not torch.equal(target, source)
        torch.testing.assert_close(after, (target + source) / 2)


class Counted(Toy):
    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        self.log.append(visit)
        return super().reply(visit)


@pytest.mark.parametrize("per", ["round", "step"])
def test_a_visit_counts_batches_steps_and_rates(per: str, tmp_path: Path) -> None:
    run = played(tmp_path, Counted, "training.epochs=2", f"schedule.per={per}")
    assert len(run.federation.method.log) == 6
    for visit in run.federation.method.log:
        full, rest = divmod(visit.client.examples, 8)
        assert visit.batches == full + (rest > 1)
        assert visit.steps == 2 * visit.batches
        within = [step / visit.steps if per == "step" else 0 for step in range(visit.steps)]
        rates = [0.05 * (1 + math.cos(math.pi * (visit.round + part) / 3)) / 2 for part in within]
        assert visit.lr_sum == pytest.approx(sum(rates))


def test_gradients_are_adjusted_then_clipped() -> None:
    class Doubled(FederatedMethod):
        def adjust_gradients(self, gradients: Tree) -> Tree:
            return trees.map(lambda gradient: 2 * gradient + 1, gradients)

    method = Doubled(tiny().objective)
    optimizer = method.configure_optimizers()
    parameters = list(method.parameters())
    for parameter in parameters[1:]:
        parameter.grad = torch.full_like(parameter, 3.0)
    method.on_before_optimizer_step(optimizer)
    assert parameters[0].grad.eq(1).all()  # one that got no gradient has a gradient of 0
    assert all(parameter.grad.eq(7).all() for parameter in parameters[1:])
    method.clip_norm = 0.5
    method.on_before_optimizer_step(optimizer)
    assert torch.cat([p.grad.flatten() for p in parameters]).norm().item() == pytest.approx(0.5, rel=1e-4)


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
    assert playing.same(trees.clone(method.weights()), trees.overlay(before, new))
    new["projector"]["0.weight"].fill_(0)
    assert method.objective.projector[0].weight.eq(2).all()


def test_export_and_adopt_are_each_others_way_back() -> None:
    method = tiny()
    server = {"weights": trees.clone(method.weights()), "c": {"x": torch.ones(1)}}
    assert playing.same(method.adopt(server, method.export(server, {})), server)
    other = trees.map(torch.zeros_like, server["weights"])
    assert playing.same(method.adopt(server, {"global": other}), {**server, "weights": other})


def test_receive_adds_to_a_fresh_context() -> None:
    method = tiny()
    weights = trees.map(lambda leaf: leaf + 1, method.weights())
    method.context = {"stale": {}}
    method.start_visit(visit_of(FIT, {"weights": weights, "hint": {"x": torch.ones(1)}}))
    assert set(method.context) == {"hint"}
    assert playing.same(trees.clone(method.weights()), weights)
