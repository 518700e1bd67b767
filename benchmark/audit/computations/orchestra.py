"""Orchestra's claims on its constants, its bound and its anonymity."""

from collections.abc import Iterable

import numpy as np
import torch

from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published
from methods.maths import equal_clusters

SEEDS = 10
BANK, WIDTH = 128, 512
"""Rows of a client's memory, and their width, in the released code."""
GLOBAL = range(3, 65)
"""Numbers of global clusters: more than two, up to the text's for CIFAR-10."""


def gamma(clusters: int, consistent: np.ndarray) -> np.ndarray:
    """The constant of section E.2.3 as printed; infinite where its denominator is 0."""
    below = (clusters - 1 - consistent) ** 2 - clusters
    with np.errstate(divide="ignore"):
        return 1 / below


@computation("formula/orchestra-gamma")
def orchestra_gamma(cell: Published, _: Printed) -> list[float]:
    """Gamma stays below the claim's bound for every share c of consistent assignments; a number for each G."""
    shares = np.linspace(0, 1, 1001)
    limit = 1.0 if cell.row == "gamma, section E.2.3" else 1.5
    return [float(not (gamma(clusters, shares) < limit).all()) for clusters in GLOBAL]


def bound(clusters: int, mixing: float) -> float:
    """The next to last line of equation 10, without its factors N / (N - 1) and 1 - 1 / G and its term 1 / G."""
    whole = 1 + (clusters - 1) * mixing**2 + (clusters - 1) * (2 * mixing + (clusters - 2) * mixing**2)
    return (whole - 1) / (clusters - 1)


@computation("formula/orchestra-bound")
def orchestra_bound(cell: Published, _: Printed) -> list[float]:
    """The printed bound is what the sum before it in equation 10 gives."""
    fewer = 1 if cell.row == "bound, equation 1" else 2
    mixing = 0.5
    printed = [2 * mixing + (clusters - fewer) * mixing**2 for clusters in GLOBAL]
    derived = [bound(clusters, mixing) for clusters in GLOBAL]
    return [float(not np.isclose(*pair)) for pair in zip(printed, derived, strict=True)]


def memories() -> Iterable[torch.Tensor]:
    """Full memories of rows around ten random directions, one for each seed."""
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(10, WIDTH, generator=generator)
        chosen = torch.randint(10, (BANK,), generator=generator)
        yield centres[chosen] + torch.randn(BANK, WIDTH, generator=generator)


@computation("simulated/orchestra-anonymity")
def orchestra_anonymity(cell: Published, _: Printed) -> list[float]:
    """Rows of the smallest local cluster, which hide one another; an empty cluster's centroid is one row."""
    clusters = int(str(cell.setting["local_clusters"]))
    nearest = [equal_clusters(rows, clusters, torch.Generator().manual_seed(0))[1] for rows in memories()]
    return [float(each.bincount(minlength=clusters).clamp(min=1).min()) for each in nearest]
