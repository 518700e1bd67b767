"""The official protocols: their numbers are pinned here, and what runs is what is pinned."""

import math

import pytest
import torch

from eval import protocol
from eval.features import EvalError, Features
from eval.linear import Probe
from eval.protocol import PROTOCOLS, Score, evaluate

pytestmark = pytest.mark.usefixtures("one_thread")

ADAM = {
    "optimizer": "adam",
    "lr": 3e-3,
    "epochs": 200,
    "batch_size": 512,
    "weight_decay": 0.0,
    "momentum": 0.0,
    "schedule": "constant",
    "milestones": (),
    "gamma": 0.1,
    "shuffle": True,
}
SGD = ADAM | {"optimizer": "sgd", "momentum": 0.9, "batch_size": 256}

# Never edit a line: a protocol with other numbers is a new version, beside the old one.
PINNED = {
    "linear/v1": ADAM,
    "linear-lbfgs/v1": {"strengths": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5), "fraction": 0.1},
    "linear-fedx/v1": ADAM | {"lr": 1e-3, "epochs": 100, "batch_size": 64, "weight_decay": 1e-6},
    "linear-ssd/v1": ADAM,
    "linear-orchestra-cached/v1": SGD | {"lr": 30, "epochs": 50, "schedule": "cosine"},
    "linear-flesd-cached/v1": SGD | {"lr": 3e-2, "epochs": 60, "schedule": "step", "milestones": (30, 50)},
    "linear-fedu/v1": ADAM | {"batch_size": 2048, "shuffle": False},
    "linear-ldawa/v1": SGD | {"lr": 1e-2, "epochs": 100, "batch_size": 128},
    "knn/v1": {"k": 200, "temperature": 0.1},
    "geometry/v1": {"max_points": 10_000},
    "label-free/v1": {"temperature": 0.2, "include_self": False, "weight": 0.2},
}
FAST = [name for name in PINNED if not name.startswith("linear")]


def stream(name):
    return torch.Generator().manual_seed(sum(name.encode()))


def draw(n):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n + 30) % 3
    x = torch.randn(3, 5, generator=generator)[y] * 3 + torch.randn(n + 30, 5, generator=generator)
    return Features(
        train_x=x[:n],
        train_y=y[:n],
        train_clients=torch.arange(n) % 4,
        test_x=x[n:],
        test_y=y[n:],
        view_a=x[:n] + 0.1,
        view_b=x[:n] - 0.1,
        view_clients=torch.arange(n) % 4,
        num_classes=3,
    )


@pytest.fixture
def features():
    return draw(60)


@pytest.mark.parametrize("name", PINNED)
def test_settings_are_pinned(name):
    assert PROTOCOLS[name].settings == PINNED[name]


def test_every_protocol_is_pinned_and_versioned():
    assert list(PROTOCOLS) == list(PINNED)
    for name, official in PROTOCOLS.items():
        assert official.id == name
        assert name.split("/")[1].startswith("v")
        assert official.summary.endswith(".")
    assert all(
        "WITHOUT its augmentation" in official.summary for name, official in PROTOCOLS.items() if "cached" in name
    )


@pytest.mark.parametrize("name", PINNED)
def test_what_runs_is_what_is_pinned(name, features, monkeypatch):
    received = []

    def record(*arguments):
        received.extend(argument for argument in arguments if not isinstance(argument, (Features, torch.Tensor)))
        return {}

    for function in ("linear_probe", "lbfgs_probe", "knn", "geometry", "label_free_score"):
        monkeypatch.setattr(protocol, function, record)
    generator = stream(name)
    PROTOCOLS[name].run(features, generator)
    received = [argument for argument in received if argument is not generator]
    if isinstance(received[0], Probe):
        assert received == [Probe(**PINNED[name])]
    else:
        assert received == list(PINNED[name].values())


def test_every_protocol_gives_its_headline_in_its_unit():
    features = draw(1500)  # enough steps for the slowest probe: Adam 1e-3, 100 epochs of batches of 64
    for name, official in PROTOCOLS.items():
        scores = evaluate(features, [name], stream)
        assert all(isinstance(score, Score) and score.protocol == name for score in scores)
        assert all(math.isfinite(score.value) for score in scores)
        (headline,) = [score for score in scores if score.metric == official.headline]
        if official.headline == "accuracy":
            assert headline.unit == "%"
            assert 80 < headline.value <= 100


def test_units(features):
    units = {(score.protocol, score.metric): score.unit for score in evaluate(features, FAST, stream)}
    assert units == {
        ("knn/v1", "accuracy"): "%",
        ("knn/v1", "k"): "neighbours",
        ("geometry/v1", "effective_rank"): "dimensions",
        ("geometry/v1", "effective_rank_normalised"): "dimensions",
        ("geometry/v1", "effective_rank_centred"): "dimensions",
        ("geometry/v1", "alignment"): "distance^2",
        ("geometry/v1", "uniformity"): "nats",
        ("geometry/v1", "uniformity_within"): "nats",
        ("geometry/v1", "uniformity_between"): "nats",
        ("label-free/v1", "alignment"): "1",
        ("label-free/v1", "uniformity"): "1",
        ("label-free/v1", "score"): "1",
    }


def test_company_and_order_change_no_score(features):
    ids = ["linear/v1", *FAST]
    assert evaluate(features, ids, stream) == evaluate(features, ids, stream)
    assert sorted(evaluate(features, ids, stream), key=str) == sorted(evaluate(features, ids[::-1], stream), key=str)


def test_each_protocol_draws_from_its_own_stream(features):
    asked = []

    def watched(name):
        asked.append(name)
        return stream(name)

    evaluate(features, FAST, watched)
    assert asked == FAST


def test_an_unknown_protocol_is_refused_before_any_runs(features):
    asked = []

    def watched(name):
        asked.append(name)
        return stream(name)

    with pytest.raises(EvalError, match=r"unknown protocol 'knn/v9': give any of linear/v1, .*label-free/v1"):
        evaluate(features, ["knn/v1", "knn/v9"], watched)
    assert asked == []


@pytest.mark.parametrize("missing", [("view_clients",), ("view_a", "view_b", "view_clients")])
def test_label_free_needs_views_and_their_clients(features, missing):
    for name in missing:
        setattr(features, name, None)
    with pytest.raises(EvalError, match="label-free/v1 compares two views client by client: give view_a"):
        evaluate(features, ["label-free/v1"], stream)
