import math

import pytest
import torch
from torch import Tensor

from datamodules.federated import Batch
from methods.base import Outputs
from methods.objectives.supervised import Supervised
from tests.methods.objectives import ObjectiveContract, batch, encoder

LABELS = torch.tensor([0, 3, 1, 1, 2])


class TestSupervised(ObjectiveContract):
    travels = ("encoder", "classifier")

    def build(self) -> Supervised:
        return Supervised(encoder(), num_classes=4)

    def batch(self) -> Batch:
        return batch(labels=LABELS)

    def expected(self, out: Outputs) -> Tensor:
        rows = [(z[i].double(), int(LABELS[i])) for z in out.embeddings for i in range(5)]
        return torch.stack([row.exp().sum().log() - row[label] for row, label in rows]).mean().float()

    def test_it_asks_for_labels(self) -> None:
        assert Supervised.labels

    def test_the_classifier_has_one_output_a_class(self) -> None:
        for classes in (2, 10):
            objective = Supervised(encoder(), num_classes=classes)
            assert objective.classifier.weight.shape == (classes, 6)
            assert objective(*batch().views).embeddings[1].shape == (5, classes)

    def test_known_logits(self) -> None:
        loss, known = self.build().loss, self.batch()
        assert loss(Outputs((), (torch.zeros(5, 4),) * 2), known).item() == pytest.approx(math.log(4))
        sure = 50 * torch.nn.functional.one_hot(LABELS, 4).float()
        assert loss(Outputs((), (sure, sure)), known).item() == pytest.approx(0, abs=1e-6)
        assert loss(Outputs((), (sure, 0 * sure)), known).item() == pytest.approx(math.log(4) / 2)
