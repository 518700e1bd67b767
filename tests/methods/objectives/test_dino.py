"""Self-distillation: a centred, sharpened teacher, and crops that the student sees alone."""

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules.federated import Batch
from methods.base import Outputs
from methods.maths import cosines, dino
from methods.objectives.dino import DINO
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, check_retold, step, views


def retold(scores, targets, centre, temperature, target_temperature):
    """Eqs. 1 to 3, number by number; the mean over images and pairs of views."""

    def softmax(row):
        largest = max(row)
        return [math.exp(x - largest) / sum(math.exp(y - largest) for y in row) for x in row]

    found = []
    for t in range(len(targets)):
        for s in (s for s in range(len(scores)) if s != t):
            for image in range(scores.shape[1]):
                teacher = softmax((targets[t, image] - centre) / target_temperature)
                student = softmax(scores[s, image] / temperature)
                found.append(-sum(p * math.log(q) for p, q in zip(teacher, student, strict=True)))
    return sum(found) / len(found)


@pytest.mark.parametrize("count", [2, 4])
def test_values_and_gradients_are_the_retellings(count):
    rng = np.random.default_rng(0)
    scores, targets, centre = (rng.standard_normal(shape) for shape in ((count, 3, 5), (2, 3, 5), 5))
    check_retold(dino, retold, scores, targets, centre, 0.5, 0.2)


CENTRE = torch.tensor([0.3, -0.2, 0.1, 0.0])


class TestDINO(ObjectiveContract):
    objective, predicts = DINO, True
    settings: ClassVar[dict[str, Any]] = {"outputs": 4, "temperature": 0.3, "target_temperature": 0.2}
    travels = ("encoder", "projector", "prototypes", "centre")
    refused = (
        *((name, 0, "give a number above 0") for name in ("temperature", "target_temperature")),
        ("outputs", 1, "give a number of at least 2"),
        ("momentum_end", 1.5, "at most 1"),
        ("start_temperature", 0.04, "temperature_warmup=0.0: give both"),
        ("temperature_warmup", 2.0, "at most 1"),
    )

    def build(self, **settings: Any) -> DINO:
        objective = super().build(**settings)
        objective.centre.value.copy_(CENTRE)
        return objective

    def expected(self, out: Outputs) -> Tensor:
        return dino(torch.stack(out.predictions), torch.stack(out.targets), CENTRE, 0.3, 0.2)

    def test_the_target_is_a_teacher_of_all_three_networks_which_follow_the_students(self):
        objective, parts = self.build(momentum=0.7).eval(), ("encoder", "projector", "prototypes")
        targets, sources = (
            [parameter for part in parts for parameter in getattr(objective, prefix + part).parameters()]
            for prefix in ("target_", "")
        )
        for target in targets:
            target.data += torch.rand_like(target)
        before = [target.clone() for target in targets]
        for view, target in zip(batch().views, objective(*batch().views).targets, strict=True):
            z = objective.target_projector(objective.target_encoder(view))
            torch.testing.assert_close(target, cosines(z, objective.target_prototypes.weight))
        step(objective, batch())
        for then, target, source in zip(before, targets, sources, strict=True):
            assert not torch.equal(source, then)
            torch.testing.assert_close(target, 0.7 * then + 0.3 * source.detach())

    def test_the_centre_follows_the_teachers_mean_output(self):
        objective = self.build()
        out = objective(*batch().views)
        before, mean = objective.centre.value.clone(), torch.cat(out.targets).mean(0)
        objective.after_step(out.push)
        torch.testing.assert_close(objective.centre.value, 0.9 * before + 0.1 * mean)

    def test_the_length_of_a_prototype_has_no_effect(self):
        objective, given = self.build().eval(), batch()
        first = objective.loss(objective(*given.views), given)
        objective.prototypes.weight.data *= torch.tensor([[2.0], [0.5], [3.0], [1.0]])
        torch.testing.assert_close(objective.loss(objective(*given.views), given), first)

    def test_the_targets_temperature_rises_linearly_and_then_stays(self):
        """As the code's: from `warmup_teacher_temp` to `teacher_temp` in equal steps, then constant."""
        settings = {"start_temperature": 0.04, "target_temperature": 0.07, "temperature_warmup": 0.3}
        objective, steps, seen = self.build(**settings).eval(), 155, []
        rise = np.append(np.linspace(0.04, 0.07, 31), np.full(9, 0.07))  # as if 30 of 100 epochs
        out = objective(*batch().views)
        for percent in range(40):
            objective.start_step(percent / 100)
            seen.append(float(objective.target_temperature_now))
        assert seen == pytest.approx(list(rise), abs=1e-7)
        scores, targets = torch.stack(out.predictions), torch.stack(out.targets)
        for index, temperature in ((0, 0.04), (steps - 1, 0.07)):
            objective.start_step(index / steps)
            expected = dino(scores, targets, CENTRE, 0.3, temperature)
            torch.testing.assert_close(objective.loss(out, batch()), expected)

    def test_local_views_are_the_students_alone(self):
        objective = self.build(local_views=2).eval()
        assert objective.views == ("augment", "augment", "local", "local")
        given = Batch(views(4), torch.arange(5))
        out = objective(*given.views)
        assert (len(out.predictions), len(out.targets)) == (4, 2)
        torch.testing.assert_close(objective.loss(out, given), self.expected(out))


@pytest.mark.parametrize("local_views", [0, 2])
def test_a_run_moves_the_centre_with_the_weights(tmp_path, local_views):
    words = ("objective=dino", "objective.outputs=16", f"objective.local_views={local_views}")
    loop = run_helpers.train_run(tmp_path, "fedavg", *words, "federation.rounds=1").loop
    assert math.isfinite(loop.history[0]["loss"])
    assert loop.server["weights"]["centre"]["value"].any()
