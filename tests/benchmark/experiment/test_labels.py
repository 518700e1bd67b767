"""Labels serve the partition and the scores: unsupervised training reads none, and no choice reads a test label."""

from dataclasses import replace

import numpy as np
import pytest

from benchmark.evaluation.monitor import Monitor
from tests import run_helpers
from tests.methods import test_measures

WORDS = ("federation.rounds=2", "federation.participation=1", "training.steps=1")


def shuffle(run, split):
    """Makes the labels of a split of a run noise; images and parts stay the same."""
    source = run.data.source
    noise = np.random.default_rng(0).permutation(getattr(source, split).labels)
    run.data.source = replace(source, **{split: replace(getattr(source, split), labels=noise)})


def run_twice(tmp_path, method, *words, splits=("train", "test")):
    """Two runs, of which the second has noise for labels once the images are divided."""
    true, noise = (run_helpers.build_run(tmp_path / name, method, *WORDS, *words) for name in ("true", "noise"))
    for split in splits:
        shuffle(noise, split)
    return true, noise


@pytest.mark.parametrize("method", test_measures.GRID)
def test_labels_that_are_noise_train_the_same_weights(method, tmp_path):
    true, noise = run_twice(tmp_path, method, *test_measures.OVERRIDES[method])
    for run in (true, noise):
        run.loop.fit()
    assert run_helpers.same(run_helpers.state(true), run_helpers.state(noise))


def test_where_labels_are_learned_from_they_matter(tmp_path):
    """Control for the test above: under a supervised objective the same noise changes the weights."""
    true, noise = run_twice(tmp_path, "fedavg", "objective=supervised")
    for run in (true, noise):
        run.loop.fit()
    assert run_helpers.difference(true.loop.server, noise.loop.server) > 0


def test_no_choice_reads_a_test_label(tmp_path):
    """A protocol selects the same hyperparameters when test labels are noise; only accuracies differ."""
    run = run_helpers.train_run(tmp_path, "fedavg", "data.options={examples: 300, classes: 3}", *WORDS)
    same = ("geometry/v1", "spectrum/v1", "label-free/v1", "linear-slice/v1")
    protocols = ["linear-lbfgs/v1", "linear-sweep/v1", "linear/v1", "clusters/v1", *same]

    def scores():
        encoder = run.evaluator.encoder(run.loop.server["weights"])
        return run.evaluator.scores(encoder, protocols)

    before = scores()
    shuffle(run, "test")
    after = scores()
    for protocol, metric in (("linear-lbfgs/v1", "strength"), ("linear-sweep/v1", "rate"), ("clusters/v1", "mixing")):
        assert before[protocol][metric] == after[protocol][metric]
    assert before["linear/v1"]["accuracy"] != after["linear/v1"]["accuracy"]
    assert all(before[protocol] == after[protocol] for protocol in same)


def test_the_monitor_reads_no_test_label(tmp_path):
    """The monitor chooses the best round, so this choice reads no test label either."""
    seen = []
    for run in run_twice(tmp_path, "fedavg", splits=("test",)):
        run.loop.callbacks = [Monitor(run.evaluator, 1)]
        run.loop.fit()
        seen.append([{**row, "seconds": 0, "client_seconds": 0} for row in run.loop.history])
    assert seen[0] == seen[1]
    assert all("monitor" in row for row in seen[0])
