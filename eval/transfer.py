"""Out-of-distribution transfer: how well the frozen encoder serves another data set than it was trained on."""

import torch

from eval.features import Features
from eval.geometry import effective_rank
from eval.knn import knn
from eval.linear import Probe, linear_probe


def transfer(
    target: Features, probe: Probe, k: int, temperature: float, generator: torch.Generator
) -> dict[str, float]:
    """Probe and neighbours on another data set's training and test features, and their effective rank.

    Returns:
        "accuracy": of the probe, percent on its whole test set; "accuracy_knn": percent, see `eval.knn.knn`;
        "effective_rank": dimensions, of its test features as they are (SSD reports it, without saying of which images).
    """
    return {
        "accuracy": linear_probe(target, probe, generator)["accuracy"],
        "accuracy_knn": knn(target, k, temperature)["accuracy"],
        "effective_rank": effective_rank(target.test_x),
    }
