"""Objectives whose loss is of the embeddings, predictions or logits of one batch alone."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from datamodules.federated import Batch
from methods import maths
from methods.base import Outputs
from methods.objectives.align_uniform import AlignUniform
from methods.objectives.barlow_twins import BarlowTwins
from methods.objectives.dino import DINO
from methods.objectives.lejepa import LeJEPA
from methods.objectives.rotation import Rotation
from methods.objectives.simclr import SimCLR
from methods.objectives.simsiam import SimSiam
from methods.objectives.spectral import Spectral
from methods.objectives.supervised import Supervised
from methods.objectives.vicreg import VICReg
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, encoder, views

WEIGHTS = {"invariance_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 0.5}
LABELS = torch.tensor([0, 3, 1, 1, 2])


def test_the_defaults_are_the_papers():
    for objective, defaults in (
        (AlignUniform, {"uniform_weight": 1}),
        (BarlowTwins, {"redundancy_weight": 5e-3}),
        (DINO, {"momentum": 0.996, "centre_momentum": 0.9, "temperature": 0.1, "target_temperature": 0.04}),
        (SimCLR, {"temperature": 0.5}),
        (VICReg, dict(zip(WEIGHTS, (25, 25, 1), strict=True)) | {"gamma": 1, "epsilon": 1e-4, "variant": "code"}),
    ):
        built = objective(encoder())
        assert {name: getattr(built, name) for name in defaults} == defaults


class TestAlignUniform(ObjectiveContract):
    objective, settings, contrastive = AlignUniform, {"uniform_weight": 0.3}, True

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        return maths.alignment(a, b) + 0.3 * (maths.uniformity(a) + maths.uniformity(b)) / 2


class TestBarlowTwins(ObjectiveContract):
    objective, settings, contrastive = BarlowTwins, {"redundancy_weight": 0.3}, True
    refused = (("redundancy_weight", -1, "give a number of at least 0"),)

    def expected(self, out: Outputs) -> Tensor:
        return maths.barlow_twins(*out.embeddings, 0.3)


class TestSimCLR(ObjectiveContract):
    objective, settings, contrastive = SimCLR, {"temperature": 0.2}, True

    def expected(self, out: Outputs) -> Tensor:
        return maths.nt_xent(*out.embeddings, 0.2)


class TestSimSiam(ObjectiveContract):
    objective, settings = SimSiam, {"predictor": 3}
    travels = ("encoder", "projector", "predictor")
    predicts = True

    def expected(self, out: Outputs) -> Tensor:
        (p1, p2), (z1, z2) = out.predictions, (z.detach() for z in out.embeddings)
        return (maths.negative_cosine(p1, z2) + maths.negative_cosine(p2, z1)) / 2

    def test_targets_are_the_embeddings_and_predictions_those_of_the_predictor(self):
        objective = self.build().eval()
        out = objective(*batch().views)
        for z, p, t in zip(out.embeddings, out.predictions, out.targets, strict=True):
            assert torch.equal(t, z)
            torch.testing.assert_close(p, objective.predictor(z))
        assert [*objective.projector[-1].named_parameters()] == []  # it ends in a plain BatchNorm


class TestSpectral(ObjectiveContract):
    objective, settings, contrastive = Spectral, {"mu": 0.4}, True
    refused = (("negatives", "all", "choose pairs or correlation"),)

    def expected(self, out: Outputs) -> Tensor:
        return maths.spectral_contrastive(*out.embeddings) / 0.4

    def test_embeddings_are_the_projectors_clipped_rows(self):
        objective = self.build().eval()
        raw = objective.projector(torch.cat(objective(*batch().views).representations))
        bound = raw.norm(dim=1).median().item()  # some are clipped, some are not
        objective.mu = bound**2
        z = torch.cat(objective(*batch().views).embeddings)
        torch.testing.assert_close(z, maths.clip_rows(raw, bound**2))
        assert not torch.allclose(z, raw)
        assert z.norm(dim=1).max().item() == pytest.approx(bound)


class TestCorrelationForm(TestSpectral):
    """The form of the loss over a batch that FedSC uses."""

    settings: ClassVar[dict[str, Any]] = {"mu": 0.4, "negatives": "correlation"}

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        return -2 * (a * b).sum() / len(a) + maths.correlation(torch.cat([a, b])).square().sum()


class TestSupervised(ObjectiveContract):
    travels = ("encoder", "classifier")

    def build(self, classes: int = 4) -> Supervised:
        return Supervised(encoder(), num_classes=classes)

    def batch(self) -> Batch:
        return batch(labels=LABELS)

    def expected(self, out: Outputs) -> Tensor:
        rows = [(z[i].double(), int(LABELS[i])) for z in out.embeddings for i in range(5)]
        return torch.stack([row.exp().sum().log() - row[label] for row, label in rows]).mean().float()

    def test_it_asks_for_labels_and_has_one_output_a_class(self):
        assert Supervised.labels
        assert self.build(10)(*batch().views).embeddings[1].shape == (5, 10)


class TestVICReg(ObjectiveContract):
    objective, contrastive = VICReg, True
    settings = WEIGHTS | {"gamma": 1.2, "epsilon": 0.01}
    refused = (
        *((weight, -1.0, "") for weight in WEIGHTS),
        *(("gamma", 0.0, ""), ("epsilon", 0.0, ""), ("variant", "mean", "")),
    )

    def expected(self, out: Outputs) -> Tensor:
        return maths.vicreg(*out.embeddings, 2.0, 3.0, 0.5, 1.2, 0.01, "code")

    def test_the_papers_form(self):
        out = self.build()(*batch().views)
        expected = maths.vicreg(*out.embeddings, 2.0, 3.0, 0.5, 1.2, 0.01, "paper")
        torch.testing.assert_close(self.build(variant="paper").loss(out, batch()), expected)


class TestLeJEPA(ObjectiveContract):
    objective, settings, contrastive = LeJEPA, {"weight": 0.3, "directions": 7}, True
    refused = (("weight", 1.5, "give a number of at least 0 and at most 1"), ("directions", 0, "of at least 1"))

    def batch(self) -> Batch:
        drawn = self.build().draw(batch(), torch.Generator().manual_seed(0))
        return batch()._replace(draws={"objective": drawn})

    def expected(self, out: Outputs) -> Tensor:
        a, b = out.embeddings
        directions = self.batch().draws["objective"]["directions"]  # type: ignore[index]
        gaussian = sum(maths.sketched_gaussianity(z, directions) for z in (a, b)) / 2
        return 0.3 * gaussian + 0.7 * ((a - b) / 2).square().mean()

    def test_directions_are_unit_vectors_of_the_stream(self):
        one, other = (self.build().draw(batch(), torch.Generator().manual_seed(k))["directions"] for k in (0, 1))
        assert one.shape == (4, 7)
        torch.testing.assert_close(one.norm(dim=0), torch.ones(7))
        assert not torch.equal(one, other)


def test_rotation_predicts_the_turns_of_one_view_and_learns(tmp_path):
    given, objective = (
        Batch(views(1), torch.arange(5), torch.tensor([0, 1, 2, 3, 0])),
        Rotation(encoder(), projector=(5, 4)),
    )
    assert objective.views == ("rotate",)
    travelling = {p for part in objective.travels for p in getattr(objective, part).parameters()}
    assert travelling == {*objective.parameters()}
    out = objective(*given.views)
    assert [p.shape for p in out.predictions] == [(5, 4)]
    torch.testing.assert_close(
        objective.loss(out, given), cross_entropy(objective.head(out.embeddings[0]), given.turns)
    )
    run = run_helpers.train_run(tmp_path, "fedavg", "objective=rotation", "federation.rounds=6", "optimizer.lr=0.1")
    assert run.loop.history[-1]["loss"] < run.loop.history[0]["loss"]
    assert set(run.loop.server["weights"]) == {"encoder", "projector", "head"}
