"""Accuracy by client or domain: the same probe for all, scored on each client's own test images."""

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from eval.features import Features, training_rows
from eval.inputs import Subject
from eval.linear import Probe, linear_predictions
from eval.official import OF

SHOWN = 20
"""Clients whose accuracies are metrics of their own; of more there are the mean, the worst tenth and the spread."""


def by_client(subject: Subject, probe: Probe, generator: torch.Generator) -> dict[str, float]:
    """Test accuracy of a linear probe in percent: mean over clients, mean of the worst tenth, spread, each client.

    A client counts once, however many test images it has; test images of no client are left out. Where clients have
    encoders of their own (`Subject.own_features`), each is scored by a probe on its own encoder's features of the
    training images, and the others are left out.
    """
    if subject.own_features is not None:
        return summary(_by_own_encoders(subject, probe, generator))
    return summary(_by_common_encoder(subject, subject.features, probe, generator))


def served(subject: Subject, probe: Probe, generator: torch.Generator) -> dict[str, float]:
    """What each client gets of the encoder: test accuracy of a linear probe in percent, over clients.

    Returns:
        "accuracy", "accuracy_worst_tenth", "spread" (standard deviation), "gini" (0: all get the same) and "clients",
        of the clients that the encoder was trained on (`Subject.trained`; all where that is unknown); with `_unseen`
        those of clients that never trained, where there are any. With `_member_labels` the same by a probe on the
        training images of clients that trained alone, where there are others. "accuracy of <client>" of up to SHOWN
        clients of either kind, the worst ones where there are more.

    A client counts once, however many test images it has.
    """
    features, state = subject.features, generator.get_state()
    each = _by_common_encoder(subject, features, probe, generator)
    unseen = {name for name in each if subject.trained is not None and name not in subject.trained}
    scores = _of_both(each, unseen)
    for kind in (each.keys() - unseen, unseen):
        scores |= {OF + name: each[name] for name in sorted(kind, key=lambda name: (each[name], name))[:SHOWN]}
    numbers = {name: number for number, name in enumerate(subject.client_names) if name in each}
    saved = {"clients": list(numbers.values()), "accuracy": [each[name] for name in numbers]}
    saved |= {"unseen": [name in unseen for name in numbers]}
    saved |= {"images": [int((features.test_clients == number).sum()) for number in numbers.values()]}
    subject.save_arrays("by-client", {key: torch.tensor(values) for key, values in saved.items()})
    members = features.train_clients >= 0
    if members.any() and not members.all():
        generator.set_state(state)
        alone = _of_both(_by_common_encoder(subject, training_rows(features, members), probe, generator), unseen)
        scores |= {f"{name}_member_labels": value for name, value in alone.items() if not name.startswith("clients")}
    return scores


def _of_both(each: Mapping[str, float], unseen: Collection[str]) -> dict[str, float]:
    """Scores over the clients that trained, and with `_unseen` over the others. each: accuracy in percent by client."""
    scores: dict[str, float] = {}
    for suffix, is_unseen in (("", False), ("_unseen", True)):
        if values := {name: value for name, value in each.items() if (name in unseen) is is_unseen}:
            made = {**summary(values), "gini": gini(list(values.values()))}
            scores |= {f"{name}{suffix}": value for name, value in made.items() if not name.startswith(OF)}
    return scores


def gini(values: Sequence[float]) -> float:
    """Gini coefficient of numbers of at least 0: half their mean absolute difference over their mean; 0 if all are 0.

    >>> gini([1.0, 1.0]), gini([0.0, 0.0, 0.0, 1.0])
    (0.0, 0.75)
    """
    ordered, total = sorted(values), sum(values)
    ranked = sum(rank * value for rank, value in enumerate(ordered, start=1))
    return 2 * ranked / (len(ordered) * total) - (len(ordered) + 1) / len(ordered) if total else 0.0


def _by_common_encoder(
    subject: Subject, features: Features, probe: Probe, generator: torch.Generator
) -> dict[str, float]:
    """Accuracy in percent by client; clients without a test row, and rows without a client, are left out."""
    right = linear_predictions(features, probe, generator, on_progress=subject.on_progress) == features.test_y
    names = {name: features.test_clients == client for client, name in enumerate(subject.client_names) if name}
    return {name: 100 * right[rows].float().mean().item() for name, rows in names.items() if rows.any()}


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
