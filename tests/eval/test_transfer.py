from dataclasses import replace

import pytest
import torch
from torch import nn

from eval.features import EvalError, Features
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn
from eval.linear import Probe, linear_probe
from eval.protocol import Subject, evaluate
from eval.transfer import transfer


def random_features(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(120) % classes
    x = 3 * torch.randn(classes, 6, generator=generator)[y] + torch.randn(120, 6, generator=generator)
    return Features(train_x=x[:90], train_y=y[:90], test_x=x[90:], test_y=y[90:], num_classes=classes)


def test_scores_are_those_of_the_target_alone():
    target, probe = random_features(1, 5), Probe("adam", lr=3e-3, epochs=3, batch_size=32)
    assert transfer(target, probe, 200, 0.1, torch.Generator().manual_seed(0)) == {
        "accuracy": linear_probe(target, probe, torch.Generator().manual_seed(0))["accuracy"],
        "accuracy_knn": knn(target, 200, 0.1)["accuracy"],
        "effective_rank": effective_rank(target.test_x),
    }


def test_every_data_set_has_a_protocol_that_extracts_its_features_on_demand():
    extracted = []
    targets = {"svhn": lambda: extracted.append("svhn") or random_features(1, 5)}
    subject = Subject(features=random_features(0, 3), targets=targets)
    evaluate(subject, ["knn/v1"])
    assert extracted == []
    scores = evaluate(subject, ["transfer-svhn/v1"])
    assert extracted == ["svhn"]
    units = {"accuracy": "%", "accuracy_knn": "%", "effective_rank": "dimensions"}
    assert {score.metric: score.unit for score in scores} == units
    with pytest.raises(EvalError, match="transfer-cifar/v1 requires more than features: it evaluates on another data"):
        evaluate(subject, ["transfer-cifar/v1"])


def test_the_second_version_adds_uniformity_and_the_projectors_outputs():
    target, projector = random_features(1, 5), nn.Linear(6, 4).eval()
    subject = Subject(features=random_features(0, 3), targets={"svhn": lambda: target}, projector=projector)

    def scores(subject, version):
        return {score.metric: score for score in evaluate(subject, [f"transfer-svhn/v{version}"])}

    first, second = (scores(subject, version) for version in (1, 2))
    assert {name: second[name].value for name in first} == {name: score.value for name, score in first.items()}
    uniformity = uniformity_parts(target.test_x, torch.zeros(30, dtype=torch.int64))["total"]
    assert second["uniformity"].value == pytest.approx(uniformity, rel=1e-6)
    assert second["uniformity"].unit == second["uniformity_projected"].unit == "nats"
    with torch.no_grad():
        z = projector(target.test_x)
    assert second["effective_rank_projected"].value == pytest.approx(effective_rank(z), rel=1e-6)
    assert set(scores(replace(subject, projector=None), 2)) == {*first, "uniformity"}
    # outputs of a projector that changes nothing score as the features
    same = Subject(features=target, projector=nn.Identity())
    (accuracy, *_), (linear,) = (evaluate(same, [name]) for name in ("projected/v1", "linear/v1"))
    assert (accuracy.metric, accuracy.value) == ("accuracy", linear.value)
