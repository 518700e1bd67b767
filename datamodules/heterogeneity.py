"""How unlike each other the clients of a partition are: in numbers, and as a picture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

SHOWN = 100
"""Clients in a picture, at most: more would be a picture of nothing, and take minutes."""


def counts(labels: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Examples `[K, C]` of each class on each client; classes are the distinct values of `labels: [N]`, in order."""
    distinct, position = np.unique(labels, return_inverse=True)
    return np.stack([np.bincount(position[part], minlength=len(distinct)) for part in parts])


def report(labels: np.ndarray, parts: Sequence[np.ndarray]) -> dict[str, float]:
    """Classes per client by the two definitions of Orchestra's Table 4 (ICML 2022), and client sizes in examples.

    `classes` and `classes_1pct` are means over clients: a class is on a client that has at least one example of it,
    or of whose examples it makes up at least 1 %. A client without examples has no class.
    """
    held = counts(labels, parts)
    sizes = held.sum(axis=1)
    return {
        "classes": float((held > 0).sum(axis=1).mean()),
        # in integers: 7 of 700 examples are 1 %, whatever 0.01 * 700 rounds to
        "classes_1pct": float(((held > 0) & (100 * held >= sizes[:, None])).sum(axis=1).mean()),
        "size_min": float(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": float(sizes.max()),
    }


def bubble_chart(
    labels: np.ndarray, parts: Sequence[np.ndarray], path: str | Path, classes: tuple[str, ...] | None = None
) -> None:
    """Write the partition as a PNG: clients across, classes up, a bubble's area the number of examples.

    The largest bubble fills its cell, as in FLESD's Figure 2; `classes` are names for the class axis. Of more than
    `SHOWN` clients the first are drawn, and the numbers in the title are of all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = counts(labels, parts)[:SHOWN]
    clients, num_classes = held.shape
    cell = float(np.clip(12 / max(held.shape), 0.14, 0.45))  # inches
    figure = Figure(figsize=(max(4.0, cell * clients + 2), cell * num_classes + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    client, label = np.nonzero(held)
    diameter = 72 * cell  # points
    axes.scatter(client, label, s=diameter**2 * held[client, label] / held.max(), linewidths=0, alpha=0.8)
    axes.set(xlim=(-0.7, clients - 0.3), ylim=(-0.7, num_classes - 0.3), aspect="equal", xlabel="client")
    every = [max(1, round(0.2 / cell * digits)) for digits in (1.5, 1.0)]
    axes.set_xticks(range(0, clients, every[0]))
    names = classes or tuple(str(value) for value in np.unique(labels))
    axes.set_yticks(range(0, num_classes, every[1]), names[:: every[1]])
    axes.set_ylabel("class")
    numbers = report(labels, parts)
    first = f"the first {SHOWN} of {len(parts):,} clients; " if len(parts) > SHOWN else ""
    axes.set_title(
        f"{first}{sum(map(len, parts)):,} examples; {numbers['size_min']:,.0f} to {numbers['size_max']:,.0f} a client\n"
        f"{numbers['classes']:.1f} classes a client, {numbers['classes_1pct']:.1f} of at least 1 %\n"
        f"the largest bubble is {held.max():,}",
        fontsize=9,
    )
    axes.tick_params(labelsize=8, length=2)
    axes.grid(color="0.93", linewidth=0.5)
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=120, format="png")
