"""One figure of pools of runs: their curves over rounds and their accuracies, each labelled where it is drawn."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmark.tracking.axes import GREY, whole_numbers
from benchmark.tracking.comparison import MONITORS, Pool, monitored
from eval.official import PROTOCOLS
from leaderboards.encoders import WORST, mean_of
from leaderboards.labels import short
from leaderboards.markdown import with_spread
from leaderboards.pages.plots import INK, STYLE, spread_labels
from leaderboards.palette import DASHES, LIGHT, MARKERS, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = "#e6e6e3"
OWN_STYLE = STYLE | dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY)
OWN_STYLE |= {"pdf.fonttype": 42}  # text as TrueType: publishers refuse matplotlib's usual Type 3
ENDINGS: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""Ending of a file -> its metadata: without dates, the same runs give the same bytes."""
MOST_PROTOCOLS = 3
"""Most protocols whose accuracy is drawn; the table has all."""
NAME = 34
"""Most letters of a pool's name."""
LABEL = 0.052
"""Least distance of two labels, over the height of the axes."""
Curve = Mapping[int, Sequence[float]]
"""Round -> a value for each seed."""


def draw(pools: Sequence[Pool], labels: Sequence[str], path: Path) -> None:
    """Draw loss and monitor over rounds and the accuracies of the pools, as far as any run has them.

    Lines and points are means over seeds, bands and bars go from the lowest of them to the highest.

    Args:
        path: of the PNG; the same as PDF and SVG is written beside it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    runs = [run for pool in pools for run in pool.runs]
    labels, key = [short(label, NAME) for label in labels], monitored(runs)
    of_the_monitor = "kNN accuracy (%)" if key == "monitor" else MONITORS[key]
    curves: dict[str, Sequence[Curve]] = {
        "mean local loss\n(comparable within one objective)": [pool.curve("loss") for pool in pools],
        f"monitor: {of_the_monitor}": [pool.curve(key) for pool in pools],
    }
    drawn = {label: values for label, values in curves.items() if any(values)}
    measured = {protocol for run in runs for protocol, metrics in run.scores.items() if "accuracy" in metrics}
    protocols = [known for known in PROTOCOLS if known in measured][:MOST_PROTOCOLS]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # settings of the user's machine have no effect
        matplotlib.rcParams.update(OWN_STYLE)
        height = max(3.4, 0.28 * len(pools) + 1.4, 0.24 * len(protocols) * (len(pools) + 1) + 1)
        widths = [4.4] * len(drawn) + [4.0] * bool(protocols)
        figure = Figure(figsize=(sum(widths) or 4, height), layout="constrained")
        axes = list(figure.subplots(1, max(1, len(widths)), squeeze=False, width_ratios=widths or [1])[0])
        for each in axes:
            each.spines[["top", "right"]].set_visible(False)
            each.set_axisbelow(True)
        for each, (label, values) in zip(axes, drawn.items(), strict=False):
            _draw_curves(each, values, labels, looks(pools), label)
        if protocols:
            _draw_accuracies(axes[-1], protocols, pools, labels)
        if not widths:
            axes[0].set_axis_off()
            axes[0].text(0.5, 0.5, "no run has a finished round or a score", ha="center", color=GREY)
        elif len(pools) < len(runs):
            figure.supxlabel("lines and points: means over seeds; bands and bars: their range", fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        for ending, metadata in ENDINGS.items():
            figure.savefig(path.with_suffix(ending), dpi=150, metadata=metadata)
            figure.set_layout_engine("none")  # all files have the places that were found for the first


def looks(pools: Sequence[Pool]) -> list[Look]:
    """A colour for each row, in their order so that no two of seven are alike; pools of one row differ in the dash.

    Where all are of one row, as in several scenarios, each pool has a colour.
    """
    rows = [pool.config.row for pool in pools]
    rows = rows if len(set(rows)) > 1 else [str(pool) for pool in range(len(pools))]
    order, seen, result = list(dict.fromkeys(rows)), Counter[str](), list[Look]()
    for row in rows:
        place = order.index(row)
        cue = place // len(LIGHT) + seen[row]
        seen[row] += 1
        result.append(Look(LIGHT[place % len(LIGHT)], DASHES[cue % len(DASHES)], MARKERS[cue % len(MARKERS)]))
    return result


def _draw_curves(
    axes: "Axes", curves: Sequence[Curve], labels: Sequence[str], styles: Sequence[Look], ylabel: str
) -> None:
    """Means over rounds with their bands, each with its pool's name at its end."""
    means = [{round: fmean(seeds) for round, seeds in values.items()} for values in curves]
    for values, mean, (colour, dash, marker) in zip(curves, means, styles, strict=True):
        axes.plot(list(mean), list(mean.values()), linestyle=dash, color=colour, linewidth=1.6)
        if any(len(seeds) > 1 for seeds in values.values()):
            lowest, highest = ([end(seeds) for seeds in values.values()] for end in (min, max))
            axes.fill_between(list(values), lowest, highest, color=colour, alpha=0.15, linewidth=0)
            if len(values) == 1:  # a band has no width there
                axes.vlines(list(values), lowest, highest, color=colour, alpha=0.3, linewidth=5)
        if mean:
            axes.plot(max(mean), mean[max(mean)], marker, color=colour, markersize=4)
    last = max(max(values) for values in curves if values)
    first = min(min(values) for values in curves if values)
    axes.set_xlim(first - 0.02 * max(last - first, 1), last + 0.02 * max(last - first, 1))
    axes.margins(y=0.06)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    whole_numbers(axes.xaxis)
    axes.set(xlabel="round", ylabel=ylabel)
    low, high = axes.get_ylim()
    ends = {pool: (mean[max(mean)] - low) / (high - low) for pool, mean in enumerate(means) if mean}
    for pool, height in zip(ends, spread_labels(list(ends.values()), LABEL), strict=True):
        text, colour = labels[pool], styles[pool].colour
        at = (max(means[pool]), means[pool][max(means[pool])])
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text, at, xytext=(1.04, height), textcoords="axes fraction", va="center", color=colour, arrowprops=line
        )


def _draw_accuracies(axes: "Axes", protocols: Sequence[str], pools: Sequence[Pool], labels: Sequence[str]) -> None:
    """A row of points for each pool under each protocol, with its value; of several encoders the worst one's too."""
    styles, positions, every, y = looks(pools), list[int](), list[float](), 0
    for protocol in protocols:
        axes.text(0, y, protocol, transform=axes.get_yaxis_transform(), va="center", weight="bold")
        cells = [pool.cell(protocol, "accuracy") for pool in pools]
        best = max(cell.mean for cell in cells if cell is not None)
        for pool, cell, (colour, _, marker) in zip(pools, cells, styles, strict=True):
            y += 1
            positions.append(y)
            axes.axhline(y, color=GRID, linewidth=0.8)
            text = "not measured" if cell is None else with_spread(cell, 1)
            if (lowest := pool.cell(protocol, f"accuracy{WORST}")) is not None:
                text = f"{text}, worst {lowest.mean:.1f}"
            weight = "normal"
            if cell is not None:
                weight = "bold" if cell.mean == best and len(pools) > 1 else weight
                seeds = [value for run in pool.runs if (value := run.score(protocol, "accuracy")) is not None]
                axes.plot([min(seeds), max(seeds)], [y, y], color=colour, alpha=0.3, linewidth=5, solid_capstyle="butt")
                axes.plot(cell.mean, y, marker, color=colour, markersize=6)
                every += seeds
            axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", color=INK, weight=weight)
        y += 1
    margin = max(1.0, 0.12 * (max(every) - min(every)))
    means = [mean_of(pool.encoders) for pool in pools]  # what an accuracy is, below the name
    named = [f"{label}\n{mean}" if mean else label for label, mean in zip(labels, means, strict=True)]
    axes.set_yticks(positions, named * len(protocols))
    for tick, look in zip(axes.get_yticklabels(), styles * len(protocols), strict=True):
        tick.set_color(look.colour)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlim=(min(every) - margin, max(every) + margin), ylim=(y - 0.4, -0.6), xlabel="accuracy on test (%)")
