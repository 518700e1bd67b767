"""Classes of a client in the partitions of Orchestra's Table 4."""

import numpy as np

from datamodules.heterogeneity import report
from datamodules.partition import dirichlet_balanced
from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published

SEEDS, IMAGES = 10, 50_000
"""Partitions that are drawn, and images of each, in equal classes as CIFAR's."""


@computation("partition/classes")
def classes(cell: Published, _: Printed) -> list[float]:
    """Mean classes of a client, in each of SEEDS partitions."""
    labels = np.arange(IMAGES) % {"CIFAR-10": 10, "CIFAR-100": 100}[str(cell.setting["data"])]
    clients, alpha = int(str(cell.setting["clients"])), float(str(cell.setting["alpha"]))
    definition = "classes_1pct" if "1 %" in cell.row else "classes"
    drawn = (dirichlet_balanced(labels, clients, alpha=alpha, seed=seed) for seed in range(SEEDS))
    return [report(labels, parts)[definition] for parts in drawn]
