"""With `heads.projector=[]` embeddings are the representations, under every objective that has a projector."""

import pytest

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from benchmark.configuration.instantiate import arguments, locate
from methods import trees
from tests import run_helpers

EMPTY = "heads.projector=[]"


def with_projector():
    for name in available("objective"):
        objective = locate(compose("digits", "fedavg", [f"objective={name}"]).objective, "objective")
        if "projector" in arguments(objective) and not objective.only_for:
            yield name


@pytest.mark.parametrize(
    ("method", "words"),
    [
        *(("fedavg", [f"objective={name}"]) for name in with_projector()),
        *((method, []) for method in ("fedmkd", "fedprox", "fedu2", "orchestra", "scaffold")),
    ],
)
def test_it_trains(method, words, tmp_path):
    run = run_helpers.train_run(tmp_path, method, *words, EMPTY, "federation.rounds=1", "training.steps=2")
    assert run.loop.method.objective.width == run.loop.method.objective.encoder.dim
    weights = run.loop.server["weights"]
    assert "encoder" in weights
    assert "projector" not in weights
    assert all(leaf.isfinite().all() for _, leaf in trees.leaves(weights) if leaf.is_floating_point())
