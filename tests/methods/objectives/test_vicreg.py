import pytest
import torch
from torch import Tensor

from methods.base import MethodError, Outputs
from methods.maths import vicreg
from methods.objectives.vicreg import VICReg
from tests.methods.objectives import ObjectiveContract, batch, encoder, step

SETTINGS = {"invariance_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 0.5, "gamma": 1.2, "epsilon": 0.01}


class TestVICReg(ObjectiveContract):
    contrastive = True

    def build(self, **kwargs: object) -> VICReg:
        torch.manual_seed(1)
        return VICReg(encoder(), projector=(5, 4), **SETTINGS | kwargs)

    def expected(self, out: Outputs) -> Tensor:
        return vicreg(*out.embeddings, 2.0, 3.0, 0.5, 1.2, 0.01, "code")

    @pytest.mark.parametrize(("variant", "views"), [("code", 1), ("paper", 2)])
    def test_collapse_has_the_variance_term_alone(self, variant: str, views: int) -> None:
        constant = torch.tensor([0.2, -1.0, 3.0, 0.5]).expand(5, 4)
        loss = self.build(variant=variant).loss(Outputs((), (constant, constant)), batch())
        assert loss.item() == pytest.approx(views * 3 * (1.2 - 0.1), rel=1e-5)

    def test_the_default_weights_are_the_papers(self) -> None:
        objective = VICReg(encoder(), projector=(5, 4))
        out = objective(*batch().views)
        torch.testing.assert_close(objective.loss(out, batch()), vicreg(*out.embeddings, 25, 25, 1, 1, 1e-4))

    def test_the_papers_form_has_another_scale_of_two_terms(self) -> None:
        out = self.build()(*batch().views)
        for weights, factor in (((1, 0, 0), 4), ((0, 1, 0), 2), ((0, 0, 1), 1)):
            chosen = dict(zip(("invariance_weight", "variance_weight", "covariance_weight"), weights, strict=True))
            code, paper = (self.build(variant=form, **chosen).loss(out, batch()) for form in ("code", "paper"))
            assert code > 0
            torch.testing.assert_close(paper, factor * code)

    def test_steps_lower_the_loss(self) -> None:
        objective, given = self.build(), batch(16)
        losses = []
        for _ in range(20):
            losses.append(objective.loss(objective(*given.views), given).item())
            step(objective, given, rate=0.02)
        assert losses[-1] < 0.8 * losses[0]

    @pytest.mark.parametrize(
        "wrong",
        [{f"{term}_weight": -1.0} for term in ("invariance", "variance", "covariance")]
        + [{"gamma": 0.0}, {"epsilon": 0.0}, {"variant": "mean"}],
    )
    def test_settings_that_cannot_work_are_refused(self, wrong: dict[str, object]) -> None:
        (name,) = wrong
        with pytest.raises(MethodError, match=f"objective.{name}="):
            self.build(**wrong)
