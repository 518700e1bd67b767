"""What protocols compute of more than features, by functions that `protocols.yaml` names."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Generator, Tensor, nn

from eval.drift import drift
from eval.features import Features, Note, Progress
from eval.geometry import singular_values, spectrum
from eval.inputs import ModelComparison
from eval.inversion import ObservedStep, reconstruct, similarity
from eval.linear import Probe
from eval.shares import ObservedReplies, shares
from eval.transfer import projected, scores_of
from eval.tsne import purity, tsne

Save = Callable[[str, Mapping[str, Tensor]], None]
"""See `Subject.save_arrays`."""


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
