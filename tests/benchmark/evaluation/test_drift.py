"""Second visits of the last cohort, for drift: the replies of the clients, and that the run does not change."""

import copy

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.evaluation.drift import drift_unavailable, revisit_clients
from methods import trees
from tests import run_helpers

EVERYONE = "federation.participation=1"


def test_everyone_of_the_last_cohort_is_visited_from_the_final_model():
    """At learning rate 0 all local models equal the final model, except for BatchNorm statistics."""
    run = run_helpers.trained("fedavg", EVERYONE, "optimizer.lr=0", "optimizer.momentum=0")
    models, final = revisit_clients(run.loop), dict(trees.leaves(run.loop.server["weights"]))
    assert len(models.local) == 4
    for path, leaf in (pair for weights in (*models.local, models.global_model) for pair in trees.leaves(weights)):
        assert "running" in path[-1] or "num_batches" in path[-1] or torch.equal(leaf, final[path])


def test_clients_have_moved_and_their_model_is_their_mean():
    loop = run_helpers.trained("fedavg").loop
    models = revisit_clients(loop)
    assert len(models.local) == 2
    assert all(run_helpers.difference(weights, models.global_model) > 1e-6 for weights in models.local)
    cohort = [loop.clients[k].examples for k in loop.cohort(loop.round - 1)]
    for path, leaf in trees.leaves(models.global_model):
        if leaf.is_floating_point():
            both = [dict(trees.leaves(weights))[path] for weights in models.local]
            mean = sum(n * weight for n, weight in zip(cohort, both, strict=True)) / sum(cohort)
            torch.testing.assert_close(leaf, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedu", "fedema", "scaffold", "ssd"])  # methods with client state
def test_the_run_is_left_as_it_was_and_a_second_time_finds_the_same(method, tmp_path):
    run = run_helpers.train_run(tmp_path, method, EVERYONE)
    before, folder = copy.deepcopy(run_helpers.state(run)), run.loop.client_state.folder
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    first = revisit_clients(run.loop)
    assert run_helpers.same(run_helpers.state(run), before)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files != {}
    assert {file.name for file in folder.parent.iterdir()} == {"memory", "state.pt"}
    assert not run.loop.callbacks
    again = revisit_clients(run.loop)
    assert all(run_helpers.same(before, after) for before, after in zip(first.local, again.local, strict=True))


@pytest.mark.parametrize("method", ["scaffold", "fedu2"])
def test_a_change_that_is_sent_tells_the_weights_too(method):
    """With one client the combined model equals that client's network."""
    run = run_helpers.trained(method, "partition.clients=1", EVERYONE)
    models = revisit_clients(run.loop)
    (local,) = models.local
    assert run_helpers.difference(local, models.global_model) == pytest.approx(0, abs=1e-5)
    assert run_helpers.difference(local, run.loop.server["weights"]) > 1e-4


@pytest.mark.parametrize(
    ("words", "compared"),
    [
        ("fedavg federation.batch_norm=local", False),
        ("fedavg federation.batch_norm=recalibrate", False),
        ("fedavg federation.batch_norm=local encoder.norm=group heads.head_norm=false", True),  # has no statistics
        *((words, None) for words in ("local", "untrained", "flesd method.distil_epochs=1")),
    ],
)
def test_without_a_model_made_of_whole_networks_nobody_has_drifted(words, compared):
    run = run_helpers.trained(*words.split(), "federation.rounds=1")
    assert (drift_unavailable(run.loop) is None) == bool(compared)
    if compared is None:
        with pytest.raises(ConfigError, match="no global model of whole networks that clients sent"):
            revisit_clients(run.loop)
