from typing import ClassVar

import pytest
import torch

from methods.base import MethodError
from methods.fedavg import FedAvg
from methods.fedx import CrossDistillation
from methods.maths import global_contrastive, relational
from methods.objectives.simclr import SimCLR
from tests.methods import toys
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, WEIGHTS, InterfaceContract
from tests.methods.objectives import batch as pair
from tests.methods.objectives import encoder, views
from tests.methods.test_fedu import PREDICTOR as BYOL_PREDICTOR
from tests.run_helpers import build_run, difference, train_run, trained

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
    sent = WEIGHTS + PREDICTOR

    def test_the_predictor_learns_and_is_there_for_the_global_terms_alone(self, tmp_path, unbroken):
        start = build_run(tmp_path, "fedx").loop
        start.restore()
        assert difference(unbroken.loop.server["weights"]["fedx"], start.server["weights"]["fedx"]) > 1e-6
        local = trained("fedx", "method.global_contrast=0", "method.global_relation=0")
        assert "fedx" not in local.loop.server["weights"]

    def test_a_method_that_sends_no_model_has_no_teacher(self, tmp_path):
        addon = "method.addons=[{class: methods.fedx.CrossDistillation}]"
        with pytest.raises(MethodError, match="sends no encoder"):
            train_run(tmp_path, "local", addon)
        trained("local", addon.replace("}", ", global_contrast: 0, global_relation: 0}"))


class Over(InterfaceContract):
    """FedX's terms on another method, or over another objective."""

    def test_it_sits_on_the_method(self, unbroken):
        assert "fedx" in [term.name for term in unbroken.loop.method.terms]


class TestOverFedU(Over):
    method = "fedu-fedx"
    equals = ((f"'method.addons=[{SILENT}]'", "fedu", "state"),)
    falls = False
    sent = WEIGHTS + BYOL_PREDICTOR + PREDICTOR


class TestOverScaffold(Over):
    method = "scaffold-fedx"

    def bill(self, run):
        variate = 4 * (ENCODER + PROJECTOR)  # without global terms there is no predictor
        return {("fit", "down", "weights"): variate + 4 * STATISTICS, ("fit", "down", "c"): variate,
                ("fit", "up", "delta_w"): variate + 4 * STATISTICS, ("fit", "up", "delta_c"): variate}  # fmt: skip


class TestOverFedProx(Over):
    method = "fedprox-fedx"


class TestOverProtoCL(Over):
    """FedX over the objective with most parts: a queue, clusters before each epoch, momentum networks."""

    variant = True
    method = "fedx"
    overrides = ("objective=protocl", "objective.clusters=[2,4]", "objective.queue_size=32")
    falls = False
    sent = WEIGHTS + PREDICTOR


class Watch(CrossDistillation):
    """FedX's add-on that records, at each step, its inputs, its value and the state of its teacher."""

    name = "fedx"

    def forward(self, out, batch, method):
        value = super().forward(out, batch, method)
        weights = dict(method.objective.encoder.named_parameters())
        teacher = self.teacher.networks[0].named_parameters()
        moved = max(float((p - weights[name]).detach().abs().max()) for name, p in teacher)
        vars(method).setdefault("seen", []).append((batch, out, value.detach(), moved, self.teacher.training))
        return value


def test_a_step_has_an_independent_batch_and_a_teacher_that_stays_the_received_model(tmp_path):
    """Without augmentation both views equal the images, and the independent batch B_r holds other images."""
    still = ("views.crop_scale=null", "views.flip=0", "views.jitter_p=0", "views.grayscale=0")
    run = toys.train_run(tmp_path, FedAvg, "federation.rounds=1", *still, addons=[Watch])
    batch, out, value, *_ = run.loop.method.seen[0]
    first, second, other = batch.views
    assert (len(out.extra), len(out.embeddings)) == (1, 2)
    assert torch.equal(first, second)
    assert not all((first == image).flatten(1).all(dim=1).any() for image in other)
    assert float(value) > 0
    moved = [distance for *_, distance, _ in run.loop.method.seen]
    assert moved[0] == 0 < moved[1]
    assert not any(training for *_, training in run.loop.method.seen)


@pytest.mark.parametrize(
    ("words", "images"),
    [((), 2), (("method.local_relation=0",), 2), (("method.local_relation=0", "method.global_relation=0"), 1)],
)
def test_a_step_counts_the_images_of_its_third_view(words, images):
    """B_r has as many images as the batch; without relational terms there is none."""
    loop = trained("fedx", *words).loop
    for round, line in enumerate(loop.history):
        sizes = [loop.clients[client].examples for client in loop.cohort(round)]
        trained_on = sum(size - (size % 8 if size % 8 < 2 else 0) for size in sizes)
        assert line["images"] == images * trained_on


def test_the_sum_of_the_terms():
    torch.manual_seed(0)
    objective = SimCLR(encoder(), projector=(5, 4))
    for _ in range(30):
        objective(*pair().views)  # without running statistics of the images all embeddings are nearly equal
    term = CrossDistillation(local_relation=2.0, global_contrast=3.0, global_relation=5.0, variant="paper")
    term.build(objective)
    (other,) = views(1, seed=7)
    given = pair()._replace(views=(*pair().views, other))
    out = objective.eval()(*pair().views, extra=(other,))
    p, taught = [term.predictor(z) for z in out.embeddings], [objective.embed(view)[1] for view in given.views]
    value = term(out, given, None)
    related = relational(*out.embeddings, out.extra[0][1], 0.1), relational(*p, taught[2], 0.1)
    expected = 2 * related[0] + 3 * global_contrastive(p[0], taught[1], 0.1) + 5 * related[1]
    torch.testing.assert_close(value, expected)
    assert abs((related[1] - relational(*p, taught[1], 0.1)).item()) > 1e-3
    value.backward()
    assert all(parameter.grad is None for parameter in term.teacher.parameters())
    assert all(parameter.grad.any() for parameter in term.predictor.parameters())
