import pytest
import torch
from torch import Tensor

from methods.base import Outputs
from methods.maths import negative_cosine
from methods.objectives.simsiam import SimSiam
from tests.methods.objectives import ObjectiveContract, batch, encoder


class TestSimSiam(ObjectiveContract):
    travels = ("encoder", "projector", "predictor")
    predicts = True

    def build(self) -> SimSiam:
        return SimSiam(encoder(), projector=(5, 4), predictor=3)

    def expected(self, out: Outputs) -> Tensor:
        (p1, p2), (z1, z2) = out.predictions, (z.detach() for z in out.embeddings)
        return (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2

    def test_targets_are_the_embeddings_and_predictions_those_of_the_predictor(self) -> None:
        objective = self.build().eval()
        out = objective(*batch().views)
        for z, p, t in zip(out.embeddings, out.predictions, out.targets, strict=True):
            assert torch.equal(t, z)
            torch.testing.assert_close(p, objective.predictor(z))

    def test_the_stopped_gradient_matters(self) -> None:
        gradients = []
        for stop in (True, False):
            objective = self.build()
            out = objective(*batch().views)
            objective.loss(out if stop else out._replace(targets=out.embeddings), batch()).backward()
            gradients.append(objective.projector[0].weight.grad)
        assert not torch.allclose(*gradients)

    def test_range(self) -> None:
        z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        loss = self.build().loss
        assert loss(Outputs((), (z, z), (2 * z, z), (z, z)), batch()).item() == pytest.approx(-1)
        assert loss(Outputs((), (z, z), (-z, -z), (z, z)), batch()).item() == pytest.approx(1)

    def test_the_projector_ends_in_a_plain_batch_norm(self) -> None:
        last = self.build().projector[-1]
        assert isinstance(last, torch.nn.BatchNorm1d)
        assert not last.affine
