"""Division of a data set over clients, beside flwr-datasets'."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmark.parity.libraries.registry import case
from datamodules import heterogeneity, partition

CLIENTS, CLASSES, EACH, DRAWS = 4, 5, 100, 600
ALIKE = 1.95 * (2 / DRAWS) ** 0.5
"""Critical value of `distance` at 0.1 %, two samples of DRAWS."""
BY_TEST = (
    f"compared as distributions, by the Kolmogorov-Smirnov distance of {{}} over {DRAWS} partitions each; allowed is "
    "its critical value at 0.1 %"
)

LABELS = np.repeat(np.arange(CLASSES), EACH)


def distance(ours: Any, theirs: Any) -> float:
    """Kolmogorov-Smirnov distance of two samples: the largest difference of their distribution functions."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(ours, theirs).statistic)


def divided(partitioner: Any) -> list[np.ndarray]:
    """The indices of each client by one of flwr-datasets' partitioners."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": LABELS, "index": np.arange(len(LABELS))})
    return [np.array(partitioner.load_partition(k)["index"]) for k in range(CLIENTS)]


@cache
def _dirichlet(**kwargs: Any) -> list[list[np.ndarray]]:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    made, data = [], Dataset.from_dict({"label": LABELS})
    for seed in range(DRAWS):
        each = DirichletPartitioner(CLIENTS, "label", seed=seed, shuffle=False, **kwargs)
        each.dataset = data
        each._determine_partition_id_to_indices_if_needed()
        made.append([np.array(each._partition_id_to_indices[k], dtype=int) for k in range(CLIENTS)])
    return made


def largest_share(parts: Sequence[np.ndarray]) -> float:
    """Of the first client: the share of its most frequent class, 0 without images."""
    counted = np.bincount(LABELS[parts[0]], minlength=CLASSES)
    return counted.max() / max(1, counted.sum())


def _measured(of: Callable[[Sequence[np.ndarray]], float]) -> tuple[list[float], list[float]]:
    """A number of each Dirichlet draw, ours and theirs."""
    ours = [partition.dirichlet(LABELS, CLIENTS, alpha=0.5, seed=seed) for seed in range(DRAWS)]
    theirs = _dirichlet(alpha=0.5, min_partition_size=0)
    return list(map(of, ours)), list(map(of, theirs))


@case(
    "flwr_datasets.partitioner.DirichletPartitioner",
    partition.dirichlet,
    " - rng.standard_exponential(shape) / alpha",
    "",
    within=partition.log_dirichlet,
    tolerance=ALIKE,
    measure=distance,
    note=BY_TEST.format("the first client's size"),
)
def dirichlet() -> tuple[Any, Any]:
    """Dirichlet draw of each class over clients, sizes."""
    return _measured(lambda parts: len(parts[0]))


@case(
    "flwr_datasets.partitioner.DirichletPartitioner",
    partition.dirichlet,
    "len(members), num_clients)",
    "1, num_clients).repeat(len(members), axis=0)",
    tolerance=ALIKE,
    measure=distance,
    note=BY_TEST.format("the share of the first client's most frequent class"),
)
def dirichlet_classes() -> tuple[Any, Any]:
    """Dirichlet draw of each class over clients, classes."""
    return _measured(largest_share)


@case(
    "flwr_datasets.partitioner.DirichletPartitioner",
    partition.dirichlet_min,
    "len(labels) / num_clients",
    "len(labels)",
    tolerance=ALIKE,
    measure=distance,
    note=BY_TEST.format("the largest client's size"),
)
def dirichlet_min() -> tuple[Any, Any]:
    """Dirichlet draw that gives a full client no further class."""
    ours = [partition.dirichlet_min(LABELS, CLIENTS, alpha=0.5, min_size=5, seed=seed) for seed in range(DRAWS)]
    theirs = _dirichlet(alpha=0.5, min_partition_size=5, self_balancing=True)
    return [max(map(len, parts)) for parts in ours], [max(map(len, parts)) for parts in theirs]


@case("flwr_datasets.partitioner.IidPartitioner", partition.iid, "// num_clients +", "// (num_clients + 1) +")
def iid(IidPartitioner: Any) -> tuple[Any, Any]:
    """Equal parts: the clients' sizes."""
    parts = partition.iid(LABELS, CLIENTS, seed=0)
    return np.array(list(map(len, parts))), np.array(list(map(len, divided(IidPartitioner(CLIENTS)))))


@case(
    "flwr_datasets.metrics.compute_counts", heterogeneity.counts, "+ np.searchsorted(distinct, labels[few.indices])", ""
)
def counts(compute_counts: Any) -> tuple[Any, Any]:
    """Images of each class on each client."""
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(CLIENTS, "label", alpha=0.5, min_partition_size=0)
    parts = divided(partitioner)
    return heterogeneity.counts(LABELS, parts), compute_counts(partitioner, "label")[list(range(CLASSES))].to_numpy()
