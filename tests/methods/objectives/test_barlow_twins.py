import pytest
import torch
from torch import Tensor

from methods.base import MethodError, Outputs
from methods.maths import barlow_twins
from methods.objectives.barlow_twins import BarlowTwins
from tests.methods.objectives import ObjectiveContract, batch, encoder, step


class TestBarlowTwins(ObjectiveContract):
    contrastive = True

    def build(self, **kwargs: float) -> BarlowTwins:
        torch.manual_seed(1)
        return BarlowTwins(encoder(), projector=(5, 4), **{"redundancy_weight": 0.3, **kwargs})

    def expected(self, out: Outputs) -> Tensor:
        return barlow_twins(*out.embeddings, 0.3)

    def test_collapse_is_the_number_of_features(self) -> None:
        constant = torch.tensor([0.2, -1.0, 3.0, 0.5]).expand(5, 4)
        assert self.build().loss(Outputs((), (constant, constant)), batch()).item() == pytest.approx(4, rel=1e-4)

    def test_the_default_weight_is_the_papers(self) -> None:
        objective = BarlowTwins(encoder(), projector=(5, 4))
        out = objective(*batch().views)
        torch.testing.assert_close(objective.loss(out, batch()), barlow_twins(*out.embeddings, 5e-3))

    def test_without_redundancy_it_is_the_diagonal(self) -> None:
        """Equal views whose features are copies of one: the diagonal is 1, and so is everything off it."""
        copies = torch.randn(50, 1, generator=torch.Generator().manual_seed(0)).expand(50, 4)
        for weight, expected in ((0.0, 0.0), (0.3, 0.3 * 4 * 3)):
            loss = self.build(redundancy_weight=weight).loss(Outputs((), (copies, copies)), batch(50))
            assert loss.item() == pytest.approx(expected, rel=1e-3, abs=1e-6)

    def test_steps_lower_the_loss(self) -> None:
        objective, given = self.build(), batch(16)
        losses = []
        for _ in range(20):
            losses.append(objective.loss(objective(*given.views), given).item())
            step(objective, given)
        assert losses[-1] < 0.8 * losses[0]

    def test_a_negative_weight_is_refused(self) -> None:
        with pytest.raises(MethodError, match="redundancy_weight=-1: give a number of at least 0"):
            self.build(redundancy_weight=-1)
