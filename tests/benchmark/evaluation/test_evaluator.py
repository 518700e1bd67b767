"""Features of a run's encoder: extracted once, and only those that a protocol uses."""

import pytest

from tests.run_helpers import build_run


@pytest.fixture
def evaluator(tmp_path):
    return build_run(tmp_path, "fedavg").evaluator


def images_encoded(evaluator, protocols, **callbacks):
    """How many images pass the encoder where these protocols are scored."""
    encoder = evaluator.encoder(evaluator.method.weights(), recalibrated=False)
    batches = []
    encoder.register_forward_hook(lambda module, args, output: batches.append(len(output)))
    evaluator.scores(encoder, protocols, **callbacks)
    return sum(batches)


@pytest.mark.parametrize(("protocols", "views"), [(["knn/v1"], 0), (["geometry/v1"], 2), (["label-free/v1"], 2)])
def test_two_views_are_encoded_only_where_a_protocol_uses_them(evaluator, protocols, views):
    train, test = evaluator.data.source.train.labels, evaluator.data.source.test.labels
    assert images_encoded(evaluator, protocols) == len(train) + len(test) + views * len(train)


def test_the_fraction_of_features_done_rises_to_one(evaluator):
    steps, done = [], []
    images_encoded(evaluator, ["geometry/v1"], on_start=steps.append, on_progress=done.append)
    assert steps == ["features", "geometry/v1"]
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] == 1
