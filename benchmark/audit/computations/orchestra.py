"""Orchestra's claims on its constants, its bound and its anonymity, its partitions, and what its clustering costs.

The claim on mixing is of any data: it is tried on the scenario `digits`, which with its small network is not the
paper's setting.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmark.audit.computations.messages import DEVICE
from benchmark.configuration.compose import compose
from benchmark.experiment.dry import dry_loop
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.run import Run
from benchmark.tracking.progress import Display
from datamodules.federated import Batch
from datamodules.heterogeneity import report
from datamodules.partition import dirichlet_balanced
from eval.clustering import mixing
from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published
from methods.maths import equal_clusters
from methods.objectives.clustering import Clustering

SEEDS = 10
BANK, WIDTH = 128, 512
"""Rows of a client's memory, and their width, in the released code."""
GLOBAL = range(3, 65)
"""Numbers of global clusters: more than two, up to the text's for CIFAR-10."""
TRAINING = 50_000
"""Images of a partition, in equal classes as CIFAR's."""
ROUNDS = 10
IMAGES, STEPS = 500, 3
"""Images of one of a hundred clients of CIFAR-10, and steps of a client that are timed."""


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


@computation("partition/classes")
def classes(cell: Published, _: Printed) -> list[float]:
    """Mean classes of a client, in each of SEEDS partitions."""
    labels = np.arange(TRAINING) % {"CIFAR-10": 10, "CIFAR-100": 100}[str(cell.setting["data"])]
    clients, alpha = int(str(cell.setting["clients"])), float(str(cell.setting["alpha"]))
    definition = "classes_1pct" if "1 %" in cell.row else "classes"
    drawn = (dirichlet_balanced(labels, clients, alpha=alpha, seed=seed) for seed in range(SEEDS))
    return [report(labels, parts)[definition] for parts in drawn]


@contextmanager
def run_of(method: str, *overrides: str) -> Iterator[Run]:
    """A run on digits at its first round, in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        placed = [f"output={folder}", "logger=csv", "accelerator=cpu", "threads=1", "evaluation.every=0"]
        with Experiment(compose("digits", method, [*placed, *overrides]), Display(Console(quiet=True))).open() as run:
            run.loop.restore()
            yield run


@computation("simulated/orchestra-mixing", stored=True)
def orchestra_mixing(_: Published, __: Printed) -> list[float]:
    """The mixing of all training images' target embeddings and the global centroids does not rise after any round."""
    with run_of("orchestra", f"federation.rounds={ROUNDS}") as run:
        each = [mixing_after(run, round) for round in range(ROUNDS)]
    return [float(later > earlier) for earlier, later in pairwise(each)]


def mixing_after(run: Run, round: int) -> float:
    """The mixing once a round has been trained."""
    run.loop.run_round(round)
    method, server = run.loop.method, run.loop.server
    method.load(server["weights"])
    method.eval()
    images = run.evaluator.plain(torch.tensor(run.evaluator.images.train.images))
    assert isinstance(method.objective, Clustering)
    return mixing(method.objective.target_embeddings(images), server["centroids"]["mu"])


@computation("simulated/orchestra-clustering", stored=True)
def orchestra_clustering(_: Published, __: Printed) -> list[float]:
    """Percent of a client's time in a round that its clustering takes, on one core of a CPU."""
    config = compose(DEVICE, "orchestra", ["training.precision=32-true"])
    batch, epochs = config.training.batch_size, config.training.epochs
    rows = torch.randn(config.objective.bank, 512, generator=torch.Generator().manual_seed(0))
    with dry_loop(config) as loop:
        objective = loop.method.objective.train()
        views = tuple(torch.randn(batch, 3, 32, 32) for _ in objective.views)
        images: Any = Batch(views, torch.arange(batch), torch.zeros(batch, dtype=torch.int64))
        training = epochs * (IMAGES // batch) * seconds(lambda: objective.loss(objective(*views), images).backward())
    clusters = config.method.local_clusters
    clustering = seconds(lambda: equal_clusters(rows, clusters, torch.Generator().manual_seed(0)))
    return [100 * clustering / (clustering + training)]


def seconds(work: Callable[[], object]) -> float:
    """The median of STEPS calls after one that does not count."""
    work()
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)
