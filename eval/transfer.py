"""Out-of-distribution transfer: scores of the frozen encoder on a data set it was not trained on."""

import torch

from eval.features import Features
from eval.geometry import effective_rank
from eval.knn import knn
from eval.linear import Probe, linear_probe


def transfer(
    target: Features, probe: Probe, k: int, temperature: float, generator: torch.Generator
) -> dict[str, float]:
    """Linear probe, kNN and effective rank on another data set's features.

    Returns:
        "accuracy": of the probe, percent on its whole test set; "accuracy_knn": percent, see `eval.knn.knn`;
        "effective_rank": dimensions, of its raw test features (SSD reports it, but not for which images).
    """
    return {
        "accuracy": linear_probe(target, probe, generator)["accuracy"],
        "accuracy_knn": knn(target, k, temperature)["accuracy"],
        "effective_rank": effective_rank(target.test_x),
    }
