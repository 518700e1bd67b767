"""Several scores of one set of features: those of another data set (transfer), or those after the projector."""

from dataclasses import replace
from typing import Any

import torch
from torch import Generator, nn

from eval.features import Features, Note, ignore, sample
from eval.geometry import effective_rank, uniformity_parts
from eval.knn import knn
from eval.linear import Probe, linear_probe


def transfer(
    features: Features,
    probe: Probe,
    k: int,
    temperature: float,
    generator: Generator,
    note: Note = ignore,
    data: str = "",
) -> dict[str, float]:
    """Linear probe, kNN and effective rank on another data set's features.

    Returns:
        "accuracy": of the probe, percent on its whole test set; "accuracy_knn": percent, see `eval.knn.knn`;
        "effective_rank": dimensions, of its raw test features (SSD reports it, but not for which images).
    """
    nearest = knn(features, k, temperature, note, data)
    return {
        "accuracy": linear_probe(features, probe, generator)["accuracy"],
        "accuracy_knn": nearest["accuracy"],
        "effective_rank": effective_rank(features.test_x),
    }


def scores_of(features: Features, max_points: int, generator: Generator, **settings: Any) -> dict[str, float]:
    """The scores of `transfer`, and "uniformity" in nats of at most `max_points` test features of unit length.

    SSD's tables have the negative of the uniformity.
    """
    scores = transfer(features, generator=generator, **settings)
    x = features.test_x[sample(len(features.test_x), max_points, generator, features.test_x.device)]
    one_client = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return scores | {"uniformity": uniformity_parts(x, one_client)["total"]}


def before_and_after(
    features: Features,
    projector: nn.Module | None,
    generator: Generator,
    note: Note,
    data: str,
    probe: Probe,
    **settings: Any,
) -> dict[str, float]:
    """`scores_of` the features and, where there is a projector, of its outputs: "accuracy_projected", ..."""
    settings |= {"probe": probe, "generator": generator}
    scores = scores_of(features, note=note, data=data, **settings)
    if projector is None:
        return scores
    after = scores_of(projected(features, projector), **settings)
    return scores | {f"{metric}_projected": value for metric, value in after.items()}


def projected(features: Features, projector: nn.Module) -> Features:
    """The projector's outputs for the training and test rows; projector: in eval mode."""

    def outputs(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([projector(rows).float() for rows in x.split(5000)])

    return replace(
        features, train_x=outputs(features.train_x), test_x=outputs(features.test_x),
        view_a=None, view_b=None, view_clients=None,
    )  # fmt: skip


def compute_projected(
    features: Features, projector: nn.Module, note: Note, generator: Generator, probe: Probe, **settings: Any
) -> dict[str, float]:
    """Probe, kNN, effective rank and uniformity of the projector's outputs."""
    return scores_of(projected(features, projector), note=note, generator=generator, probe=probe, **settings)
