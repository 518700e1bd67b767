"""Orchestra's claim on mixing, tried on a run of the scenario `digits`, and the cost of its clustering.

The claim is of any data: digits and a small network are not the paper's setting.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.experiment.dry import dry_loop
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.run import Run
from benchmark.tracking.progress import Display
from datamodules.federated import Batch
from eval.clustering import mixing
from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published
from methods.maths import equal_clusters
from methods.objectives.clustering import Clustering

ROUNDS = 10
SCENARIO = "orchestra/cifar10-cross-device"
IMAGES, STEPS = 500, 3
"""Images of one of a hundred clients of CIFAR-10, and steps of a client that are timed."""


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
    config = compose(SCENARIO, "orchestra", ["training.precision=32-true"])
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
