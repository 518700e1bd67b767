"""Objectives whose loss is of the embeddings, predictions or logits of one batch alone."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from datamodules.federated import Batch
from methods.base import Outputs
from methods.maths import (
    alignment,
    barlow_twins,
    clip_rows,
    correlation,
    negative_cosine,
    nt_xent,
    spectral_contrastive,
    uniformity,
    vicreg,
)
from methods.objectives.align_uniform import AlignUniform
from methods.objectives.barlow_twins import BarlowTwins
from methods.objectives.rotation import Rotation
from methods.objectives.simclr import SimCLR
from methods.objectives.simsiam import SimSiam
from methods.objectives.spectral import Spectral
from methods.objectives.supervised import Supervised
from methods.objectives.vicreg import VICReg
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, encoder, normal, views

CONSTANT = torch.tensor([0.2, -1.0, 3.0, 0.5]).expand(5, 4)
WEIGHTS = {"invariance_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 0.5}
LABELS = torch.tensor([0, 3, 1, 1, 2])


class TestAlignUniform(ObjectiveContract):
    objective, settings, contrastive = AlignUniform, {"uniform_weight": 0.3}, True

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        return alignment(a, b) + 0.3 * (uniformity(a) + uniformity(b)) / 2

    def test_known_arrangements(self) -> None:
        point = torch.tensor([[0.6, 0.0, 0.8, 0.0]])
        collapsed, antipodal = point.expand(5, 4), torch.cat([point, -point])
        assert self.loss((collapsed, collapsed), uniform_weight=1) == pytest.approx(0, abs=1e-6)
        assert AlignUniform(encoder()).uniform_weight == 1
        assert self.loss((antipodal, 3 * antipodal), uniform_weight=1) == pytest.approx(-8)
        assert self.loss((antipodal, -antipodal), uniform_weight=1) == pytest.approx(4 - 8)
        assert self.loss((antipodal, -antipodal), uniform_weight=0) == pytest.approx(4)


class TestBarlowTwins(ObjectiveContract):
    objective, settings, contrastive = BarlowTwins, {"redundancy_weight": 0.3}, True
    refused = (("redundancy_weight", -1, "give a number of at least 0"),)
    falls = (20, 0.1, 0.8)

    def expected(self, out: Outputs) -> Tensor:
        return barlow_twins(*out.embeddings, 0.3)

    def test_known_arrangements(self) -> None:
        """Collapse costs the number of features; features that are copies of one have 1 on the diagonal and off it."""
        assert BarlowTwins(encoder()).redundancy_weight == 5e-3
        assert self.loss((CONSTANT, CONSTANT)) == pytest.approx(4, rel=1e-4)
        copies = normal(50, 1).expand(50, 4)
        for weight, expected in ((0.0, 0.0), (0.3, 0.3 * 4 * 3)):
            loss = self.loss((copies, copies), redundancy_weight=weight)
            assert loss == pytest.approx(expected, rel=1e-3, abs=1e-6)


class TestSimCLR(ObjectiveContract):
    objective, settings, contrastive = SimCLR, {"temperature": 0.2}, True

    def expected(self, out: Outputs) -> Tensor:
        return nt_xent(*out.embeddings, 0.2)

    def test_collapsed_embeddings_cost_the_log_of_the_others(self) -> None:
        assert self.loss((CONSTANT, CONSTANT)) == pytest.approx(math.log(9))

    def test_temperature_and_head(self) -> None:
        assert SimCLR(encoder()).temperature == 0.5
        plain_head = self.build(head_norm=False).projector
        assert [*plain_head.state_dict()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


class TestSimSiam(ObjectiveContract):
    objective, settings = SimSiam, {"predictor": 3}
    travels = ("encoder", "projector", "predictor")
    predicts = True

    def expected(self, out: Outputs) -> Tensor:
        (p1, p2), (z1, z2) = out.predictions, (z.detach() for z in out.embeddings)
        return (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2

    def test_targets_are_the_embeddings_and_predictions_those_of_the_predictor(self) -> None:
        objective = self.build().eval()
        out = objective(*batch().views)
        for z, p, t in zip(out.embeddings, out.predictions, out.targets, strict=True):
            assert torch.equal(t, z)
            torch.testing.assert_close(p, objective.predictor(z))

    def test_range(self) -> None:
        z = normal(5, 4)
        assert self.loss((z, z), (2 * z, z), (z, z)) == pytest.approx(-1)
        assert self.loss((z, z), (-z, -z), (z, z)) == pytest.approx(1)

    def test_the_projector_ends_in_a_plain_batch_norm(self) -> None:
        last = self.build().projector[-1]
        assert isinstance(last, torch.nn.BatchNorm1d)
        assert not last.affine


class TestSpectral(ObjectiveContract):
    objective, settings, contrastive = Spectral, {"mu": 0.4}, True
    refused = (("negatives", "all", "choose pairs or correlation"),)
    different = -2.0

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
        same, different = torch.eye(4)[:1].expand(4, 4), torch.eye(4)
        assert self.loss((same, same), mu=1.0) == pytest.approx(-1)
        assert self.loss((different, different), mu=1.0) == pytest.approx(self.different)


class TestCorrelationForm(TestSpectral):
    """The form of the loss over a batch that FedSC uses."""

    settings, different = {"mu": 0.4, "negatives": "correlation"}, -2 + 1 / 4

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        return -2 * (a * b).sum() / len(a) + correlation(torch.cat([a, b])).square().sum()


class TestSupervised(ObjectiveContract):
    travels = ("encoder", "classifier")

    def build(self, classes: int = 4) -> Supervised:
        return Supervised(encoder(), num_classes=classes)

    def batch(self) -> Batch:
        return batch(labels=LABELS)

    def expected(self, out: Outputs) -> Tensor:
        rows = [(z[i].double(), int(LABELS[i])) for z in out.embeddings for i in range(5)]
        return torch.stack([row.exp().sum().log() - row[label] for row, label in rows]).mean().float()

    def test_it_asks_for_labels_and_has_one_output_a_class(self) -> None:
        assert Supervised.labels
        for classes in (2, 10):
            objective = self.build(classes)
            assert objective.classifier.weight.shape == (classes, 6)
            assert objective(*batch().views).embeddings[1].shape == (5, classes)

    def test_known_logits(self) -> None:
        sure, none = 50 * one_hot(LABELS, 4).float(), torch.zeros(5, 4)
        for logits, expected in (((none, none), math.log(4)), ((sure, sure), 0), ((sure, none), math.log(4) / 2)):
            loss = self.build().loss(Outputs((), logits), self.batch())
            assert loss.item() == pytest.approx(expected, abs=1e-6)


class TestVICReg(ObjectiveContract):
    objective, contrastive = VICReg, True
    settings = WEIGHTS | {"gamma": 1.2, "epsilon": 0.01}
    refused = (
        *((weight, -1.0, "") for weight in WEIGHTS),
        *(("gamma", 0.0, ""), ("epsilon", 0.0, ""), ("variant", "mean", "")),
    )
    falls = (20, 0.02, 0.8)

    def expected(self, out: Outputs) -> Tensor:
        return vicreg(*out.embeddings, 2.0, 3.0, 0.5, 1.2, 0.01, "code")

    @pytest.mark.parametrize(("variant", "views"), [("code", 1), ("paper", 2)])
    def test_collapse_has_the_variance_term_alone(self, variant: str, views: int) -> None:
        assert self.loss((CONSTANT, CONSTANT), variant=variant) == pytest.approx(views * 3 * (1.2 - 0.1), rel=1e-5)

    def test_the_default_weights_are_the_papers(self) -> None:
        objective = VICReg(encoder(), projector=(5, 4))
        out = objective(*batch().views)
        torch.testing.assert_close(objective.loss(out, batch()), vicreg(*out.embeddings, 25, 25, 1, 1, 1e-4))

    def test_the_papers_form_has_another_scale_of_two_terms(self) -> None:
        embeddings = self.build()(*batch().views).embeddings
        for weights, factor in (((1, 0, 0), 4), ((0, 1, 0), 2), ((0, 0, 1), 1)):
            chosen = dict(zip(WEIGHTS, weights, strict=True))
            code, paper = (self.loss(embeddings, variant=form, **chosen) for form in ("code", "paper"))
            assert paper == pytest.approx(factor * code, rel=1e-5)
            assert code > 0


class TestRotation:
    """One view, and logits of four turns."""

    given = Batch(views(1), torch.arange(5), torch.tensor([0, 1, 2, 3, 0]))

    def test_the_loss_is_the_cross_entropy_of_the_heads_logits(self) -> None:
        objective = Rotation(encoder(), projector=(5, 4))
        assert objective.views == ("rotate",)
        assert {p for part in objective.travels for p in getattr(objective, part).parameters()} == {
            *objective.parameters()
        }
        out = objective(*self.given.views)
        assert [p.shape for p in out.predictions] == [(5, 4)]
        expected = cross_entropy(objective.head(out.embeddings[0]), self.given.turns)
        torch.testing.assert_close(objective.loss(out, self.given), expected)
        uniform = Outputs((), (torch.zeros(5, 4),), (torch.full((5, 4), 3.0),))
        assert objective.loss(uniform, self.given).item() == pytest.approx(math.log(4))

    def test_it_learns(self, tmp_path) -> None:
        run = run_helpers.train_run(tmp_path, "fedavg", "objective=rotation", "federation.rounds=6", "optimizer.lr=0.1")
        losses = [row["loss"] for row in run.loop.history]
        assert losses[-1] < losses[0]
        assert set(run.loop.server["weights"]) == {"encoder", "projector", "head"}
