"""Heterogeneity of a partition: statistics over its clients, and a bubble chart."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from datamodules.parts import Parts, sizes_of

MAX_CLIENTS = 100
"""Largest number of clients in a chart: with more it would be unreadable and take minutes."""


def counts(labels: np.ndarray, partition: Sequence[np.ndarray]) -> np.ndarray:
    """Examples `[K, C]` of each class on each client; classes are the distinct values of `labels: [N]`, in order.

    >>> counts(np.array([0, 0, 1, 1]), [np.array([0, 1]), np.array([2, 3])])
    array([[2, 0],
           [0, 2]], dtype=int32)
    """
    distinct = np.unique(labels)
    width, counted = len(distinct), []
    for few in Parts(partition).blocks():
        cells = few.holders * width + np.searchsorted(distinct, labels[few.indices])
        counted.append(np.bincount(cells, minlength=len(few) * width).reshape(-1, width).astype(np.int32))
    return np.concatenate(counted)


def report(labels: np.ndarray, partition: Sequence[np.ndarray]) -> dict[str, float]:
    """Classes per client by the two definitions of Orchestra's Table 4 (ICML 2022), and client sizes in examples.

    `classes` and `classes_1pct` are means over clients: a class is on a client that has at least one example of it,
    or of whose examples it makes up at least 1 %. A client without examples has no class.

    >>> report(np.array([0, 0, 1, 1]), [np.array([0, 1]), np.array([2, 3])])
    {'classes': 1.0, 'classes_1pct': 1.0, 'size_min': 2.0, 'size_median': 2.0, 'size_max': 2.0}
    """
    examples = counts(labels, partition)
    sizes = examples.sum(axis=1)
    return {
        "classes": float((examples > 0).sum(axis=1).mean()),
        # in integers: 7 of 700 examples are 1 %, whatever 0.01 * 700 rounds to
        "classes_1pct": float(((examples > 0) & (np.int64(100) * examples >= sizes[:, None])).sum(axis=1).mean()),
        "size_min": float(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": float(sizes.max()),
    }


def bubble_chart(
    labels: np.ndarray,
    partition: Sequence[np.ndarray],
    path: str | Path,
    classes: Sequence[str],
    names: Sequence[str] = (),
    spelt: Callable[[str], str] = str,
) -> None:
    """Write the partition as a PNG: clients across, classes up, a bubble's area the number of examples.

    The largest bubble fills its cell, as in FLESD's Figure 2; `classes` are names for the class axis. At most
    `MAX_CLIENTS` clients are drawn; the numbers in the title are of all clients. names: of the clients, if they have
    some; without classes all images are one. spelt: the text of a name.
    """
    from matplotlib.figure import Figure

    examples = counts(labels, list(islice(partition, MAX_CLIENTS)))
    clients, num_classes = examples.shape
    cell = float(np.clip(12 / max(examples.shape), 0.14, 0.45))  # inches
    named, rows = list(map(spelt, names[:clients])), list(map(spelt, classes or ["all"]))
    below = 0.1 + 0.07 * max(map(len, named)) if named else 0.0  # inches that upright names need
    beside = 0.5 + 0.07 * max(map(len, rows))
    width = max(4.0, cell * clients + 1 + beside)
    figure = Figure(figsize=(width, cell * num_classes + 1.5 + below), layout="constrained")
    axes = figure.add_subplot()
    client, label = np.nonzero(examples)
    diameter = 72 * cell  # points
    axes.scatter(client, label, s=diameter**2 * examples[client, label] / examples.max(), linewidths=0, alpha=0.8)
    axes.set(xlim=(-0.7, clients - 0.3), ylim=(-0.7, num_classes - 0.3), aspect="equal", xlabel="client")
    step_x, step_y = (max(1, round(0.2 / cell * digits)) for digits in (1.5, 1.0))
    mixed = "{classes:.1f} classes a client, {classes_1pct:.1f} of at least 1 %\n" if classes else ""
    if names:
        step_x = max(1, round(0.15 / cell))
        axes.set_xticks(range(0, clients, step_x), named[::step_x], rotation=90)
    else:
        axes.set_xticks(range(0, clients, step_x))
    axes.set_yticks(range(0, num_classes, step_y), rows[::step_y])
    axes.set_ylabel("class")
    numbers = report(labels, partition)
    drawn = f"the first {MAX_CLIENTS} of {len(partition):,} clients; " if len(partition) > MAX_CLIENTS else ""
    total = int(sizes_of(partition).sum())
    axes.set_title(
        f"{drawn}{total:,} examples; {numbers['size_min']:,.0f} to {numbers['size_max']:,.0f} a client\n"
        f"{mixed.format(**numbers)}"
        f"the largest bubble is {examples.max():,}",
        fontsize=9,
    )
    axes.tick_params(labelsize=8, length=2)
    axes.grid(color="0.93", linewidth=0.5)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=120, format="png")
