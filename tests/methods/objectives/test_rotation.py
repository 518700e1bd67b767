import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from datamodules.federated import Batch
from methods.base import Outputs
from methods.objectives.rotation import Rotation
from tests import run_helpers
from tests.methods.objectives import encoder, views


@pytest.fixture
def objective() -> Rotation:
    torch.manual_seed(1)
    return Rotation(encoder(), projector=(5, 4))


def given() -> Batch:
    return Batch(views(1), torch.arange(5), torch.tensor([0, 1, 2, 3, 0]))


class TestRotation:
    def test_one_view_with_logits_of_four_turns(self, objective: Rotation) -> None:
        out = objective(*given().views)
        assert objective.views == ("rotate",)
        assert [p.shape for p in out.predictions] == [(5, 4)]
        torch.testing.assert_close(
            objective.loss(out, given()), cross_entropy(objective.head(out.embeddings[0]), given().turns)
        )

    def test_a_uniform_prediction(self, objective: Rotation) -> None:
        out = Outputs((), (torch.zeros(5, 4),), (torch.full((5, 4), 3.0),))
        assert objective.loss(out, given()).item() == pytest.approx(math.log(4))

    def test_it_travels_whole(self, objective: Rotation) -> None:
        travelling = {p for name in objective.travels for p in getattr(objective, name).parameters()}
        assert travelling == set(objective.parameters())

    def test_it_learns(self, tmp_path) -> None:
        run = run_helpers.train_run(tmp_path, "fedavg", "objective=rotation", "federation.rounds=6", "optimizer.lr=0.1")
        losses = [row["loss"] for row in run.loop.history]
        assert losses[-1] < losses[0]
        assert set(run.loop.server["weights"]) == {"encoder", "projector", "head"}
