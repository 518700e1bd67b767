import pytest
import torch

from eval.features import EvalError, Features
from eval.geometry import effective_rank
from eval.knn import knn
from eval.linear import Probe, linear_probe
from eval.protocol import Subject, evaluate
from eval.transfer import transfer

pytestmark = pytest.mark.usefixtures("one_thread")


def random_features(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(120) % classes
    x = 3 * torch.randn(classes, 6, generator=generator)[y] + torch.randn(120, 6, generator=generator)
    return Features(train_x=x[:90], train_y=y[:90], test_x=x[90:], test_y=y[90:], num_classes=classes)


def test_scores_are_those_of_the_target_alone():
    target, probe = random_features(1, 5), Probe("adam", lr=3e-3, epochs=3, batch_size=32)
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    assert transfer(target, probe, 200, 0.1, next(generators)) == {
        "accuracy": linear_probe(target, probe, next(generators))["accuracy"],
        "accuracy_knn": knn(target, 200, 0.1)["accuracy"],
        "effective_rank": effective_rank(target.test_x),
    }


def test_every_data_set_has_a_protocol_that_extracts_its_features_on_demand():
    extracted = []
    subject = Subject(
        features=random_features(0, 3), targets={"svhn": lambda: extracted.append("svhn") or random_features(1, 5)}
    )
    scores = evaluate(subject, ["knn/v1"])
    assert extracted == []
    scores = evaluate(subject, ["transfer-svhn/v1"])
    assert extracted == ["svhn"]
    assert {(score.metric, score.unit) for score in scores} == {
        ("accuracy", "%"), ("accuracy_knn", "%"), ("effective_rank", "dimensions")
    }  # fmt: skip


def test_a_missing_data_set_is_an_error():
    with pytest.raises(
        EvalError, match="transfer-svhn/v1 requires more than features: it evaluates on another data set"
    ):
        evaluate(random_features(0, 3), ["transfer-svhn/v1"])
