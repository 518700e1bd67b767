"""The official protocols: their settings are pinned here, and the pinned settings are the ones that run."""

import math
import re
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from eval import geometry, inversion, transfer, tsne
from eval.attentive import AttentiveProbe
from eval.features import EvalError, Features
from eval.finetune import FineTuning
from eval.inputs import REASONS, EncoderInputs, ModelComparison
from eval.inversion import ObservedStep
from eval.linear import Probe
from eval.protocol import PROTOCOLS, Subject, evaluate
from eval.shares import ObservedReplies

ADAM = {
    "optimizer": "adam", "lr": 3e-3, "epochs": 200, "batch_size": 512, "weight_decay": 0.0, "momentum": 0.0,
    "schedule": "constant", "milestones": (), "gamma": 0.1, "shuffle": True, "nesterov": False,
}  # fmt: skip
SGD = ADAM | {"optimizer": "sgd", "momentum": 0.9, "batch_size": 256}
LDAWA = SGD | {"lr": 1e-2, "epochs": 100}
ORCHESTRA = SGD | {"lr": 30, "epochs": 50, "schedule": "cosine"}
FLESD = SGD | {"lr": 3e-2, "epochs": 60, "schedule": "step", "milestones": (30, 50)}
SEMI = {
    "shares": (0.01, 0.1), "encoder_lr": 1e-3, "classifier_lr": 0.3, "batch_size": 128, "draws": 1, "momentum": 0.9,
    "weight_decay": 0.0, "steps": None, "epochs": 200, "crop": ((0.64, 1.0), (1.0, 1.0), 0.5, "bilinear"),
    "schedule": "constant", "held_out": False,
}  # fmt: skip
THREE = SEMI | {"shares": (0.01, 0.05, 0.1)}
HALF, FINE = (((0.5, 1.0), (3 / 4, 4 / 3), 0.5, interpolation) for interpolation in ("bilinear", "bicubic"))
SEMI_ORCHESTRA = SEMI | {"encoder_lr": 30, "classifier_lr": 30, "batch_size": 256, "epochs": 50, "schedule": "cosine"}

# Lines are only added: a protocol with other numbers is a new version, beside the old one.
PINNED = {
    "linear/v1": ADAM,
    "linear-quick/v1": ADAM | {"epochs": 100, "per_class": 100},
    "linear-slice/v1": ADAM | {"epochs": 100, "limit": 10_000},
    "linear-lbfgs/v1": {"strengths": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5), "fraction": 0.1},
    "linear-fedx/v1": ADAM | {"lr": 1e-3, "epochs": 100, "batch_size": 64, "weight_decay": 1e-6},
    "linear-ssd/v1": ADAM,
    "linear-orchestra-cached/v1": ORCHESTRA,
    "linear-flesd-cached/v1": FLESD,
    "linear-fedu/v1": ADAM | {"batch_size": 2048, "shuffle": False},
    "linear-ldawa/v1": LDAWA | {"batch_size": 128},
    "linear-ldawa/v2": LDAWA | {"batch_size": 200, "nesterov": True, "schedule": "step", "milestones": (60, 80)},
    "linear-sweep/v1": ADAM
    | {"lr": 1e-3, "epochs": 100, "rates": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2), "fraction": 0.1},
    "linear-orchestra/v1": ORCHESTRA | {"crop": HALF},
    "linear-orchestra/v2": ORCHESTRA | {"crop": FINE},
    "linear-flesd/v1": FLESD | {"crop": ((0.08, 1.0), (3 / 4, 4 / 3), 0.5, "bilinear")},
    "clients/v1": ADAM,
    "clients/v2": ADAM,
    "by-client/v1": ADAM,
    "knn/v1": {"k": 200, "temperature": 0.1},
    "knn-by-k/v1": {"ks": (10, 20, 100, 200), "temperature": 0.1},
    "projected/v1": ADAM | {"k": 200, "temperature": 0.1, "max_points": 10_000},
    "semi/v1": THREE | {"draws": 3, "steps": 200, "epochs": None, "encoder_lr": 0.03, "schedule": "cosine"},
    "semi-ssd/v1": SEMI,
    "semi-fedx/v1": THREE | {"classifier_lr": 1e-3, "batch_size": 64, "epochs": 100, "crop": None},
    "semi-orchestra/v1": SEMI_ORCHESTRA | {"crop": HALF},
    "semi-orchestra/v2": SEMI_ORCHESTRA | {"crop": FINE, "held_out": True},
    "geometry/v1": {"max_points": 10_000},
    "spectrum/v1": {},
    "clusters/v1": {"max_points": 10_000, "starts": 10},
    "embed/v1": {"max_points": 2_000, "perplexity": 30},
    "drift/v1": {"images": 2_000},
    "membership/v1": {"max_images": 2_000, "views": 10},
    "inversion/v1": {"images": 2, "steps": 4000, "lr": 0.02, "variation": 2.0},
    "shares/v1": {},
    "label-free/v1": {"temperature": 0.2, "include_self": False, "weight": 0.2},
    "alpha-req/v1": {},
    "lidar/v1": {"images": 1000, "views": 10, "delta": 1e-4},
    "attentive/v1": {"heads": 8, "lr": 1e-3, "weight_decay": 0.01, "epochs": 20, "batch_size": 256},
}
FAST = ["knn/v1", "knn-by-k/v1", "geometry/v1", "spectrum/v1", "clusters/v1", "label-free/v1"]
LONG = [
    *("linear-orchestra/v1", "linear-orchestra/v2", "linear-flesd/v1", "semi-ssd/v1", "semi-fedx/v1"),
    *("semi-orchestra/v1", "semi-orchestra/v2", "inversion/v1", "shares/v1", "attentive/v1"),
]


def flat(settings):
    """Settings with the numbers of a probe or a fine-tuning as entries of their own."""
    numbers = {}
    for key, value in settings.items():
        numbers.update(asdict(value) if isinstance(value, Probe | FineTuning | AttentiveProbe) else {key: value})
    return numbers


def stream(name):
    return torch.Generator().manual_seed(sum(name.encode()))


def draw(n):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n + 30) % 3
    x = torch.randn(3, 5, generator=generator)[y] * 3 + torch.randn(n + 30, 5, generator=generator)
    return Features(
        train_x=x[:n], train_y=y[:n], train_clients=torch.arange(n) % 4, test_x=x[n:], test_y=y[n:], num_classes=3,
        view_a=x[:n] + 0.1, view_b=x[:n] - 0.1, view_clients=torch.arange(n) % 4,
    )  # fmt: skip


@pytest.fixture
def features():
    return draw(60)


@pytest.fixture
def subject(features):
    """Every input that a protocol may require; clients hold four fifths of the training images."""

    def images(x):
        return x.sub(x.min()).mul(4).to(torch.uint8).view(-1, 1, 1, 5).numpy()

    def prepare(x, *_):
        return x.float() / 50

    whole = replace(features, train_clients=torch.arange(60) % 5 - 1, test_clients=torch.arange(30) % 3 - 1)
    given = {"encoder": nn.Sequential(nn.Flatten(), nn.Linear(5, 5)).eval(), "prepare": prepare, "augment": prepare}
    given["encoder"].tokens = lambda x: x.flatten(2).transpose(1, 2)  # a pixel is one
    given |= {"train": images(features.train_x), "test": images(features.test_x)}
    step = {"views": torch.rand(2, 3, 12, 12), "low": torch.zeros(1, 3, 1, 1), "high": torch.ones(1, 3, 1, 1)}
    step |= {"blind": torch.full((1, 3, 12, 12), 0.5), "observed": [torch.ones(1)]}
    replies = ({"R": torch.eye(3)}, {"R": torch.eye(3)}, torch.eye(3, dtype=torch.float64), torch.full((3,), 1 / 3))
    return Subject(
        features=whole,
        client_names=("north", "south"),
        encoder_inputs=EncoderInputs(
            **given, view=lambda x, generator: prepare(x) + torch.rand(x.shape, generator=generator)
        ),
        local_step=lambda: ObservedStep(**step, gradients=lambda inputs: [inputs.mean(dim=(1, 2, 3))[:1]]),
        client_replies=lambda: ObservedReplies(*replies),
        members=torch.arange(0, 60, 2),
        targets={"other": lambda: draw(40)},
        local_models=lambda images: ModelComparison([features.test_x + 0.5], features.test_x, features.test_y),
        projector=nn.Linear(5, 3).eval(),
    )


def test_every_protocol_is_pinned_and_versioned():
    assert [(name, flat(official.arguments)) for name, official in PROTOCOLS.items()] == [*PINNED.items()]
    for name, official in PROTOCOLS.items():
        assert (official.id, name.split("/")[1][0], official.summary[-1]) == (name, "v", ".")
        assert ("WITHOUT its augmentation" in official.summary) == ("cached" in name)
    assert [name for name, official in PROTOCOLS.items() if official.long] == LONG


@pytest.mark.parametrize("name", PINNED)
def test_the_pinned_settings_are_the_ones_that_run(name, subject, monkeypatch):
    """Every function that a protocol may call is replaced by one that records the settings it is called with."""
    named, unnamed = {}, []

    def record(*arguments, **settings):
        for name in ("generator", "note", "on_progress"):
            settings.pop(name, None)
        named.update(flat(settings))
        for argument in arguments:
            if isinstance(argument, Probe | FineTuning):
                named.update(asdict(argument))
            elif not isinstance(argument, Features | Subject | EncoderInputs | torch.Tensor | torch.Generator):
                unnamed.append(argument)
        return {}

    official = PROTOCOLS[name]
    if not official.function.__name__.startswith("compute_"):  # the function itself, which has the settings by name
        official = replace(official, compute=record, settings=official.arguments)
    monkeypatch.setattr(geometry, "spectrum", record)
    monkeypatch.setattr(transfer, "scores_of", record)
    guesses = (subject.local_step().views, 1.0)
    monkeypatch.setattr(inversion, "reconstruct", lambda *arguments, **settings: record(**settings) or guesses)
    monkeypatch.setattr(tsne, "tsne", lambda *arguments: record(*arguments) or (torch.rand(4, 2), torch.zeros(4)))
    models = subject.local_models(0)
    subject = replace(subject, local_models=lambda images: record(images) or models)
    official.run(subject, stream(name))
    assert named.items() <= PINNED[name].items()
    elsewhere = {"images"} if name == "inversion/v1" else set()  # the step in the subject was made on so many
    assert unnamed == [value for key, value in PINNED[name].items() if key not in named.keys() | elsewhere]


def test_a_protocol_gets_of_the_subject_what_its_function_declares(subject):
    def of_features(features, generator, on_progress, power):
        return {"sum": float(features.train_x.sum()) ** power, "same": generator.initial_seed()}

    made = replace(PROTOCOLS["knn/v1"], compute=of_features, settings={"power": 1})
    drawn = stream("a")
    assert made.run(subject, drawn) == {"sum": float(subject.features.train_x.sum()), "same": drawn.initial_seed()}
    inputs = replace(made, compute=lambda subject, inputs: {"same": inputs is subject.encoder_inputs}, settings={})
    assert inputs.run(subject, drawn) == {"same": True}


def test_every_protocol_gives_its_headline_in_its_unit(subject):
    big = draw(1500)  # enough steps for the slowest probe: Adam 1e-3, 100 epochs of batches of 64
    failures = {}
    for name, official in PROTOCOLS.items():
        scores = evaluate(big if official.requires in ("", "views") else subject, [name], stream, failures=failures)
        if name in failures:
            continue
        assert all(score.protocol == name and math.isfinite(score.value) for score in scores)
        (headline,) = [score for score in scores if score.metric == official.headline]
        assert headline.unit == "%" or not official.headline.startswith("accuracy")
        if official.headline == "accuracy" and not official.requires:
            assert 80 < headline.value <= 100
    assert list(failures) == ["semi-orchestra/v1", "semi-orchestra/v2"]  # their learning rate is 30
    assert all("diverged" in reason for reason in failures.values())


def test_a_failing_protocol_does_not_stop_the_others(features):
    equal = replace(features, test_x=torch.ones_like(features.test_x))
    failures = {}
    scores = evaluate(equal, ["knn/v1", "embed/v1", "geometry/v1"], stream, failures=failures)
    assert {score.protocol for score in scores} == {"knn/v1", "geometry/v1"}
    assert failures == {"embed/v1": "a map of 30 test images whose features are all the same: train the encoder anew"}
    with pytest.raises(EvalError, match="all the same") as caught:
        evaluate(equal, ["knn/v1", "embed/v1"], stream)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "lacks", "message"),
    [(name, (), "") for name in PINNED if PROTOCOLS[name].requires not in ("", "views")]
    + [("label-free/v1", lacks, "") for lacks in (("view_clients",), ("view_a", "view_b", "view_clients"))]
    + [("knn/v9", (), r"unknown .* 'knn/v9' \(did you mean 'knn/v1'\?\): give any of linear/v1, .*label-free/v1")],
)
def test_a_missing_input_or_an_unknown_protocol_is_an_error_before_any_runs(name, lacks, message, features):
    started = []
    if not message:
        message = re.escape(f"{name} requires more than features: {REASONS[PROTOCOLS[name].requires]}")
    with pytest.raises(EvalError, match=message):
        evaluate(replace(features, **dict.fromkeys(lacks)), ["knn/v1", name], stream, started.append)
    assert started == []


def test_units(subject):
    units = {(score.protocol, score.metric): score.unit for score in evaluate(subject, [*FAST, "drift/v1"], stream)}
    assert {metric: unit for (name, metric), unit in units.items() if name == "geometry/v1"} == {
        **dict.fromkeys((f"effective_rank{of}" for of in ("", "_normalised", "_centred")), "dimensions"),
        **dict.fromkeys((f"uniformity{of}" for of in ("", "_within", "_between")), "nats"),
        "alignment": "distance^2",
    }
    expected = {
        "knn/v1 accuracy": "%", "knn/v1 k": "neighbours", "knn-by-k/v1 accuracy_k10": "%",
        "spectrum/v1 dimensions_90": "dimensions", "clusters/v1 nmi": "1", "label-free/v1 score": "1",
        "drift/v1 local_global_angle": "degrees", "drift/v1 cka": "1",
    }  # fmt: skip
    assert {" ".join(key): unit for key, unit in units.items()}.items() >= expected.items()


def test_the_other_protocols_and_their_order_change_no_score(features):
    """Each one draws from a stream of its own."""
    ids, started, streams = ["linear/v1", *FAST], [], []
    scores = evaluate(features, ids, lambda name: streams.append(name) or stream(name), started.append)
    assert started == streams == ids
    assert scores == evaluate(features, ids, stream)
    assert sorted(scores, key=str) == sorted(evaluate(features, ids[::-1], stream), key=str)


def test_a_rotation_of_the_features_changes_no_invariant_metric(features):
    """Metrics of lengths and angles; probes are left out, as their initial weights do not rotate with the features."""
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1)).double()).Q
    parts = ("train_x", "test_x", "view_a", "view_b")
    doubled = replace(features, **{name: getattr(features, name).double() for name in parts})
    turned = replace(features, **{name: getattr(doubled, name) @ turn for name in parts})
    assert not torch.allclose(turned.test_x, doubled.test_x)
    ids = [*FAST, "linear-lbfgs/v1"]
    for before, after in zip(evaluate(doubled, ids, stream), evaluate(turned, ids, stream), strict=True):
        assert (before.protocol, before.metric) == (after.protocol, after.metric)
        assert after.value == pytest.approx(before.value, rel=1e-6), (before.protocol, before.metric)
