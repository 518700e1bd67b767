from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.base import MethodError
from methods.fedx import CrossDistillation
from methods.maths import global_contrastive, relational
from tests import run_helpers
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, WEIGHTS, InterfaceContract
from tests.methods.objectives import views
from tests.methods.test_fedu import PREDICTOR as BYOL_PREDICTOR
from tests.methods.toys import prepared as toy

PREDICTOR = 4 * 2 * (8 * 8 + 8)
TERMS = ("local_relation", "global_contrast", "global_relation")
SILENT = "{class: methods.fedx.CrossDistillation, local_relation: 0, global_contrast: 0, global_relation: 0}"
NOTHING = " ".join(f"method.{term}=0" for term in TERMS)


class TestFedX(InterfaceContract):
    method = "fedx"
    choices = (*(f"method.{term}=0" for term in TERMS), "method.variant=paper")
    equals = tuple(
        (f"objective={objective} {NOTHING}", f"fedavg objective={objective}", "state")
        for objective in ("simclr", "byol", "moco", "protocl")
    )
    refused: ClassVar = {
        "method.variant=other": "choose code or paper",
        "method.temperature=0": "above 0",
        "objective=rotation": "two views",
    }
    falls = False  # the teacher of the loss changes every round

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + PREDICTOR for way in ("up", "down")}

    @pytest.mark.parametrize(
        ("method", "objective"), [("fedu-fedx", "byol"), ("fedprox-fedx", "simclr"), ("scaffold-fedx", "simclr")]
    )
    def test_it_sits_on_other_methods(self, method, objective, tmp_path):
        run = run_helpers.train_run(tmp_path, method)
        assert run.config.objective["name"] == objective
        assert "fedx" in [term.name for term in run.loop.method.terms]
        assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))

    def test_the_predictor_learns_and_is_there_for_the_global_terms_alone(self, tmp_path, unbroken):
        start = run_helpers.build_run(tmp_path / "a", "fedx")
        start.loop.restore()
        first = start.loop.server["weights"]["fedx"]
        assert run_helpers.difference(unbroken.loop.server["weights"]["fedx"], first) > 1e-6
        local = run_helpers.train_run(tmp_path / "b", "fedx", "method.global_contrast=0", "method.global_relation=0")
        assert "fedx" not in local.loop.server["weights"]

    def test_a_method_that_sends_no_model_has_no_teacher(self, tmp_path):
        addon = "method.addons=[{class: methods.fedx.CrossDistillation}]"
        with pytest.raises(MethodError, match="sends no encoder"):
            run_helpers.train_run(tmp_path / "a", "local", addon)
        only_local = addon.replace("}", ", global_contrast: 0, global_relation: 0}")
        run_helpers.train_run(tmp_path / "b", "local", only_local)


class TestOverFedU(InterfaceContract):
    method = "fedu-fedx"
    equals = ((f"'method.addons=[{SILENT}]'", "fedu", "state"),)
    falls = False

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + BYOL_PREDICTOR + PREDICTOR for way in ("up", "down")}


class TestOverScaffold(InterfaceContract):
    method = "scaffold-fedx"

    def bill(self, run):
        variate = 4 * (ENCODER + PROJECTOR)  # without global terms there is no predictor
        sent = variate + 4 * STATISTICS
        return {
            ("fit", "down", "weights"): sent,
            ("fit", "down", "c"): variate,
            ("fit", "up", "delta_w"): sent,
            ("fit", "up", "delta_c"): variate,
        }


class TestOverProtoCL(InterfaceContract):
    """FedX over the objective with most parts: a queue, clusters before each epoch, momentum networks."""

    variant = True
    method = "fedx"
    overrides = ("objective=protocl", "objective.clusters=[2,4]", "objective.queue_size=32")
    falls = False

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + PREDICTOR for way in ("up", "down")}


class TestOverFedProx(InterfaceContract):
    method = "fedprox-fedx"

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}


class TestOverBYOL(InterfaceContract):
    variant = True
    method = "fedx"
    overrides = ("objective=byol",)
    falls = False

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + BYOL_PREDICTOR + PREDICTOR for way in ("up", "down")}


class TestOverMoCo(InterfaceContract):
    variant = True
    method = "fedx"
    overrides = ("objective=moco", "objective.queue_size=32")
    falls = False

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + PREDICTOR for way in ("up", "down")}


class Watch(CrossDistillation):
    """FedX's add-on that records, at each step, its inputs, its value and the state of its teacher."""

    name = "fedx"

    def forward(self, out, batch, method):
        value = super().forward(out, batch, method)
        steps = vars(method).setdefault("seen", [])
        weights = dict(method.objective.encoder.named_parameters())
        moved = {
            name: float((p - weights[name]).detach().abs().max())
            for name, p in self.teacher.networks[0].named_parameters()
        }
        steps.append((batch, out, value.detach(), max(moved.values()), self.teacher.training))
        return value


class TestTerms:
    @pytest.fixture
    def seen(self, tmp_path):
        from methods.fedavg import FedAvg

        still = ("views.crop_scale=null", "views.flip=0", "views.jitter_p=0", "views.grayscale=0")
        run = toy(tmp_path, FedAvg, "federation.rounds=1", *still, addons=[Watch])
        run.loop.fit()
        self.method = run.loop.method
        return self.method.seen

    def test_they_are_given_a_batch_and_an_independent_one(self, seen):
        """Without augmentation both views equal the images, and the independent batch B_r holds other images."""
        batch, out, value, *_ = seen[0]
        assert len(batch.views) == 3
        assert len(out.extra) == 1
        assert len(out.embeddings) == 2
        assert torch.equal(batch.views[0], batch.views[1])
        same = [bool((batch.views[0] == image).flatten(1).all(dim=1).any()) for image in batch.views[2]]
        assert not all(same)
        assert float(value) > 0

    def test_the_teacher_is_the_received_model_and_stays_while_the_client_moves(self, seen):
        moved = [distance for *_, distance, _ in seen]
        assert moved[0] == 0
        assert moved[1] > 0
        assert not any(training for *_, training in seen)

    def test_the_sum_of_the_terms(self, tmp_path):
        from methods.objectives.simclr import SimCLR
        from tests.methods.objectives import batch as pair
        from tests.methods.objectives import encoder

        torch.manual_seed(0)
        objective = SimCLR(encoder(), projector=(5, 4))
        term = CrossDistillation(local_relation=2.0, global_contrast=3.0, global_relation=5.0, variant="paper")
        term.build(objective)
        (other,) = views(1, seed=7)
        given = pair()._replace(views=(*pair().views, other))
        out = objective.eval()(*pair().views, extra=(other,))
        p = [term.predictor(z) for z in out.embeddings]
        taught = [objective.embed(view)[1] for view in given.views]
        value = term(out, given, None)
        expected = (
            2 * relational(*out.embeddings, out.extra[0][1], 0.1)
            + 3 * global_contrastive(p[0], taught[1], 0.1)
            + 5 * relational(*p, taught[2], 0.1)
        )
        torch.testing.assert_close(value, expected)
        value.backward()
        assert all(parameter.grad is None for parameter in term.teacher.parameters())
        assert all(parameter.grad.abs().max() > 0 for parameter in term.predictor.parameters())
