"""torch.compile by config: its messages, and a run that is the same up to rounding."""

import pytest

from benchmark.configuration.compose import compose
from benchmark.errors import ConfigError
from benchmark.execution import compile as compilation
from tests.run_helpers import build_run, difference, train_run


def compiled(run, visits=12):
    loop = run.loop
    return compilation.compile_networks(loop.executor, loop.clients, visits, backend="eager")


class Clock:
    """A clock: a pass takes 4 s before compiling, 10 s the first time after it, then `after` s."""

    def __init__(self, after):
        self.after, self.passes, self.now = after, 0, 0.0

    def perf_counter(self):
        return self.now

    def pass_(self, work, batch):
        self.passes += 1
        self.now += 4.0 if self.passes <= 3 else 10.0 if self.passes == 4 else self.after


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (1.0, "a pass takes 1000.0 ms instead of 4000.0 ms: pays back after 3 steps; this run has 60"),
        (4.0, "a pass takes 4000.0 ms instead of 4000.0 ms: it never pays here"),
    ],
)
def test_it_says_what_it_costs_and_is_used_where_it_pays(tmp_path, monkeypatch, after, said):
    run, clock = build_run(tmp_path, "fedavg", "training.steps=5"), Clock(after)
    monkeypatch.setattr(compilation, "time", clock)
    monkeypatch.setattr(compilation, "_pass", clock.pass_)
    assert compiled(run) == (after < 4, f"compiled in 10.0 s; {said}")
    assert (run.loop.method.objective._compiled_call_impl is not None) == (after < 4)


def test_nothing_is_compiled_where_nothing_is_trained_and_it_does_not_go_with_lanes(tmp_path):
    assert compiled(build_run(tmp_path, "untrained")) == (False, "nothing is trained")
    with pytest.raises(ConfigError, match="choose one of them"):
        compose("digits", "fedavg", ["compile=true", "executor=parallel"])


def test_the_pass_has_the_draws_of_an_objective(tmp_path, monkeypatch):
    run = build_run(tmp_path, "fedavg", "objective=masked_reconstruction", "encoder.patch_size=2")
    monkeypatch.setattr(run.loop.method.objective, "compile", lambda backend: None)  # 15 s
    assert compiled(run)[1].startswith("compiled in")


@pytest.mark.parametrize("overrides", [(), ("objective=byol",), ("training.precision=bf16-mixed",)])
def test_the_run_is_the_same_afterwards(tmp_path, overrides):
    plain = train_run(tmp_path / "plain", "fedavg", *overrides)
    run = build_run(tmp_path / "compiled", "fedavg", *overrides)
    compiled(run)
    run.loop.fit()
    assert difference(run.loop.server, plain.loop.server) < 1e-5
