"""`Protocol`, the kinds of protocol that several official ones share, and protocols that compute more than one call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from eval.drift import drift
from eval.finetune import FineTuning, semi
from eval.geometry import label_free_score, singular_values, spectrum
from eval.inputs import Crop, Subject
from eval.linear import Probe, augmented_probe, linear_probe
from eval.transfer import transfer
from eval.tsne import purity, tsne


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        compute: a subject and a generator, and the settings as keyword arguments -> metrics by name.
        summary: one line for tables and docs, differences from the paper included.
        settings: all its numbers, by argument of `compute`.
        headline: the metric that represents the protocol in a table.
        units: by metric; others are in "%" if accuracies and "1" otherwise.
        lower, higher: metrics where less or more is better; for accuracies more is, for others neither.
        requires: "", "encoder_inputs", "local_models", "views" or "target NAME": the input besides features.
        long: whether it takes a paper's number of passes through the encoder.
    """

    id: str
    compute: Callable[..., dict[str, float]]
    summary: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    headline: str = "accuracy"
    units: Mapping[str, str] = field(default_factory=dict)
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    requires: str = ""
    long: bool = False

    def run(self, subject: Subject, generator: torch.Generator) -> dict[str, float]:
        """Metrics of an encoder by name."""
        return self.compute(subject, generator, **self.settings)

    def better(self, metric: str) -> str:
        """ "higher" or "lower", the better direction of a metric; "" if neither."""
        if metric in self.lower:
            return "lower"
        return "higher" if metric.startswith("accuracy") or metric in self.higher else ""

    def unit(self, metric: str) -> str:
        """Unit of a metric."""
        return self.units.get(metric, "%" if metric.startswith("accuracy") else "1")


def linear_protocol(name: str, probe: Probe, summary: str) -> Protocol:
    """A linear probe on cached features."""
    return Protocol(
        name,
        lambda subject, generator, probe: linear_probe(subject.features, probe, generator),
        summary,
        {"probe": probe},
    )


def augmented_protocol(name: str, probe: Probe, crop: Crop, summary: str) -> Protocol:
    """A linear probe that crops and flips every training image anew in every epoch."""
    return Protocol(
        name,
        lambda subject, generator, **settings: augmented_probe(
            subject.features, subject.inputs, generator=generator, **settings
        ),
        summary,
        {"probe": probe, "crop": crop},
        requires="encoder_inputs",
        long=True,
    )


def semi_protocol(name: str, tuning: FineTuning, summary: str, *, long: bool = True) -> Protocol:
    """Fine-tuning on fractions of the labels; the headline is the accuracy at the largest fraction."""
    return Protocol(
        name,
        lambda subject, generator, tuning: semi(subject.features, subject.inputs, tuning, generator),
        summary,
        {"tuning": tuning},
        headline=f"accuracy_{100 * tuning.shares[-1]:g}pct",
        units={f"spread_{100 * fraction:g}pct": "points" for fraction in tuning.shares},
        requires="encoder_inputs",
        long=long,
    )


def transfer_protocol(target: str, probe: Probe, neighbours: Mapping[str, float]) -> Protocol:
    """Linear probe, kNN and effective rank on another data set; neighbours: k and temperature."""
    return Protocol(
        f"transfer-{target}/v1",
        lambda subject, generator, **settings: transfer(subject.targets[target](), generator=generator, **settings),
        f"On {target}, which the encoder was not trained on: linear/v1, knn/v1 and effective rank of its test set.",
        {"probe": probe, **neighbours},
        units={"effective_rank": "dimensions"},
        requires=f"target {target}",
    )


def compute_drift(subject: Subject, generator: torch.Generator, images: int) -> dict[str, float]:
    """Distances of clients' models from the global one, on at most `images` test images."""
    assert subject.local_models is not None  # see `Subject.check`
    models = subject.local_models(images)
    return drift(models.global_model, models.local_models, models.labels, subject.features.num_classes)


def compute_spectrum(subject: Subject, generator: torch.Generator) -> dict[str, float]:
    """Summary of the singular values of the test features, which are saved for a figure."""
    values = singular_values(subject.features.test_x)
    subject.save_arrays("spectrum", {"values": values})
    return spectrum(values)


def compute_map(subject: Subject, generator: torch.Generator, max_points: int, perplexity: float) -> dict[str, float]:
    """Purity of a t-SNE map of the test features, which is saved for a figure."""
    positions, labels = tsne(subject.features, generator, max_points, perplexity)
    subject.save_arrays("embed", {"places": positions, "labels": labels})
    return {"purity": purity(positions, labels)}


def compute_label_free(subject: Subject, generator: torch.Generator, **settings: Any) -> dict[str, float]:
    """Orchestra's score for tuning hyperparameters without labels."""
    views = (subject.features.view_a, subject.features.view_b, subject.features.view_clients)
    return label_free_score(*views, **settings)  # type: ignore[arg-type] # not None: see `Subject.check`
