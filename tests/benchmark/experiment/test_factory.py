"""Schedules with warm-up, and optimisers whose weight decay leaves norms and biases out."""

import math
import os

import pytest
import torch
from torch import nn

from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity, settings
from benchmark.errors import ConfigError
from benchmark.execution.auto import AutotunedExecutor
from benchmark.execution.parallel import ParallelExecutor
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment import factory
from methods.base import MethodError
from methods.optimizers import LARS
from tests.device import SimulatedGPU
from tests.run_helpers import TINY, build_run, collect_visits, same, train_run, trained

ROUNDS = 20


def schedule(name, *overrides):
    words = [f"federation.rounds={ROUNDS}", f"schedule.name={name}", *overrides]
    return factory.schedule(compose(TINY, "fedavg", words))


class TestWarmUp:
    def test_the_rate_rises_from_zero_by_steps_or_is_that_of_the_middle_of_each_round(self):
        for name in ("constant", "cosine", "step"):
            rate = schedule(name, "schedule.warmup=0.25", "schedule.per=step")
            shares = (0.0, 0.05, 0.125, 0.2, 0.25)
            assert [rate(progress) for progress in shares] == pytest.approx([progress / 0.25 for progress in shares])
            rate = schedule(name, "schedule.warmup=0.2")
            assert [rate(k / ROUNDS) for k in range(5)] == pytest.approx([1 / 8, 3 / 8, 5 / 8, 7 / 8, 1.0])

    def test_a_cosine_follows_over_the_rest_and_milestones_stay_where_they_are(self):
        rate = schedule("cosine", "schedule.warmup=0.2")
        for progress in (0.2, 0.5, 0.95):
            assert rate(progress) == pytest.approx((1 + math.cos(math.pi * (progress - 0.2) / 0.8)) / 2)
        rate = schedule("step", "schedule.warmup=0.2", "schedule.milestones=[0.1,0.5]")
        expected = {0.3: 0.1, 0.5: 0.01, 0.15: 0.1 * (0.15 + 0.025) / 0.2}
        assert {progress: rate(progress) for progress in expected} == pytest.approx(expected)

    @pytest.mark.parametrize("name", ["constant", "cosine", "cosine_twice", "step"])
    def test_none_is_the_default_and_no_other_run(self, name):
        common = [f"schedule.name={name}", f"federation.rounds={ROUNDS}"]
        plain, none = (compose(TINY, "fedavg", [*common, *more]) for more in ([], ["schedule.warmup=0"]))
        assert identity(plain) == identity(none)
        assert "schedule.warmup" not in settings(plain)

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ("schedule.warmup=1", r"schedule.warmup=1.0: give a share of the run in \[0, 1\)"),
            ("schedule.warmup=-0.1", "schedule.warmup=-0.1: give a share"),
            ("schedule.warmup=0.01", "ends within the first round, which has one rate: give at least 0.333"),
            ("schedule.warmup=0.5 schedule.name=cosine_twice", "cosine_twice: it has no warm-up"),
        ],
    )
    def test_an_impossible_one_is_refused(self, words, line):
        with pytest.raises(ConfigError, match=line):
            compose(TINY, "fedavg", words.split())

    def test_the_rate_of_a_run_rises(self, tmp_path):
        run = build_run(tmp_path, "fedavg", "schedule.warmup=0.9", "schedule.name=constant", "schedule.per=step")
        rates = collect_visits(run, lambda done: done.visit.lr_sum / done.visit.steps)
        run.loop.fit()
        assert rates[0] < rates[2] < rates[4]  # two clients a round

    def test_scaffold_trains_by_rounds_and_groups_and_refuses_a_visit_at_rate_zero(self, tmp_path):
        decay = ("optimizer.weight_decay=0.1", "optimizer.decay_norms_and_biases=false")
        assert train_run(tmp_path, "scaffold", "schedule.warmup=0.5", *decay).loop.round == 3
        overrides = ("schedule.warmup=0.5", "schedule.per=step", "training.steps=1", "optimizer.momentum=0")
        with pytest.raises(MethodError, match="which is 0 at the start of a warm-up"):
            train_run(tmp_path / "zero", "scaffold", *overrides)


KEY = factory.DECAY_ALL


class TestDecay:
    def test_the_key_makes_two_groups(self):
        section = {"class": "torch.optim.AdamW", "lr": 0.1, "decay_norms_and_biases": False}
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        made = factory.optimizer(section)(network.parameters())
        assert [group["weight_decay"] for group in made.param_groups] == [0.01, 0.0]
        assert [len(group["params"]) for group in made.param_groups] == [1, 3]

    def test_true_is_the_optimiser_as_it_was_bit_for_bit_and_false_is_another_run(self):
        words = ("fedavg", "optimizer.weight_decay=0.1")
        plain, true, false = (
            trained(*words, *more) for more in ((), (f"optimizer.{KEY}=true",), (f"optimizer.{KEY}=false",))
        )
        assert identity(plain.config) == identity(true.config) != identity(false.config)
        assert same(plain.loop.server, true.loop.server)
        assert not same(plain.loop.server, false.loop.server)

    @pytest.mark.parametrize(
        ("section", "line"),
        [
            ({"class": "torch.optim.SGD", "lr": 0.1, KEY: False}, "there is no weight decay that it could leave out"),
            ({"class": "torch.optim.Rprop", KEY: False}, "there is no weight decay that it could leave out"),
            ({"class": "torch.optim.SGD", "weight_decay": 0.1, KEY: "no"}, f"{KEY}='no': the suite takes true or fal"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, section, line):
        with pytest.raises(ConfigError, match=line):
            factory.optimizer(section)

    def test_lars_is_built_by_its_path(self):
        made = factory.optimizer({"class": "methods.optimizers.LARS", "lr": 2.0, "trust": 0.02})([torch.ones(2, 2)])
        assert (type(made), made.defaults["trust"]) == (LARS, 0.02)


@pytest.mark.parametrize(("precision", "allowed"), [("32-true", False), ("tf32", True), ("bf16-mixed", False)])
def test_a_gpu_shortens_products_only_where_that_is_asked_for(tmp_path, precision, allowed):
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    try:
        run = build_run(tmp_path, "fedavg", f"training.precision={precision}")
        assert [backend.allow_tf32 for backend in backends] == [allowed, allowed]
        assert run.config.training.precision == precision
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value


def test_on_a_cpu_tf32_is_float32():
    plain, short = (
        trained("fedavg", f"training.precision={name}", "federation.rounds=1") for name in ("32-true", "tf32")
    )
    assert same(plain.loop.server, short.loop.server)


def test_deterministic_visits_are_one_by_one_and_no_choice_is_made_by_time(tmp_path):
    kinds = {}
    for words in ((), ("deterministic=true",), ("deterministic=true", "executor=parallel")):
        with SimulatedGPU():
            run = build_run(tmp_path, "fedavg", "accelerator=cuda", "devices=1", *words)
            kinds[type(run.loop.executor)] = torch.are_deterministic_algorithms_enabled()
    assert kinds == {AutotunedExecutor: False, SequentialExecutor: True, ParallelExecutor: True}
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
