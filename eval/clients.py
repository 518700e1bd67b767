"""Accuracy by client or domain: the same probe for all, scored on each client's own test images."""

import math

import torch

from eval.inputs import Subject
from eval.linear import Probe, linear_predictions

SHOWN = 20
"""Clients whose accuracies are metrics of their own; of more there are the mean, the worst tenth and the spread."""


def by_client(subject: Subject, probe: Probe, generator: torch.Generator) -> dict[str, float]:
    """Test accuracy of a linear probe in percent: mean over clients, mean of the worst tenth, spread, each client.

    A client counts once, however many test images it has; test images of no client are left out.
    """
    features = subject.features
    right = linear_predictions(features, probe, generator, on_progress=subject.on_progress) == features.test_y
    names = {name: features.test_clients == client for client, name in enumerate(subject.client_names) if name}
    each = {name: 100 * right[rows].float().mean().item() for name, rows in names.items() if rows.any()}
    ordered = sorted(each.values())
    worst = ordered[: math.ceil(len(ordered) / 10)]
    mean = sum(ordered) / len(ordered)
    scores = {
        "accuracy": mean,
        "accuracy_worst_tenth": sum(worst) / len(worst),
        "spread": math.sqrt(sum((value - mean) ** 2 for value in ordered) / len(ordered)),
        "clients": float(len(ordered)),
    }
    return scores | ({f"accuracy of {name}": value for name, value in each.items()} if len(each) <= SHOWN else {})
