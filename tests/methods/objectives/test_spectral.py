import pytest
import torch
from torch import Tensor

from methods.base import MethodError, Outputs
from methods.maths import clip_rows, correlation, spectral_contrastive
from methods.objectives.spectral import Spectral
from tests.methods.objectives import ObjectiveContract, batch, encoder


class TestSpectral(ObjectiveContract):
    contrastive = True

    def build(self) -> Spectral:
        return Spectral(encoder(), projector=(5, 4), mu=0.4)

    def expected(self, out: Outputs) -> Tensor:
        return spectral_contrastive(*out.embeddings) / 0.4

    def test_embeddings_are_the_projectors_clipped_rows(self) -> None:
        objective = self.build().eval()
        raw = objective.projector(torch.cat(objective(*batch().views).representations))
        bound = raw.norm(dim=1).median().item()  # some are clipped, some are not
        objective.mu = bound**2
        z = torch.cat(objective(*batch().views).embeddings)
        torch.testing.assert_close(z, clip_rows(raw, bound**2))
        assert not torch.allclose(z, raw)
        assert z.norm(dim=1).max().item() == pytest.approx(bound)

    def test_known_arrangements(self) -> None:
        loss = Spectral(encoder(), projector=(5, 4), mu=1.0).loss
        same, different = torch.eye(4)[:1].expand(4, 4), torch.eye(4)
        assert loss(Outputs((), (same, same)), batch(4)).item() == pytest.approx(-1)
        assert loss(Outputs((), (different, different)), batch(4)).item() == pytest.approx(-2)


class TestCorrelationForm(TestSpectral):
    """The form of the loss over a batch that FedSC uses."""

    def build(self) -> Spectral:
        return Spectral(encoder(), projector=(5, 4), mu=0.4, negatives="correlation")

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        return -2 * (a * b).sum() / len(a) + correlation(torch.cat([a, b])).square().sum()

    def test_known_arrangements(self) -> None:
        loss = Spectral(encoder(), projector=(5, 4), mu=1.0, negatives="correlation").loss
        same, different = torch.eye(4)[:1].expand(4, 4), torch.eye(4)
        assert loss(Outputs((), (same, same)), batch(4)).item() == pytest.approx(-1)
        assert loss(Outputs((), (different, different)), batch(4)).item() == pytest.approx(-2 + 1 / 4)

    def test_another_form_is_refused(self) -> None:
        with pytest.raises(MethodError, match="negatives='all': choose pairs or correlation"):
            Spectral(encoder(), negatives="all")
