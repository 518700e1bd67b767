"""What the monitor saw over rounds, row beside row: the pictures that `comparisons.yaml` asks for."""

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leaderboards.rank import runs
from leaderboards.schema import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPARED: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "comparisons.yaml").read_text(encoding="utf-8"))
AXES = {
    "round": ("round", "round", 1),
    "bytes": ("bytes", "GB up and down, all clients", 1e9),
    "seconds": ("seconds", "hours of training", 3600),
}
"""What a curve may be drawn against: the key of its points, what to call it, the unit."""
COLOURS = ("#777777", "#c9a227", "#5b9e6f", "#3b6ea8", "#b5562b", "#7d5ba6", "#222222")


def curves(records: Sequence[Record]) -> dict[str, Callable[[], "Figure"]]:
    """File name -> what draws it, of those figures whose rows have curves in the records."""
    found: dict[str, Callable[[], Figure]] = {}
    for asked in COMPARED["figures"]:
        held = {row: watched(records, asked["scenario"], row) for row in asked["rows"]}
        held = {row: seeds for row, seeds in held.items() if seeds}
        if len(held) > 1:
            found[asked["file"]] = partial(_draw, held, asked)
    return found


def watched(records: Sequence[Record], scenario: str, row: str) -> list[list[dict[str, float]]]:
    """The curve of every finished seed of a row; none for records that were written before there were curves."""
    return [record["curve"] for record in runs(records, scenario).get(row, []) if record.get("curve")]


def mean_and_spread(
    curves: Sequence[Sequence[Mapping[str, float]]], metric: str, against: str = "round"
) -> list[tuple[float, float, float]]:
    """(place, mean, standard deviation) over seeds, of the rounds that all of them have seen; 0 for one seed.

    against: what the place is: the "round", or the mean "bytes" or "seconds" up to it.
    """
    seen = [{point["round"]: point for point in curve if metric in point} for curve in curves]
    points = []
    for round in sorted(set.intersection(*(set(one) for one in seen))):
        sample = [one[round][metric] for one in seen]
        spread = statistics.stdev(sample) if len(sample) > 1 else 0.0
        points.append((statistics.fmean(one[round][against] for one in seen), statistics.fmean(sample), spread))
    return points


def _draw(held: Mapping[str, list[list[dict[str, float]]]], asked: Mapping[str, Any]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, NullFormatter

    panels = asked["metrics"]
    picture = Figure(figsize=(max(6.4, 3.6 * len(panels) + 1.2), 3.4), layout="constrained")
    for axes, (metric, label) in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        key, name, unit = AXES[asked.get("against", "round")]
        for colour, (row, seeds) in zip(COLOURS, held.items(), strict=False):
            points = mean_and_spread(seeds, metric, key)
            _line(axes, [(place / unit, mean, spread) for place, mean, spread in points], colour, row)
        axes.set_xlabel(name)
        if key == "bytes":  # methods differ by orders of magnitude
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")  # powers would be written as mathematics, which is off
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(label, loc="left", fontsize=9)
        axes.spines[["right", "top"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))  # beside: lines go anywhere
    title = f"{asked['title']} ({asked['scenario']}, {_behind(map(len, held.values()))})"
    picture.suptitle("\n".join(textwrap.wrap(title, int(14 * picture.get_figwidth()))), fontsize=10)
    return picture


def _behind(seeds: Iterable[int]) -> str:
    """What a line is, by the rows' numbers of seeds."""
    fewest, *_, most = sorted(seeds)
    if most == 1:
        return "one seed"
    return f"mean and spread of {most if fewest == most else f'{fewest} to {most}'} seeds"


def _line(axes: "Axes", points: Sequence[tuple[float, float, float]], colour: str, label: str) -> None:
    rounds, means, spreads = zip(*points, strict=True) if points else ((), (), ())
    axes.plot(rounds, means, color=colour, linewidth=1.6, label=label)
    low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
    axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
