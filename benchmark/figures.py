"""Pictures of a run."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def curves(history: list[dict[str, Any]], path: Path, title: str) -> None:
    """Loss, and the monitor where it looked, over rounds."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    figure.suptitle(title, fontsize=10)
    left, right = figure.subplots(1, 2)
    rounds = [row["round"] for row in history]
    left.plot(rounds, [row["loss"] if row["loss"] is not None else float("nan") for row in history], color="#2f6f9f")
    left.set(xlabel="round", ylabel="mean local loss")
    watched = [(row["round"], row["monitor"]) for row in history if "monitor" in row]
    right.plot(*zip(*watched, strict=True) if watched else ([], []), "o-", markersize=3, color="#b5562b")
    right.set(xlabel="round", ylabel="monitor: kNN on held-out train, %")
    low, high = right.get_ylim()
    if (missing := 5 - (high - low)) > 0:  # a wobble of half a point should look like one
        right.set_ylim(low - missing / 2, high + missing / 2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=120)
