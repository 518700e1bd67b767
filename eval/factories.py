"""`Protocol`, and functions that compute one of more than features."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Generator, Tensor, nn

from eval.drift import drift
from eval.features import Features, Note, Progress
from eval.geometry import singular_values, spectrum
from eval.inputs import ModelComparison, Subject
from eval.inversion import ObservedStep, reconstruct, similarity
from eval.linear import Probe
from eval.shares import ObservedReplies, shares
from eval.transfer import projected, scores_of
from eval.tsne import purity, tsne

Save = Callable[[str, Mapping[str, Tensor]], None]
"""See `Subject.save_arrays`."""


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        compute: returns metrics by name. It gets the settings by name and, as far as it has them among its arguments,
            `subject`, the fields of a `Subject` and of its `Features`, `inputs` (the encoder and its images),
            `generator`, `note`, and `data`, the name of another data set, of which the features then are.
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

    def run(self, subject: Subject, generator: Generator) -> dict[str, float]:
        """Metrics of an encoder by name."""
        _, _, data = self.requires.partition(" ")
        features = subject.targets[data]() if data else subject.features
        given = {**vars(subject), **vars(features), "subject": subject, "features": features, "data": data}
        given |= {"inputs": subject.encoder_inputs, "generator": generator, "note": subject.note}
        declared = inspect.signature(self.compute).parameters
        return self.compute(**{**{name: given[name] for name in declared if name in given}, **self.settings})

    def better(self, metric: str) -> str:
        """ "higher" or "lower", the better direction of a metric; "" if neither."""
        if metric in self.lower:
            return "lower"
        return "higher" if metric.startswith("accuracy") or metric in self.higher else ""

    def unit(self, metric: str) -> str:
        """Unit of a metric."""
        return self.units.get(metric, "%" if metric.startswith("accuracy") else "1")


def compute_drift(local_models: Callable[[int], ModelComparison], num_classes: int, images: int) -> dict[str, float]:
    """Distances of clients' models from the global one, on at most `images` test images."""
    models = local_models(images)
    return drift(models.global_model, models.local_models, models.labels, num_classes)


def compute_spectrum(test_x: Tensor, save_arrays: Save) -> dict[str, float]:
    """Summary of the singular values of the test features, which are saved for a figure."""
    values = singular_values(test_x)
    save_arrays("spectrum", {"values": values})
    return spectrum(values)


def compute_map(
    features: Features, save_arrays: Save, generator: Generator, max_points: int, perplexity: float
) -> dict[str, float]:
    """Purity of a t-SNE map of the test features, which is saved for a figure."""
    positions, labels = tsne(features, generator, max_points, perplexity)
    save_arrays("embed", {"places": positions, "labels": labels})
    return {"purity": purity(positions, labels)}


def compute_inversion(
    local_step: Callable[[], ObservedStep],
    save_arrays: Save,
    on_progress: Progress,
    generator: Generator,
    images: int,
    **settings: Any,
) -> dict[str, float]:
    """Likeness of a client's views and what is reconstructed of them, which are saved for a figure.

    images: that the step was made on, `local_step` has them already.
    """
    step = local_step()
    guesses, cosine = reconstruct(step, generator, on_progress=on_progress, **settings)
    truth, shown = step.pixels(step.views), step.pixels(guesses)
    scores, nearest = similarity(shown, truth, step.pixels(step.blind))
    save_arrays("inversion", {"truth": truth.cpu(), "guesses": shown[nearest].cpu()})
    return {**scores, "cosine": cosine}


def compute_shares(client_replies: Callable[[], ObservedReplies], save_arrays: Save) -> dict[str, float]:
    """Distance of clients' class shares from those read from their replies; both are saved for a figure."""
    observed = client_replies()
    scores, read = shares(observed)
    save_arrays("shares", {"truth": observed.shares, "read": read})
    return scores


def compute_projected(
    features: Features, projector: nn.Module, note: Note, generator: Generator, probe: Probe, **settings: Any
) -> dict[str, float]:
    """Probe, kNN, effective rank and uniformity of the projector's outputs."""
    outputs = projected(features, projector)
    return scores_of(outputs, note=note, generator=generator, probe=probe, **settings)
