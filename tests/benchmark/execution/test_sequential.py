import math
import re
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmark.errors import ConfigError
from benchmark.experiment import data
from benchmark.federation.callbacks import Callback
from benchmark.rng import isolated
from datamodules.parts import Parts
from methods import trees
from methods.base import Client, MethodError, Phase
from methods.fedavg import FedAvg
from methods.networks import Encoder
from tests.run_helpers import build_run, same, state, train_run

EVERYONE = "federation.participation=1"


class Watch(Callback):
    """Records the results of finished visits, and calls `after` on each."""

    def __init__(self, run, after=None):
        self.done, self.after = [], after
        run.loop.callbacks = [self]

    def on_visit_end(self, loop, result):
        self.done.append(result)
        if self.after:
            self.after(loop.method)


def each_step(run, monkeypatch, look, hook="training_step"):
    """Calls `look` with what a hook of the method is given, before that: by default at every training step."""
    inner = getattr(run.loop.method, hook)
    monkeypatch.setattr(run.loop.method, hook, lambda *given: (look(*given), inner(*given))[1])


def poison(method):
    for tensor in method.state_dict().values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 99)
    for parameter in method.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    method.context = {"weights": {}, "left": {"over": torch.ones(1)}}
    method.eval()


class TestPristine:
    @pytest.mark.parametrize(
        ("method", "overrides"),
        [
            ("fedavg", ("objective=byol",)),
            ("fedavg", ("federation.batch_norm=local",)),
            ("fedavg", ("federation.batch_norm=recalibrate", "objective=simsiam")),
            ("ssd", ()),
            ("local", ()),
        ],
    )
    def test_nothing_of_the_previous_client_is_left(self, tmp_path, method, overrides):
        """The run is the same if every number of the model is overwritten after each visit."""
        clean = train_run(tmp_path / "clean", method, *overrides)
        spoilt = build_run(tmp_path / "spoilt", method, *overrides)
        Watch(spoilt, after=poison)
        spoilt.loop.fit()
        assert same(state(spoilt), state(clean))
        assert all(leaf.isfinite().all() for _, leaf in trees.leaves(clean.loop.server))

    def test_byol_targets_start_at_the_received_weights(self, tmp_path, monkeypatch):
        run = build_run(tmp_path, "fedavg", "objective=byol", EVERYONE)
        method, received, started, moved = run.loop.method, [], [], []

        def look(batch, step):
            if step == 0:
                received.append(trees.clone(run.loop.server["weights"]))
                started.extend(same(method.tensors(to), received[-1][of]) for to, of in method.objective.ema.items())

        def at_the_end(method):
            """Records whether the targets have moved from the received weights, but less than the online networks."""
            for target, source in method.objective.ema.items():
                first = received[-1][source]
                name = next(iter(first))
                far, online = ((method.tensors(key)[name] - first[name]).abs().max() for key in (target, source))
                moved.append(0 < far < online)

        each_step(run, monkeypatch, look)
        Watch(run, after=at_the_end)
        run.loop.fit()
        assert started == moved == [True] * (3 * 4 * 2)  # rounds, clients, targets
        assert not same(received[0], received[-1])  # otherwise targets that keep their initial weights would pass

    @pytest.mark.parametrize("policy", ["average", "local"])
    def test_batch_norm_statistics_at_the_start_of_a_visit(self, tmp_path, monkeypatch, policy):
        """The server's statistics, or with policy `local` the client's last ones; initial ones at its first visit."""
        run = build_run(tmp_path, "fedavg", EVERYONE, f"federation.batch_norm={policy}")
        loop, statistics = run.loop, lambda: trees.clone(run.loop.method.statistics())
        fresh, left, met = statistics(), [], []
        each_step(run, monkeypatch, lambda batch, step: met.append(statistics()) if step == 0 else None)
        watch = Watch(run, after=lambda method: left.append(statistics()))
        loop.restore()
        loop.run_round(0)
        assert all(same(started, fresh) for started in met)
        before = {done.visit.client.id: found for done, found in zip(watch.done, left, strict=True)}
        sent = dict(trees.leaves(loop.server["weights"]))
        loop.run_round(1)
        for client, started in zip(before, met[4:], strict=True):
            if policy == "local":
                assert same(started, before[client])
                assert not set(dict(trees.leaves(started))) & set(sent)
            else:
                assert all(torch.equal(leaf, sent[path]) for path, leaf in trees.leaves(started))
        assert not same(before[0], before[1])


SIZES = (2, 8, 9, 10, 16, 17)
EPOCH = ([2], [8], [8], [8, 2], [8, 8], [8, 8])
"""Batches of clients of these sizes: a last batch of one image is left out."""


def resized(tmp_path, *overrides, method="fedavg"):
    """A run of one round whose clients have the sizes SIZES, and its visits."""
    run = build_run(tmp_path, method, "federation.rounds=1", EVERYONE, *overrides)
    run.data.parts = Parts([np.arange(size) for size in SIZES])
    run.loop.clients = data.Clients(run.data.parts)
    return run, Watch(run)


class TestLocalWork:
    @pytest.mark.parametrize(
        ("words", "epochs", "batches", "counted"),
        [
            ("training.epochs=2", [2] * 6, EPOCH, (1, 1, 2, 2, 2, 3)),
            ("training.epochs=1 training.drop_last=true", [1] * 6,
             ([2], [8], [8], [8], [8, 8], [8, 8]), (1, 1, 1, 1, 2, 2)),
            ("training.epochs=1 training.min_batch_size=1 heads.head_norm=false", [1] * 6,
             ([2], [8], [8, 1], [8, 2], [8, 8], [8, 8, 1]), (1, 1, 2, 2, 2, 3)),
            # the largest has 17 images, so 3 steps are wanted: at most as many epochs as do not exceed them
            ("training.epochs=1 training.max_epochs=4", (3, 3, 1, 1, 1, 1), EPOCH, (1, 1, 2, 2, 2, 3)),
            ("training.epochs=1 training.max_epochs=2", (2, 2, 1, 1, 1, 1), EPOCH, (1, 1, 2, 2, 2, 3)),
        ],
    )  # fmt: skip
    def test_epochs_and_batches_of_clients_of_all_sizes(self, tmp_path, monkeypatch, words, epochs, batches, counted):
        """A batch too small to train on counts in means by batches: released codes weigh by their loaders' lengths."""
        run, watch = resized(tmp_path, *words.split())
        seen, began = defaultdict(list), []
        each_step(run, monkeypatch, lambda batch, step: seen[len(watch.done)].append(len(batch.index)))
        monkeypatch.setattr(run.loop.method, "start_epoch", lambda *_: began.append(len(watch.done)))
        run.loop.fit()
        assert len(watch.done) == len(SIZES)
        for position, done in enumerate(watch.done):
            visit, client = done.visit, done.visit.client
            k = SIZES.index(client.examples)
            assert began.count(position) == epochs[k]
            assert seen[position] == batches[k] * epochs[k]
            assert (visit.batches, visit.steps) == (len(batches[k]), len(seen[position]))
            assert (done.images, visit.counted) == (sum(seen[position]), counted[k])
            assert run.loop.executor.images(visit.phase, client) == epochs[k] * client.examples

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ("objective=align_uniform heads.head_norm=false training.min_batch_size=1",
             "the loss of AlignUniform is not defined for one image"),
            ("training.min_batch_size=1", "min_batch_size=1: BatchNorm in the heads cannot train on one"),
            ("training.max_epochs=4 training.epochs=5", "max_epochs=4: give at least training.epochs="),
            ("training.max_epochs=4 training.drop_last=true", "max_epochs=4: give at least training.epochs="),
            ("schedule.name=cosine_twice schedule.per=step", "cosine_twice: its rate is that of a round"),
        ],
    )  # fmt: skip
    def test_what_no_visit_can_do_is_refused(self, tmp_path, words, line):
        with pytest.raises(ConfigError, match=re.escape(line)):
            build_run(tmp_path, "fedavg", *words.split())

    def test_two_phases_of_one_name_would_draw_alike_and_overwrite_memories(self, tmp_path, monkeypatch):
        monkeypatch.setattr(FedAvg, "phases", FedAvg.phases * 2)
        with pytest.raises(MethodError, match=r"share a name \(fit, fit\)"):
            train_run(tmp_path, "fedavg")

    def test_the_images_of_a_visit_follow_steps_epochs_and_phase(self, tmp_path):
        fit, client = Phase("fit"), Client(0, 20)
        work = build_run(tmp_path, "fedavg", "training.epochs=3").loop.executor
        phases = [fit, Phase("fit", epochs=2), Phase("look", work="observe"), Phase("say", work="none")]
        assert [work.images(phase, client) for phase in phases] == [60, 40, 20, 0]
        work = build_run(tmp_path / "steps", "fedavg", "training.steps=5").loop.executor
        assert [work.images(fit, Client(0, examples)) for examples in (20, 6)] == [5 * 8, 5 * 6]

    def test_the_image_left_out_is_another_one_each_epoch(self, tmp_path, monkeypatch):
        run, _ = resized(tmp_path, "training.epochs=10")
        run.loop.clients = [client for client in run.loop.clients if client.examples == 9]
        missing = []
        each_step(run, monkeypatch, lambda batch, step: missing.extend(set(range(9)) - set(batch.index.tolist())))
        run.loop.fit()
        assert len(missing) == 10
        assert len(set(missing)) > 3

    def test_an_observing_pass_sees_both_views_of_every_image_and_trains_on_none(self, tmp_path):
        run, watch = resized(tmp_path, "method.passes=1", method="fedsc")
        run.loop.fit()
        passes = [done for done in watch.done if done.visit.phase.work == "observe"]
        seen = {done.visit.client.examples: float(done.visit.observed["rows"]["n"]) / 2 for done in passes}
        assert seen == {size: size for size in SIZES}
        assert {done.images for done in passes} == {0}

    @pytest.mark.parametrize("steps", [1, 5])
    def test_steps_take_the_place_of_epochs_that_a_scenario_may_also_set(self, tmp_path, monkeypatch, steps):
        run, watch = resized(tmp_path, f"training.steps={steps}")
        run.loop.executor.training = replace(run.loop.executor.training, epochs=3)
        seen = defaultdict(list)
        each_step(run, monkeypatch, lambda batch, step: seen[len(watch.done)].extend(batch.index.tolist()))
        run.loop.fit()
        assert [done.visit.steps for done in watch.done] == [steps] * len(SIZES)
        for position, done in enumerate(watch.done):
            assert done.images == len(seen[position])
            if done.visit.client.examples == 16:
                assert sorted(seen[position][: 16 * (steps // 2)]) == sorted(list(range(16)) * (steps // 2))

    def test_the_loss_is_the_mean_over_steps_of_visits_and_the_lines(self, tmp_path, monkeypatch):
        run = build_run(tmp_path, "fedavg", EVERYONE)
        losses, watch = defaultdict(list), Watch(run)
        look = lambda outputs, *_: losses[len(watch.done)].append(outputs["loss"].item())  # noqa: E731
        each_step(run, monkeypatch, look, "on_train_batch_end")
        run.loop.fit()
        for position, done in enumerate(watch.done):
            assert len(losses[position]) == done.visit.steps
            assert done.loss == pytest.approx(np.mean(losses[position]), rel=1e-6)
        for round, row in enumerate(run.loop.history):
            assert row["loss"] == pytest.approx(np.mean([d.loss for d in watch.done if d.visit.round == round]))


class TestLearningRate:
    RATE, ROUNDS = 0.05, 3

    def factor(self, name, progress):
        if name == "step":
            return 0.2 ** sum(progress >= milestone for milestone in (0.3, 0.6))
        cosine, before = (1 + math.cos(math.pi * p) for p in (progress, progress - 1 / self.ROUNDS))
        if name == "cosine_twice" and progress:  # the decay of the round before is applied once more
            return 0.5 * cosine * cosine / before
        return 0.5 * cosine

    @pytest.mark.parametrize(
        ("name", "per"),
        [("cosine", "round"), ("cosine", "step"), ("cosine_twice", "round"), ("step", "round"), ("step", "step")],
    )
    def test_the_schedule_by_hand(self, tmp_path, monkeypatch, name, per):
        steps = ("schedule.milestones=[0.3,0.6]", "schedule.gamma=0.2") if name == "step" else ()
        given = (f"schedule.name={name}", f"schedule.per={per}", *steps)
        run = build_run(tmp_path, "fedavg", *given, "training.epochs=2")
        watch, used = Watch(run), defaultdict(list)
        look = lambda optimizer: used[len(watch.done)].append(optimizer.param_groups[0]["lr"])  # noqa: E731
        each_step(run, monkeypatch, look, "on_before_optimizer_step")
        run.loop.fit()
        for position, done in enumerate(watch.done):
            steps = done.visit.steps
            moved = [step / steps if per == "step" else 0 for step in range(steps)]
            rates = [self.RATE * self.factor(name, (done.visit.round + fraction) / self.ROUNDS) for fraction in moved]
            assert used[position] == pytest.approx(rates, rel=1e-12)
            assert done.visit.lr_sum == pytest.approx(sum(rates), rel=1e-12)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("32-true", torch.float32)])
def test_the_precision_of_activations_in_training_and_observing(tmp_path, precision, dtype):
    words = ("federation.rounds=1", "federation.batch_norm=recalibrate", f"training.precision={precision}")
    run = build_run(tmp_path, "fedavg", *words)
    seen, watch = set(), Watch(run)
    run.loop.method.objective.encoder.backbone[0].register_forward_hook(
        lambda layer, given, out: seen.add((layer.training, layer.weight.dtype, out.dtype))
    )
    run.loop.fit()
    assert seen == {(True, torch.float32, dtype), (False, torch.float32, dtype)}
    assert {leaf.dtype for _, leaf in trees.leaves(watch.done[0].message)} == {torch.float32}


def dropout_encoder(*, in_channels: int = 3) -> Encoder:
    """A user's own encoder, which draws from the global generator."""
    layers = (nn.Conv2d(in_channels, 8, 3, stride=2), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Encoder(nn.Sequential(*layers, nn.Dropout(0.5)), 8)


class TestDropout:
    def masks(self, folder, monkeypatch, seed, order=1):
        """(round, client) -> the dropped features of its first step, `[16, 8]`; and the run's state."""
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        own = "encoder.class=tests.benchmark.execution.test_sequential.dropout_encoder"
        run = build_run(folder, "fedavg", own, EVERYONE)
        method, work, dropped, visit = run.loop.method, run.loop.executor, {}, []
        run_visits = work.run
        each_step(run, monkeypatch, lambda now, *_: visit.append((now.round, now.client.id)), "start_visit")
        monkeypatch.setattr(work, "run", lambda given, block: run_visits(given, block[::order]))

        def look(module, given, out):
            dropped.setdefault(visit[-1], out == 0)

        method.objective.encoder.backbone[-1].register_forward_hook(look)
        run.loop.fit()
        assert torch.equal(torch.get_rng_state(), before)
        return dropped, state(run)

    def test_a_visit_draws_the_same_wherever_and_whenever_it_happens(self, tmp_path, monkeypatch):
        """Whatever the state of the global generator, which is left alone."""
        first, ended = self.masks(tmp_path / "a", monkeypatch, seed=1)
        second, _ = self.masks(tmp_path / "b", monkeypatch, seed=2, order=-1)
        assert len(first) == 12
        assert list(first) != list(second)
        assert same(first, second)
        assert len({tuple(mask.flatten().tolist()) for mask in first.values()}) == 12
        assert same(self.masks(tmp_path / "c", monkeypatch, seed=2)[1], ended)

    def test_a_visit_that_fails_gives_the_generator_back(self):
        before = torch.get_rng_state()
        with pytest.raises(RuntimeError, match="in the visit"), isolated(3, torch.device("cpu")):
            raise RuntimeError(f"in the visit, after {torch.rand(())}")
        assert torch.equal(torch.get_rng_state(), before)


class TestClipping:
    def norms(self, folder, monkeypatch, *overrides):
        """Norm of the gradients that the optimiser gets at every step."""
        run = build_run(folder, "fedavg", "federation.rounds=1", *overrides)
        method, norms = run.loop.method, []
        before = method.on_before_optimizer_step

        def look(optimizer):
            before(optimizer)
            gradients = [parameter.grad.flatten() for parameter in method.parameters() if parameter.grad is not None]
            norms.append(float(torch.cat(gradients).norm()))

        monkeypatch.setattr(method, "on_before_optimizer_step", look)
        run.loop.fit()
        return norms

    def test_long_gradients_are_cut_and_short_ones_left(self, tmp_path, monkeypatch):
        free = self.norms(tmp_path / "free", monkeypatch)
        bound = (sorted(free)[0] + free[0]) / 2
        assert free[0] > bound
        cut = self.norms(tmp_path / "cut", monkeypatch, f"training.clip_norm={bound}")
        assert cut[0] == pytest.approx(bound, rel=1e-4)
        assert max(cut) <= bound * (1 + 1e-5)
        assert self.norms(tmp_path / "wide", monkeypatch, f"training.clip_norm={2 * max(free)}") == free


class TestRecalibration:
    def test_pooled_statistics_of_the_first_layer_by_hand(self, tmp_path):
        """Mean over batches on each client, then over clients by examples; E[x^2] - E[x]^2 for the variance."""
        run = build_run(tmp_path, "fedavg", "federation.batch_norm=recalibrate", EVERYONE, "federation.rounds=1")
        loop, streams = run.loop, run.loop.streams
        loop.fit()
        weights, moments = loop.server["weights"]["encoder"], []
        for client in loop.clients:
            key = {"round": 0, "phase": "recalibrate", "client": client.id}
            order, views = (streams.generator(purpose, **key) for purpose in ("order", "views"))
            size = math.ceil(client.examples / math.ceil(client.examples / 8))  # near-equal, no short last batch
            batches = run.data.batches(client.id, ("augment",), size, order=order, views=views)
            out = [nn.functional.conv2d(b.views[0], weights["backbone.0.weight"], stride=2, padding=1) for b in batches]
            out = [batch.double().transpose(0, 1).flatten(1).numpy() for batch in out if len(batch) > 1]
            mean, var = np.mean([(batch.mean(1), batch.var(1, ddof=1)) for batch in out], axis=0)
            moments.append((mean, var + mean**2))
        mean, second = np.average(moments, axis=0, weights=[client.examples for client in loop.clients])
        np.testing.assert_allclose(weights["backbone.1.running_mean"].numpy(), mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(weights["backbone.1.running_var"].numpy(), second - mean**2, rtol=1e-4, atol=1e-6)

    def test_one_image_has_no_variance_and_is_not_measured(self, tmp_path):
        run = build_run(tmp_path, "fedavg", "federation.batch_norm=recalibrate")
        layer = run.loop.method.objective.encoder.backbone[1].train()
        for images, measured in ((1, 0), (2, 1)):
            batch = SimpleNamespace(views=(torch.rand(images, 3, 8, 8),))
            assert run.loop.method.observe_recalibrate(batch) == {}
            assert layer.num_batches_tracked == measured

    def test_it_changes_neither_a_clients_memory_nor_a_layers_own_momentum(self, tmp_path):
        run = build_run(tmp_path, "scaffold", "federation.batch_norm=recalibrate", EVERYONE)
        layer = run.loop.method.objective.encoder.backbone[1]
        layer.momentum = 0.01
        kept, watch = defaultdict(list), Watch(run)
        watch.after = lambda _: kept[watch.done[-1].visit.phase.name].append(trees.clone(watch.done[-1].client_state))
        run.loop.fit()
        assert layer.momentum == 0.01
        assert len(kept["fit"]) == 3 * 4
        assert all(map(same, kept["fit"], kept["recalibrate"]))
