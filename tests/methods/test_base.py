"""The interface of methods, objectives and add-ons, on toy classes outside the package, as a user's are."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

from benchmark.experiment import factory
from datamodules.federated import Batch
from methods import trees
from methods.base import AddOn, FederatedMethod, Mean, MethodError, Phase, Sum
from methods.core.hooks import PHASE_HOOKS
from methods.networks import convnet
from methods.objectives.simclr import SimCLR
from tests import run_helpers
from tests.methods.toys import EVERYONE, FIT, Follow, Toy, fit_pooled, prepared, tiny, train_run, visit_of

# --- hooks that carry a phase's name


def noted(name, hook):
    def call(self, *args, **kwargs):
        self.calls.append(name)
        return {"n": {"x": torch.ones(1)}} if hook == "observe" else getattr(Toy, hook)(self, *args, **kwargs)

    return call


PLAYED = (Phase("look", "observe", gather={"n": Sum()}), FIT)
BODY = {f"{hook}_{phase.name}": noted(f"{hook}_{phase.name}", hook) for hook in PHASE_HOOKS for phase in PLAYED}
Suffixed = type("Suffixed", (Toy,), {"phases": PLAYED, "__module__": __name__, **BODY})


def test_every_hook_may_carry_its_phases_name(tmp_path):
    overrides = ("partition.name=iid", "partition.clients=1", "training.batch_size=40", "federation.rounds=1")
    log = train_run(tmp_path, Suffixed, *overrides).loop.method.calls
    look = [*["draw_look", "observe_look"] * 2, "reply_look", "update_look"]
    step = ["draw_fit", "training_step_fit", "loss_fit", "adjust_gradients_fit", "on_train_batch_end_fit"]
    first = ["send_look", "init_client_look", "receive_look", *look]
    assert log == [
        *[*first, "send_fit", "init_client_fit", "receive_fit", "configure_optimizers_fit"],
        *[*step, *step, "reply_fit", "update_fit"],
    ]


@pytest.mark.parametrize("hook", PHASE_HOOKS)
def test_a_hook_with_the_phases_name_is_preferred_to_the_plain_one(hook):
    two = {"phases": (Phase("one"), Phase("two"))}
    both = type("Both", (Toy,), {**two, hook: lambda self: "plain", f"{hook}_two": lambda self: "two"})
    method = both(SimCLR(convnet(widths=(4,), strides=(2,)), projector=(4,)))
    assert [method.hook(hook, phase)() for phase in both.phases] == ["plain", "two"]


class Listening(Toy):
    phases = (Phase("listen", work="none"), FIT)

    def update_listen(self, server, round_context, replies):
        return server


def test_a_hook_that_would_never_be_called_is_refused():
    with pytest.raises(MethodError, match="update_lisen names no phase of the method; its phases are fit, listen"):
        type("Misspelt", (Listening,), {"update_lisen": Listening.update_listen})
    warm = {"warmup": (Phase("assign", work="none"),), "update_assign": Listening.update_listen}
    assert type("Warm", (Listening,), warm)
    plain_hook = {"update": FederatedMethod.update}
    mixin = type("Mixin", (FederatedMethod,), plain_hook)
    for bases, body in (((Listening,), plain_hook), ((mixin, Listening), {})):
        hides = "update would never be called .* inherited update_listen is preferred; override update_listen"
        with pytest.raises(MethodError, match=hides):
            type("Hidden", bases, body)
    assert type("Both", (Listening,), {**plain_hook, "update_listen": Listening.update_listen})


def test_values_that_cannot_be_are_refused():
    for make, given, line in (
        (Phase, {"name": "fit", "work": "rest"}, "'fit': work='rest': choose train or observe or none"),
        (Mean, {"by": "size"}, r"Mean\(by='size'\): choose examples, batches, clients or a function"),
        (Mean, {"over": "all"}, "Mean: over='all': choose weights or clients"),
    ):
        with pytest.raises(MethodError, match=line):
            make(**given)


# --- the local step


class Pull(AddOn):
    """Needs a plain view, has a network besides the objective's, and records everything it receives."""

    name = "pull"
    views = ("plain",)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.received, self.steps = [], set()

    def networks(self):
        return self.head

    def receive(self, visit, method):
        assert run_helpers.same(method.tensors("pull"), visit.message["weights"]["pull"])
        self.received.append((visit.round, visit.client.id))

    def forward(self, out, batch, method):
        self.steps.add((len(batch.views), len(out.representations), len(out.embeddings), len(out.extra)))
        ((h, z),) = out.extra
        assert z.shape == out.embeddings[0].shape
        return (self.head(h) - out.representations[0].detach()).square().mean()


def test_an_add_ons_networks_travel_and_its_views_stay_apart(tmp_path):
    run = prepared(tmp_path, Toy, addons=[Pull])
    method, pull = run.loop.method, run.loop.method.addons["pull"]
    start = trees.clone({"pull": method.tensors("pull")})
    server = run.loop.fit()
    assert method.travelling == ("encoder", "projector", "pull")
    assert method.views(FIT) == ("augment", "augment", "plain")
    assert method.views(Phase("look", work="observe")) == ("augment", "augment")
    assert run_helpers.difference(start, {"pull": server["weights"]["pull"]}) > 0
    assert run.loop.ledger.total("up", 0)["weights"] == 2 * trees.nbytes(method.weights())
    assert sorted(pull.received) == [(round, k) for round in range(3) for k in run.loop.streams.cohort(round, 4, 0.5)]
    assert pull.steps == {(3, 2, 2, 1)}


def test_an_add_on_receives_on_clients_that_train_after_the_method():
    class Listener(AddOn):
        def receive(self, visit, method):
            seen.append((visit.phase.name, dict(method.context)))

    seen, method = [], tiny(addons=[Listener()])
    for phase in (FIT, Phase("look", "observe"), Phase("rest", "none"), Phase("distil", where="server")):
        method.start_visit(visit_of(phase, {"hint": {}}))
    assert seen == [("fit", {"hint": {}})]


def test_a_step_adds_the_terms_to_the_loss():
    class Constant(AddOn):
        def __init__(self, name, value):
            super().__init__()
            self.name, self.value = name, value

        def forward(self, out, batch, method):
            return torch.tensor(self.value)

    images = torch.rand(2, 5, 3, 8, 8, generator=torch.Generator().manual_seed(1)).unbind()
    bare, both = tiny(), tiny(addons=[Constant("a", 10.0), Constant("b", 200.0)])
    losses = [method.training_step(Batch(images, torch.arange(5)))["loss"] for method in (bare, both)]
    assert (losses[1] - losses[0]).item() == pytest.approx(210, rel=1e-5)
    assert both.travelling == bare.travelling
    for names in (("pull", "pull"), ("projector",)):  # of an add-on, of a part
        with pytest.raises(MethodError, match=names[0]):
            tiny(addons=[Constant(name, 0.0) for name in names])


class Random(Toy):
    def draw(self, batch, stream):
        return {"noise": torch.rand(len(batch.index), generator=stream)}

    def loss(self, out, batch):
        self.calls.append((batch.index, batch.draws["noise"], batch.labels))
        return super().loss(out, batch)

    def reply(self, visit):
        self.drawn = {**getattr(self, "drawn", {}), (visit.round, visit.client.id): self.calls}
        self.calls = []
        return super().reply(visit)


def test_draws_depend_on_seed_round_and_client_alone(tmp_path):
    def noise(folder, *words):
        drawn = train_run(tmp_path / folder, Random, *words).loop.method.drawn
        return {key: torch.cat([noise for _, noise, _ in log]) for key, log in drawn.items()}

    half, again, other, full = noise("half"), noise("again"), noise("other", "seed=1"), noise("full", EVERYONE)
    assert len(half) == 6
    assert run_helpers.same(half, again)
    assert all(torch.equal(full[key], drawn) for key, drawn in half.items())
    firsts = [tuple(drawn[:8].tolist()) for drawn in (*full.values(), *other.values())]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("objective", ["supervised", "simclr"])
def test_labels_are_handed_out_on_demand_only(objective, tmp_path):
    run = train_run(tmp_path, Random, EVERYONE, "federation.rounds=1", objective=objective)
    for (_, client), log in run.loop.method.drawn.items():
        own = run.data.source.train.labels[run.data.parts[client]]
        for index, _, labels in log:
            assert labels is None if objective == "simclr" else labels.tolist() == own[index].tolist()


class Trailing(Random):
    """Notes target and source before and target after the end of a step, and the queue's length."""

    def flat(self, name):
        return nn.utils.parameters_to_vector(self.part(name).parameters()).detach().clone()

    def on_train_batch_end(self, outputs, batch, batch_idx=0):
        before = self.flat("target"), self.flat("projector")
        super().on_train_batch_end(outputs, batch, batch_idx)
        index, noise, _ = self.calls[-1]
        assert len(noise) == len(index)
        self.calls[-1] = (*before, self.flat("target"), self.objective.bank_filled.item())


def test_draws_reach_the_step_and_targets_and_queues_move_under_trainer_too(tmp_path):
    """One epoch over the pooled images under Lightning's own Trainer."""
    run = prepared(tmp_path, Trailing, objective=Follow)
    built = factory.method(run.config, run.data.source)
    fit_pooled(built, run.data, tmp_path)
    assert [filled for *_, filled in built.calls] == [8, 16, 24, *[25] * 7]
    for target, source, after, _ in built.calls:
        assert not torch.equal(target, source)
        torch.testing.assert_close(after, (target + source) / 2)


class Losses(Callback):
    """Keeps the loss of each step, times its images, and the images."""

    def __init__(self):
        self.epochs = []

    def on_train_epoch_start(self, trainer, method):
        self.epochs.append([])

    def on_train_batch_end(self, trainer, method, outputs, batch, batch_idx):
        self.epochs[-1].append((outputs["loss"].item() * len(batch.index), len(batch.index)))


def test_checkpoints_and_early_stopping_under_trainer_find_the_loss_and_its_parts(tmp_path, monkeypatch):
    run = prepared(tmp_path, Toy, addons=[Pull], objective=Follow)
    method, losses, stop = factory.method(run.config, run.data.source), Losses(), EarlyStopping("train/loss", 1e9)
    best = ModelCheckpoint(tmp_path / "best", "{epoch}", "train/loss")
    data = factory.data(run.config, run.data.source, method)
    trainer = fit_pooled(method, data, tmp_path, 9, [losses, stop, best])
    assert len(losses.epochs) == trainer.current_epoch == 1 + stop.patience
    means = [math.fsum(total for total, _ in steps) / sum(n for _, n in steps) for steps in losses.epochs]
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert set(logged) == {"train/loss", "train/objective", "train/pull"}
    assert logged["train/loss"] == pytest.approx(means[-1], rel=1e-5)
    assert logged["train/loss"] == pytest.approx(logged["train/objective"] + logged["train/pull"], rel=1e-5)
    assert logged["train/pull"] > 0
    assert best.best_model_score.item() == pytest.approx(min(means), rel=1e-5)
    assert best.best_model_path.endswith(f"epoch={means.index(min(means))}.ckpt")
    monkeypatch.setattr(FederatedMethod, "log_dict", lambda *_, **__: pytest.fail("nobody listens"))
    (batch, *_) = run.data.batches(0, method.views(FIT), 8, order=None, views=torch.Generator())
    for other in (method, run.loop.method):  # after training by Trainer, and without one
        other.training_step(batch._replace(draws={}))


class Counted(Toy):
    def reply(self, visit):
        self.calls.append(visit)
        return super().reply(visit)


@pytest.mark.parametrize("per", ["round", "step"])
def test_a_visit_counts_batches_steps_and_rates(per, tmp_path):
    visits = train_run(tmp_path, Counted, "training.epochs=2", f"schedule.per={per}").loop.method.calls
    assert len(visits) == 6
    for visit in visits:
        full, rest = divmod(visit.client.examples, 8)
        assert (visit.batches, visit.steps) == (full + (rest > 1), 2 * visit.batches)
        within = [step / visit.steps if per == "step" else 0 for step in range(visit.steps)]
        rates = [0.05 * (1 + math.cos(math.pi * (visit.round + fraction) / 3)) / 2 for fraction in within]
        assert visit.lr_sum == pytest.approx(sum(rates))


def test_gradients_are_adjusted_then_clipped():
    class Doubled(FederatedMethod):
        def adjust_gradients(self, gradients):
            return trees.map(lambda gradient: 2 * gradient + 1, gradients)

    method = Doubled(tiny().objective)
    optimizer, (first, *others) = method.configure_optimizers(), method.parameters()
    for parameter in others:
        parameter.grad = torch.full_like(parameter, 3.0)
    method.on_before_optimizer_step(optimizer)
    assert first.grad.eq(1).all()  # a missing gradient counts as 0
    assert all(parameter.grad.eq(7).all() for parameter in others)
    method.clip_norm = 0.5
    method.on_before_optimizer_step(optimizer)
    assert torch.cat([p.grad.flatten() for p in (first, *others)]).norm().item() == pytest.approx(0.5, rel=1e-4)
