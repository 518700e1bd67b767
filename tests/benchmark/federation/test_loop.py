"""The loop: whom a phase reaches, who is late, what a round's line says, and which hooks are called when."""

import time

import pytest

from benchmark.errors import ConfigError
from benchmark.federation.callbacks import Callback
from benchmark.federation.participation import Participation
from methods import trees
from tests.methods.contract import WEIGHTS
from tests.run_helpers import build_experiment, build_run, collect_visits, same

HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


def test_a_round_calls_each_hook_and_its_line_has_its_time_and_no_loss_of_clients(tmp_path):
    run, called = build_run(tmp_path, "fedavg", "federation.rounds=1"), []
    hooks = {name: lambda self, *_, name=name: called.append(name.removeprefix("on_")) for name in HOOKS}
    run.loop.callbacks = [type("Listening", (Callback,), hooks)()]
    begun = time.perf_counter()
    run.loop.fit()
    assert called == ["run_start", "phase_start", "visit_end", "visit_end", "round_trained", "round_end"]
    (line,) = run.loop.history
    assert set(line) == {"round", "loss", "images", "client_seconds", "bytes_up", "bytes_down", "seconds"}
    assert 0 < line["seconds"] < time.perf_counter() - begun


def test_a_method_without_phases_visits_nobody_and_has_nobody_to_wait_for(tmp_path):
    loop = build_run(tmp_path, "untrained", "federation.deadline=2").loop
    loop.fit()
    assert loop.ledger.visits == {0: 0, 1: 0, 2: 0}
    assert loop.drawn(0) == []
    assert [line["loss"] for line in loop.history] == [None] * 3


def test_who_was_drawn_is_told_by_ids_where_a_client_takes_no_part(tmp_path):
    loop = build_run(tmp_path, "fedavg").loop
    loop.clients = loop.clients[1:]  # as where client 0 holds the public images
    assert {client for round in range(9) for client in loop.drawn(round)} == {1, 2, 3}


@pytest.mark.parametrize("case", ["fedavg", *(f"{name} training.steps=1" for name in ("fedavg", "ssd", "fedsc"))])
def test_the_deadline_is_of_the_images_of_a_visit(case, tmp_path):
    """Those of the cohort's phases in the first round; where visits have equal steps, images make no client late.

    SSD begins with a phase of all clients without work, FedSC with one over all images, in later rounds of a cohort.
    """
    given = ("federation.deadline=0.8", "partition.alpha=0.3", "training.batch_size=4")
    loop = build_run(tmp_path, *case.split(), *given).loop
    images = [client.examples for client in loop.clients]
    by_epoch, by_step = (Participation(deadline=0.8).late(loop.streams, seen) for seen in (images, [4] * 4))
    assert by_epoch != by_step
    assert loop.late == (by_step if "steps" in case else by_epoch)


def test_what_is_lost_is_sent_once_and_counted_and_keeps_its_memory(tmp_path):
    words = ("federation.participation=1", "federation.dropout=0.5", "federation.rounds=4")
    run = build_run(tmp_path, "scaffold", *words)
    loop, visited = run.loop, collect_visits(run, lambda done: (done.visit.round, done.visit.client.id))
    loop.restore()
    lost = 0
    for round in range(4):
        memory = {client.id: trees.clone(loop.client_state.get(client.id, {})) for client in loop.clients}
        line = loop.run_round(round)
        cohort = {loop.clients[k].id for k in loop.replying(round, loop.cohort(round))}
        assert {client for when, client in visited if when == round} == cohort
        assert line.get("lost", 0) == 4 - len(cohort)
        assert line["bytes_down"]["weights"] == 4 * WEIGHTS
        assert line["bytes_up"]["delta_w"] == len(cohort) * WEIGHTS
        assert all(same(loop.client_state.get(k, {}), memory[k]) for k in memory.keys() - cohort)
        lost += line.get("lost", 0)
    assert 0 < lost < 16


LATE = ("objective.clusters=8", "method.local_clusters=3", "method.epsilon=10")
"""Orchestra with noise, whose first release is in round 2."""


@pytest.mark.parametrize(
    ("method", "words"),
    [("orchestra", (*LATE, "privacy.epsilon=5")), ("fedsc", ("method.sigma=0.5", "privacy.epsilon=0.0001"))],
)
def test_a_budget_too_small_for_any_release_is_refused_whenever_the_first_one_is(method, words, tmp_path):
    """A run that ended before its first release would look like a run without noise."""
    with pytest.raises(ConfigError, match="first noisy release exceeds the privacy budget"):
        build_run(tmp_path, method, *words)


def test_a_run_that_its_budget_has_ended_after_round_1_can_be_looked_at_again(tmp_path):
    build_run(tmp_path, "orchestra", *LATE, "federation.rounds=1").loop.fit()
    experiment = build_experiment(tmp_path, "orchestra", *LATE, "federation.rounds=1")
    experiment.config.privacy["epsilon"] = 5.0
    experiment.config.federation.rounds = 3
    assert experiment.build().loop.rounds == 3
