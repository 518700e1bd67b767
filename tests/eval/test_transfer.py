import pytest
import torch

from eval.features import EvalError, Features
from eval.geometry import effective_rank
from eval.knn import knn
from eval.linear import Probe, linear_probe
from eval.protocol import Subject, evaluate
from eval.transfer import transfer

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(120) % classes
    x = 3 * torch.randn(classes, 6, generator=generator)[y] + torch.randn(120, 6, generator=generator)
    return Features(train_x=x[:90], train_y=y[:90], test_x=x[90:], test_y=y[90:], num_classes=classes)


def test_the_target_is_measured_by_itself():
    target, probe = drawn(1, 5), Probe("adam", lr=3e-3, epochs=3, batch_size=32)
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    assert transfer(target, probe, 200, 0.1, next(generators)) == {
        "accuracy": linear_probe(target, probe, next(generators))["accuracy"],
        "accuracy_knn": knn(target, 200, 0.1)["accuracy"],
        "effective_rank": effective_rank(target.test_x),
    }


def test_every_data_set_has_a_protocol_and_its_features_are_made_when_asked():
    made = []
    subject = Subject(features=drawn(0, 3), targets={"svhn": lambda: made.append("svhn") or drawn(1, 5)})
    scores = evaluate(subject, ["knn/v1"])
    assert made == []
    scores = evaluate(subject, ["transfer-svhn/v1"])
    assert made == ["svhn"]
    assert {(score.metric, score.unit) for score in scores} == {
        ("accuracy", "%"), ("accuracy_knn", "%"), ("effective_rank", "dimensions")
    }  # fmt: skip


def test_a_data_set_that_is_not_there_is_named():
    with pytest.raises(EvalError, match="transfer-svhn/v1 asks for more than features: it is about another data set"):
        evaluate(drawn(0, 3), ["transfer-svhn/v1"])
