"""Pictures of a run."""

import textwrap
from pathlib import Path
from typing import Any


def curves(history: list[dict[str, Any]], path: Path, title: str) -> None:
    """Loss, and the monitor where it looked, over rounds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 3), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, 90)), fontsize=10)
    left, right = figure.subplots(1, 2)
    rounds = [row["round"] for row in history]
    losses = [row["loss"] if row["loss"] is not None else float("nan") for row in history]
    left.plot(rounds, losses, "o-", markersize=3, color="#2f6f9f")
    left.set(xlabel="round", ylabel="mean local loss")
    watched = [(row["round"], row["monitor"]) for row in history if "monitor" in row]
    right.plot(*zip(*watched, strict=True) if watched else ([], []), "o-", markersize=3, color="#b5562b")
    right.set(xlabel="round", ylabel="monitor (kNN, %)")
    low, high = right.get_ylim()
    if (missing := 5 - (high - low)) > 0:  # a wobble of half a point should look like one
        right.set_ylim(low - missing / 2, high + missing / 2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(min(rounds, default=1) - 0.5, max(rounds, default=1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if not axes.lines[0].get_xdata().size:
            axes.text(
                0.5,
                0.5,
                "not monitored" if history else "no round was played",
                transform=axes.transAxes,
                ha="center",
                color="#777777",
            )
    figure.savefig(path, dpi=120)
