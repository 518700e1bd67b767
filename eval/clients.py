"""Accuracy by client or domain: the same probe for all, scored on each client's own test images."""

import math
from collections.abc import Mapping

import torch

from eval.inputs import Subject
from eval.linear import Probe, linear_predictions

SHOWN = 20
"""Clients whose accuracies are metrics of their own; of more there are the mean, the worst tenth and the spread."""

OF = "accuracy of "
"""Prefix of the metric of one client; its name follows."""


def by_client(subject: Subject, probe: Probe, generator: torch.Generator) -> dict[str, float]:
    """Test accuracy of a linear probe in percent: mean over clients, mean of the worst tenth, spread, each client.

    A client counts once, however many test images it has; test images of no client are left out. Where clients have
    encoders of their own (`Subject.own_features`), each is scored by a probe on its own encoder's features of the
    training images, and the others are left out.
    """
    if subject.own_features is not None:
        return summary(_by_own_encoders(subject, probe, generator))
    features = subject.features
    right = linear_predictions(features, probe, generator, on_progress=subject.on_progress) == features.test_y
    names = {name: features.test_clients == client for client, name in enumerate(subject.client_names) if name}
    return summary({name: 100 * right[rows].float().mean().item() for name, rows in names.items() if rows.any()})


def _by_own_encoders(subject: Subject, probe: Probe, generator: torch.Generator) -> dict[str, float]:
    """Accuracy in percent by client; every probe draws the same numbers, so equal encoders have equal scores."""
    assert subject.own_features is not None
    state, each = generator.get_state(), dict[str, float]()
    for done, (name, extract) in enumerate(sorted(subject.own_features.items()), start=1):
        features = extract()
        generator.set_state(state)
        right = linear_predictions(features, probe, generator) == features.test_y
        each[name] = 100 * right.float().mean().item()
        subject.on_progress(done / len(subject.own_features))
    return each


def summary(each: Mapping[str, float]) -> dict[str, float]:
    """Mean, mean of the worst tenth and spread of the clients' accuracies in percent, and of up to SHOWN clients each.

    Empty without clients.

    >>> summary({"a": 50.0, "b": 70.0})["accuracy_worst_tenth"]
    50.0
    """
    if not each:
        return {}
    ordered = sorted(each.values())
    worst = ordered[: math.ceil(len(ordered) / 10)]
    mean = sum(ordered) / len(ordered)
    scores = {
        "accuracy": mean,
        "accuracy_worst_tenth": sum(worst) / len(worst),
        "spread": math.sqrt(sum((value - mean) ** 2 for value in ordered) / len(ordered)),
        "clients": float(len(ordered)),
    }
    return scores | ({OF + name: value for name, value in each.items()} if len(each) <= SHOWN else {})
