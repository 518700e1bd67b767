"""One figure of several runs: their curves over rounds and their accuracies, each labelled where it is drawn."""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.tracking.comparison import MONITORS, RunContent, monitored
from benchmark.tracking.plots import GREY, whole_numbers
from eval.protocol import PROTOCOLS
from leaderboards.encoders import WORST, mean_of
from leaderboards.labels import short
from leaderboards.pages.plots import INK, STYLE, spread_labels
from leaderboards.palette import DASHES, LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = "#e6e6e3"
OWN_STYLE = STYLE | dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY)
MOST_PROTOCOLS = 3
"""Most protocols whose accuracy is drawn; the table has all."""
NAME = 34
"""Most letters of a run's name."""
LABEL = 0.052
"""Least distance of two labels, over the height of the axes."""


def draw(runs: Sequence[RunContent], labels: Sequence[str], path: Path) -> None:
    """Draw loss and monitor over rounds and the accuracies of the runs, as far as any run has them."""
    import matplotlib
    from matplotlib.figure import Figure

    labels, key = [short(label, NAME) for label in labels], monitored(runs)
    losses = [{line["round"]: line["loss"] for line in run.history if line.get("loss") is not None} for run in runs]
    of_the_monitor = "kNN accuracy (%)" if key == "monitor" else MONITORS[key]
    curves: dict[str, Sequence[Mapping[int, float]]] = {
        "mean local loss\n(comparable within one objective)": losses,
        f"monitor: {of_the_monitor}": [run.monitor(key) for run in runs],
    }
    drawn = {label: values for label, values in curves.items() if any(values)}
    measured = {protocol for run in runs for protocol, metrics in run.scores.items() if "accuracy" in metrics}
    protocols = [known for known in PROTOCOLS if known in measured][:MOST_PROTOCOLS]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # settings of the user's machine have no effect
        matplotlib.rcParams.update(OWN_STYLE)
        height = max(3.4, 0.28 * len(runs) + 1.4, 0.24 * len(protocols) * (len(runs) + 1) + 1)
        widths = [4.4] * len(drawn) + [4.0] * bool(protocols)
        figure = Figure(figsize=(sum(widths) or 4, height), layout="constrained")
        axes = list(figure.subplots(1, max(1, len(widths)), squeeze=False, width_ratios=widths or [1])[0])
        for each in axes:
            each.spines[["top", "right"]].set_visible(False)
            each.set_axisbelow(True)
        for each, (label, values) in zip(axes, drawn.items(), strict=False):
            _draw_curves(each, values, labels, label)
        if protocols:
            _draw_accuracies(axes[-1], protocols, runs, labels)
        if not widths:
            axes[0].set_axis_off()
            axes[0].text(0.5, 0.5, "no run has a finished round or a score", ha="center", color=GREY)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _styles(count: int) -> list[tuple[str, Any]]:
    """A colour and a line style for each run: several may be of one row, so that colours go by their order."""
    return list(islice(cycle((colour, style) for style in DASHES for colour in LIGHT), count))


def _draw_curves(axes: "Axes", curves: Sequence[Mapping[int, float]], labels: Sequence[str], ylabel: str) -> None:
    """Lines over rounds, each with its run's name at its end."""
    styles = _styles(len(curves))
    for values, (colour, style) in zip(curves, styles, strict=True):
        axes.plot(list(values), list(values.values()), linestyle=style, color=colour, linewidth=1.6)
        if values:
            axes.plot(max(values), values[max(values)], "o", color=colour, markersize=4)
    last = max(max(values) for values in curves if values)
    first = min(min(values) for values in curves if values)
    axes.set_xlim(first - 0.02 * max(last - first, 1), last + 0.02 * max(last - first, 1))
    axes.margins(y=0.06)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    whole_numbers(axes.xaxis)
    axes.set(xlabel="round", ylabel=ylabel)
    low, high = axes.get_ylim()
    ends = {run: (values[max(values)] - low) / (high - low) for run, values in enumerate(curves) if values}
    for run, height in zip(ends, spread_labels(list(ends.values()), LABEL), strict=True):
        text, (colour, _) = labels[run], styles[run]
        at = (max(curves[run]), curves[run][max(curves[run])])
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text, at, xytext=(1.04, height), textcoords="axes fraction", va="center", color=colour, arrowprops=line
        )


def _draw_accuracies(axes: "Axes", protocols: Sequence[str], runs: Sequence[RunContent], labels: Sequence[str]) -> None:
    """A row of points for each run under each protocol, with its value; of several encoders the worst one's too."""
    styles, positions, y = _styles(len(runs)), list[int](), 0
    values = {protocol: [run.score(protocol, "accuracy") for run in runs] for protocol in protocols}
    every = [value for row in values.values() for value in row if value is not None]
    margin = max(1.0, 0.12 * (max(every) - min(every)))
    for protocol, row in values.items():
        axes.text(0, y, protocol, transform=axes.get_yaxis_transform(), va="center", weight="bold")
        best = max(value for value in row if value is not None)
        for run, value, (colour, _) in zip(runs, row, styles, strict=True):
            y += 1
            positions.append(y)
            axes.axhline(y, color=GRID, linewidth=0.8)
            text = "not measured" if value is None else f"{value:.1f}"
            if (lowest := run.score(protocol, f"accuracy{WORST}")) is not None:
                text = f"{text}, worst {lowest:.1f}"
            weight = "bold" if value == best and len(row) > 1 else "normal"
            if value is not None:
                axes.plot(value, y, "o", color=colour, markersize=6)
            axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", color=INK, weight=weight)
        y += 1
    means = [mean_of(run.encoders) for run in runs]  # what an accuracy is, below the name
    named = [f"{label}\n{mean}" if mean else label for label, mean in zip(labels, means, strict=True)]
    axes.set_yticks(positions, named * len(protocols))
    for tick, (colour, _) in zip(axes.get_yticklabels(), styles * len(protocols), strict=True):
        tick.set_color(colour)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlim=(min(every) - margin, max(every) + margin), ylim=(y - 0.4, -0.6), xlabel="accuracy on test (%)")
