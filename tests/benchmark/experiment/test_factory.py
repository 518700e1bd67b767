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
from tests.run_helpers import TINY, build_run, same, train_run

ROUNDS = 20


def schedule(name: str, *overrides: str):
    return factory.schedule(
        compose(TINY, "fedavg", [f"federation.rounds={ROUNDS}", f"schedule.name={name}", *overrides])
    )


class TestWarmUp:
    @pytest.mark.parametrize("name", ["constant", "cosine", "step"])
    def test_by_steps_the_rate_rises_from_zero_in_proportion_to_progress(self, name):
        rate = schedule(name, "schedule.warmup=0.25", "schedule.per=step")
        for progress in (0.0, 0.05, 0.125, 0.2):
            assert rate(progress) == pytest.approx(progress / 0.25)
        assert rate(0.25) == 1.0

    @pytest.mark.parametrize("name", ["constant", "cosine", "step"])
    def test_by_rounds_it_is_that_of_the_middle_of_the_round(self, name):
        rate = schedule(name, "schedule.warmup=0.2")
        assert [rate(round / ROUNDS) for round in range(5)] == pytest.approx([1 / 8, 3 / 8, 5 / 8, 7 / 8, 1.0])

    def test_a_cosine_follows_over_the_rest(self):
        rate = schedule("cosine", "schedule.warmup=0.2")
        for progress in (0.2, 0.5, 0.95):
            assert rate(progress) == pytest.approx((1 + math.cos(math.pi * (progress - 0.2) / 0.8)) / 2)

    def test_milestones_stay_where_they_are(self):
        rate = schedule("step", "schedule.warmup=0.2", "schedule.milestones=[0.1,0.5]")
        assert rate(0.3) == pytest.approx(0.1)
        assert rate(0.5) == pytest.approx(0.01)
        assert rate(0.15) == pytest.approx(0.1 * (0.15 + 0.025) / 0.2)

    @pytest.mark.parametrize("name", ["constant", "cosine", "cosine_twice", "step"])
    def test_none_is_the_default_and_no_other_run(self, name):
        common = [f"schedule.name={name}", f"federation.rounds={ROUNDS}"]
        plain, none = (compose(TINY, "fedavg", [*common, *more]) for more in ([], ["schedule.warmup=0"]))
        assert identity(plain) == identity(none)
        assert "schedule.warmup" not in settings(plain)
        rates = [factory.schedule(config) for config in (plain, none)]
        assert all(rates[0](k / ROUNDS) == rates[1](k / ROUNDS) for k in range(ROUNDS))

    @pytest.mark.parametrize(
        ("overrides", "line"),
        [
            (["schedule.warmup=1"], r"schedule.warmup=1.0: give a share of the run in \[0, 1\)"),
            (["schedule.warmup=-0.1"], "schedule.warmup=-0.1: give a share"),
            (["schedule.warmup=0.01"], "ends within the first round, which has one rate: give at least 0.333"),
            (["schedule.warmup=0.5", "schedule.name=cosine_twice"], "cosine_twice: it has no warm-up"),
        ],
    )
    def test_an_impossible_one_is_refused(self, overrides, line):
        with pytest.raises(ConfigError, match=line):
            compose(TINY, "fedavg", overrides)

    def test_the_rate_of_a_run_rises(self, tmp_path):
        run = build_run(tmp_path, "fedavg", "schedule.warmup=0.9", "schedule.name=constant", "schedule.per=step")
        rates = []
        visit_end = type(run.loop.executor)._train

        def spy(self, visit):
            made = visit_end(self, visit)
            rates.append(visit.lr_sum / visit.steps)
            return made

        run.loop.executor._train = spy.__get__(run.loop.executor)
        run.loop.fit()
        per_round = [rates[k] for k in (0, 2, 4)]  # two clients a round
        assert per_round == sorted(per_round)
        assert per_round[0] < per_round[-1]

    def test_scaffold_refuses_a_visit_at_rate_zero_in_one_line(self, tmp_path):
        overrides = ("schedule.warmup=0.5", "schedule.per=step", "training.steps=1", "optimizer.momentum=0")
        run = build_run(tmp_path, "scaffold", *overrides)
        with pytest.raises(MethodError, match="which is 0 at the start of a warm-up"):
            run.loop.fit()

    def test_scaffold_trains_under_a_warm_up_by_rounds_and_groups(self, tmp_path):
        decay = ("optimizer.weight_decay=0.1", "optimizer.decay_norms_and_biases=false")
        run = train_run(tmp_path, "scaffold", "schedule.warmup=0.5", *decay)
        assert run.loop.round == 3


KEY = factory.DECAY_ALL


class TestDecay:
    def test_the_key_makes_two_groups(self):
        section = {"class": "torch.optim.AdamW", "lr": 0.1, "decay_norms_and_biases": False}
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        made = factory.optimizer(section)(network.parameters())
        assert [group["weight_decay"] for group in made.param_groups] == [0.01, 0.0]
        assert [len(group["params"]) for group in made.param_groups] == [1, 3]

    def test_true_is_the_optimiser_as_it_was_bit_for_bit_and_false_is_another_run(self, tmp_path):
        plain, true, false = (
            train_run(tmp_path / name, "fedavg", "optimizer.weight_decay=0.1", *more)
            for name, more in {"a": [], "b": [f"optimizer.{KEY}=true"], "c": [f"optimizer.{KEY}=false"]}.items()
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
        assert isinstance(made, LARS)
        assert made.defaults["trust"] == 0.02


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


def test_on_a_cpu_tf32_is_float32(tmp_path):
    plain, short = (
        train_run(tmp_path / name, "fedavg", f"training.precision={name}", "federation.rounds=1")
        for name in ("32-true", "tf32")
    )
    assert same(plain.loop.server, short.loop.server)


def test_deterministic_visits_are_one_by_one_and_no_choice_is_made_by_time(tmp_path):
    kinds = {}
    for words in ((), ("deterministic=true",), ("deterministic=true", "executor=side-by-side")):
        with SimulatedGPU():
            run = build_run(tmp_path, "fedavg", "accelerator=cuda", "devices=1", *words)
            kinds[type(run.loop.executor)] = torch.are_deterministic_algorithms_enabled()
    assert kinds == {AutotunedExecutor: False, SequentialExecutor: True, ParallelExecutor: True}
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
