"""Second visits of the last cohort, for drift: the replies of the clients, and that the run does not change."""

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.evaluation.drift import has_drift, revisit_clients
from methods import trees
from tests import run_helpers

EVERYONE = "federation.participation=1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_helpers.train_run(tmp_path_factory.mktemp("run"), "fedavg")


def test_everyone_of_the_last_cohort_is_visited_from_the_final_model(tmp_path):
    """At learning rate 0 all local models equal the final model, except for BatchNorm statistics."""
    run = run_helpers.train_run(tmp_path, "fedavg", EVERYONE, "optimizer.lr=0", "optimizer.momentum=0")
    models = revisit_clients(run.loop)
    assert len(models.local) == 4
    final = dict(trees.leaves(run.loop.server["weights"]))
    for weights in (*models.local, models.global_model):
        assert all(
            torch.equal(leaf, final[path])
            for path, leaf in trees.leaves(weights)
            if not any(name in path[-1] for name in ("running", "num_batches"))
        )


def test_clients_have_moved_and_their_model_is_their_mean(run):
    models = revisit_clients(run.loop)
    assert len(models.local) == 2
    assert all(run_helpers.difference(weights, models.global_model) > 1e-6 for weights in models.local)
    cohort = [run.loop.clients[k].examples for k in run.loop.cohort(run.loop.round - 1)]
    for path, leaf in trees.leaves(models.global_model):
        if leaf.is_floating_point():
            both = [dict(trees.leaves(weights))[path] for weights in models.local]
            mean = sum(n * weight for n, weight in zip(cohort, both, strict=True)) / sum(cohort)
            torch.testing.assert_close(leaf, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedu", "fedema", "scaffold", "ssd"])  # methods with client state
def test_the_run_is_left_as_it_was_and_a_second_time_finds_the_same(method, tmp_path):
    run = run_helpers.train_run(tmp_path, method, EVERYONE)
    before = run_helpers.state(run)
    before = {**before, "server": trees.clone(before["server"])}
    files = {file.name: file.read_bytes() for file in run.loop.client_state.folder.iterdir()}
    first = revisit_clients(run.loop)
    assert run_helpers.same(run_helpers.state(run), before)
    assert {file.name: file.read_bytes() for file in run.loop.client_state.folder.iterdir()} == files
    assert files
    assert {file.name for file in run.loop.client_state.folder.parent.iterdir()} == {"memory", "state.pt"}
    assert not run.loop.callbacks
    again = revisit_clients(run.loop)
    assert all(run_helpers.same(before, after) for before, after in zip(first.local, again.local, strict=True))


@pytest.mark.parametrize("method", ["scaffold", "fedu2"])
def test_a_change_that_is_sent_tells_the_weights_too(method, tmp_path):
    """With one client the combined model equals that client's network."""
    run = run_helpers.train_run(tmp_path, method, "partition.clients=1", EVERYONE)
    models = revisit_clients(run.loop)
    (local,) = models.local
    assert run_helpers.difference(local, models.global_model) == pytest.approx(0, abs=1e-5)
    assert run_helpers.difference(local, run.loop.server["weights"]) > 1e-4


@pytest.mark.parametrize(
    ("words", "compared"),
    [
        (("federation.batch_norm=local",), False),
        (("federation.batch_norm=recalibrate",), False),
        (("federation.batch_norm=local", "encoder.norm=group", "heads.head_norm=false"), True),  # has no statistics
    ],
)
def test_a_network_without_its_statistics_is_not_compared(words, compared, tmp_path):
    run = run_helpers.train_run(tmp_path, "fedavg", "federation.rounds=1", *words)
    assert has_drift(run.loop) == compared


@pytest.mark.parametrize("method", ["local", "untrained", "flesd method.distil_epochs=1"])
def test_without_a_model_made_of_weights_nobody_has_drifted(method, tmp_path):
    run = run_helpers.train_run(tmp_path, *method.split(), "federation.rounds=1")
    assert not has_drift(run.loop)
    with pytest.raises(ConfigError, match="no global model of whole networks that clients sent"):
        revisit_clients(run.loop)
