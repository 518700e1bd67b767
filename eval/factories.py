"""`Protocol`, and functions that compute one of more than features."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eval.drift import drift
from eval.geometry import label_free_score, singular_values, spectrum
from eval.inputs import Subject
from eval.inversion import reconstruct, similarity
from eval.knn import crowded, knn, knn_by_k
from eval.linear import Probe
from eval.shares import shares
from eval.transfer import projected, scores_of
from eval.tsne import purity, tsne


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        compute: returns metrics by name. It gets the settings by name and, as far as it has them among its arguments,
            `features`, `inputs` (the encoder and its images), the whole `subject`, `generator` and `on_progress`.
        summary: one line for tables and docs, differences from the paper included.
        settings: all its numbers, by argument of `compute`.
        headline: the metric that represents the protocol in a table.
        units: by metric; others are in "%" if accuracies and "1" otherwise.
        lower, higher: metrics where less or more is better; for accuracies more is, for others neither.
        requires: "", "encoder_inputs", "held_out" or "members" (either and "encoder_inputs"), "local_models",
            "local_step", "client_replies", "projector", "test_clients", "views" or "target NAME": the input besides
            features.
        uses_labels: whether it needs the labels of the data set that the encoder is evaluated on.
        uses_views: whether it reads the two views of `Features`, which it requires only where `requires` has them.
        long: whether it takes a paper's number of passes through the encoder, or of steps.
        draws_of: id of the protocol whose random numbers it draws, so that both train the same probe; "": its own.
        replaced_by: id of the version to take instead; a replaced protocol is in no group of protocols.
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
    uses_views: bool = False
    uses_labels: bool = True
    long: bool = False
    draws_of: str = ""
    replaced_by: str = ""

    def run(self, subject: Subject, generator: torch.Generator) -> dict[str, float]:
        """Metrics of an encoder by name."""
        given = {"subject": subject, "features": subject.features, "inputs": subject.encoder_inputs}
        given |= {"generator": generator, "on_progress": subject.on_progress}
        declared = inspect.signature(self.compute).parameters
        return self.compute(**{name: value for name, value in given.items() if name in declared}, **self.settings)

    def better(self, metric: str) -> str:
        """ "higher" or "lower", the better direction of a metric; "" if neither."""
        if metric in self.lower:
            return "lower"
        return "higher" if metric.startswith("accuracy") or metric in self.higher else ""

    def unit(self, metric: str) -> str:
        """Unit of a metric."""
        return self.units.get(metric, "%" if metric.startswith("accuracy") else "1")


def compute_knn(subject: Subject, generator: torch.Generator, k: int, temperature: float) -> dict[str, float]:
    """kNN accuracy; notes a k that is large for the number of training rows."""
    subject.note(crowded(k, len(subject.features.train_x)))
    return knn(subject.features, k, temperature)


def compute_knn_by_k(
    subject: Subject, generator: torch.Generator, ks: Sequence[int], temperature: float
) -> dict[str, float]:
    """kNN accuracy by k; notes a largest k that is large for the number of training rows."""
    rows = len(subject.features.train_x)
    subject.note(crowded(max((k for k in ks if k <= rows), default=0), rows))
    return knn_by_k(subject.features, ks, temperature)


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


def compute_inversion(subject: Subject, generator: torch.Generator, images: int, **settings: Any) -> dict[str, float]:
    """Likeness of a client's views and what is reconstructed of them, which are saved for a figure.

    images: that the step was made on, `subject.local_step` has them already.
    """
    assert subject.local_step is not None  # see `Subject.check`
    step = subject.local_step()
    guesses, cosine = reconstruct(step, generator, on_progress=subject.on_progress, **settings)
    truth, shown = step.pixels(step.views), step.pixels(guesses)
    scores, nearest = similarity(shown, truth, step.pixels(step.blind))
    subject.save_arrays("inversion", {"truth": truth.cpu(), "guesses": shown[nearest].cpu()})
    return {**scores, "cosine": cosine}


def compute_shares(subject: Subject, generator: torch.Generator) -> dict[str, float]:
    """Distance of clients' class shares from those read from their replies; both are saved for a figure."""
    assert subject.client_replies is not None  # see `Subject.check`
    observed = subject.client_replies()
    scores, read = shares(observed)
    subject.save_arrays("shares", {"truth": observed.shares, "read": read})
    return scores


def compute_projected(
    subject: Subject, generator: torch.Generator, probe: Probe, k: int, **settings: Any
) -> dict[str, float]:
    """Probe, kNN, effective rank and uniformity of the projector's outputs."""
    assert subject.projector is not None  # see `Subject.check`
    subject.note(crowded(k, len(subject.features.train_x)))
    return scores_of(projected(subject.features, subject.projector), generator=generator, probe=probe, k=k, **settings)
