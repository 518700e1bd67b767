"""torch.compile by config: what it says, and that the run is the same up to rounding."""

import pytest

from benchmark import compilation
from benchmark.compose import compose
from benchmark.config import ConfigError
from tests.playing import difference, played, prepared


def compiled(run, rounds=3):
    federation = run.federation
    return compilation.compile_networks(federation.work, federation.clients, rounds, backend="eager")


def test_it_says_what_it_costs_and_whether_it_pays(tmp_path, monkeypatch):
    times = iter([0, 4, 4, 8, 8, 12, 20, 30, 40, 41, 41, 42, 42, 43])  # passes of 4 s, 10 s to compile, passes of 1 s
    monkeypatch.setattr(compilation.time, "perf_counter", lambda: next(times))
    run = prepared(tmp_path, "fedavg", "training.steps=5")
    assert str(compiled(run)) == (
        "compiled in 10.0 s; a pass takes 1000.0 ms instead of 4000.0 ms: pays back after 3 steps, of which this run "
        "has 60 at most"
    )


def test_it_says_so_where_it_never_pays(tmp_path, monkeypatch):
    times = iter([0, 1, 1, 2, 2, 3, 20, 30, 40, 42, 42, 44, 44, 46])
    monkeypatch.setattr(compilation.time, "perf_counter", lambda: next(times))
    assert str(compiled(prepared(tmp_path, "fedavg"))).endswith("it never pays here")


def test_nothing_is_compiled_where_nothing_is_trained(tmp_path):
    assert compiled(prepared(tmp_path, "untrained")) is None


@pytest.mark.parametrize("overrides", [(), ("objective=byol",), ("training.precision=bf16-mixed",)])
def test_the_run_is_the_same_afterwards(tmp_path, overrides):
    plain = played(tmp_path / "plain", "fedavg", *overrides)
    run = prepared(tmp_path / "compiled", "fedavg", *overrides)
    compiled(run)
    run.federation.fit()
    assert difference(run.federation.server, plain.federation.server) < 1e-5


def test_it_does_not_go_with_lanes():
    with pytest.raises(ConfigError, match="choose one of them"):
        compose("digits", "fedavg", ["compile=true", "executor=side-by-side"])
