import pytest
import torch
from torch import Tensor

from methods.base import Outputs
from methods.maths import alignment, uniformity
from methods.objectives.align_uniform import AlignUniform
from tests.methods.objectives import ObjectiveContract, batch, encoder


class TestAlignUniform(ObjectiveContract):
    contrastive = True

    def build(self) -> AlignUniform:
        return AlignUniform(encoder(), projector=(5, 4), uniform_weight=0.3)

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        return alignment(a, b) + 0.3 * (uniformity(a) + uniformity(b)) / 2

    def test_known_arrangements(self) -> None:
        loss, point = AlignUniform(encoder(), projector=(5, 4)).loss, torch.tensor([[0.6, 0.0, 0.8, 0.0]])
        collapsed, antipodal = point.expand(5, 4), torch.cat([point, -point])
        assert loss(Outputs((), (collapsed, collapsed)), batch()).item() == pytest.approx(0, abs=1e-6)
        assert loss(Outputs((), (antipodal, 3 * antipodal)), batch(2)).item() == pytest.approx(-8)
        assert loss(Outputs((), (antipodal, -antipodal)), batch(2)).item() == pytest.approx(4 - 8)

    def test_without_uniformity_it_is_alignment(self) -> None:
        objective = AlignUniform(encoder(), projector=(5, 4), uniform_weight=0)
        out = objective(*batch().views)
        torch.testing.assert_close(objective.loss(out, batch()), alignment(*out.embeddings))
