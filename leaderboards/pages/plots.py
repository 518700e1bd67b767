"""Figures of the pages: one dot plot for each scenario, and the curves over rounds that `comparisons.yaml` lists.

The same records give the same bytes.
"""

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from leaderboards.comparisons import COMPARISONS
from leaderboards.labels import short
from leaderboards.markdown import rank_of, seeds_phrase, with_spread
from leaderboards.palette import GREY, LIGHT, looks
from leaderboards.rank import FLOOR, HEADLINE, Cell, Row, fitted, runs
from leaderboards.schema import Record
from leaderboards.significance import Fit
from leaderboards.sources import row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, BAND, GRID = "#222222", "#f1f1ee", "#e4e4e0"
BLUE = LIGHT[0]
LABEL = 8
"""Font size of the label of a line or a dot, in points."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "leaderboards",  # ids of elements, and with them the bytes, depend on the content only
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}
X_AXES = {
    "round": ("round", 1),
    "bytes": ("GB up and down, all clients", 1e9),
    "seconds": ("hours of training", 3600),
}
"""Key of a curve's points that may be the x axis -> its label and unit."""

NAME, TITLE = 50, 60
"""Most letters of a row's name, and of a scenario's."""

Curve = list[dict[str, float]]
"""What the monitor measured in one run: one point for each evaluated round."""


def save(draw: Callable[[], "Figure"], path: str | Path) -> None:
    """Writes a figure as SVG; its bytes depend on nothing but what is drawn."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # settings of the user's machine have no effect
        matplotlib.rcParams.update(STYLE)
        # a record may have such numbers of rounds that their ticks leave the axes no room
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        draw().savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def panels(width: float, height: float, count: int = 1) -> "tuple[Figure, list[Axes]]":
    """A figure of this size in inches, and its axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    every = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in every:
        axes.spines[["right", "top"]].set_visible(False)
    return figure, every


def logarithmic(axes: "Axes") -> None:
    """Makes the x axis one of orders of magnitude."""
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")  # powers need mathematical text, which STYLE turns off
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_headline(rows: Sequence[Row], scenario: str) -> "Figure":
    """The headline of a board as a dot plot.

    A dot is a seed, a tick the mean of several seeds, a bar one standard deviation to either side, the dashed line the
    untrained encoder. A band is behind the rows that no other is known to be better than; the line above the rows is as
    long as the difference that tells two of them apart, by the median of all pairs.
    """
    rows = [row for row in rows if HEADLINE in row.cells]
    ranked = [row for row in rows if row.row != FLOOR]
    figure, (axes,) = panels(7.2, 1.1 + 0.3 * max(len(ranked), 1))
    for y, row in enumerate(ranked):
        if row.rank and row.rank[0] == 1:
            axes.axhspan(y - 0.5, y + 0.5, color=BAND, linewidth=0, zorder=0)
        _dots(axes, y, row.cells[HEADLINE], list(row.headline.values()))
        axes.text(1.02, y, rank_of(row), transform=axes.get_yaxis_transform(), va="center")
    for row in rows[len(ranked) :]:
        _floor(axes, row.cells[HEADLINE].mean)
    _scale(figure, axes, fitted(rows))
    axes.set_yticks(range(len(ranked)), [short(row_name(row), NAME) for row in ranked])
    axes.set_ylim(max(len(ranked), 1) - 0.4, -0.6)  # the best row on top
    axes.set_xlabel(f"{HEADLINE} after the last round (%)")
    axes.set_title(short(scenario, TITLE), loc="left", fontsize=10, fontweight="bold", pad=25)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _dots(axes: "Axes", y: int, cell: Cell, sample: Sequence[float]) -> None:
    if cell.spread is not None:
        ends = [cell.mean - cell.spread, cell.mean + cell.spread]
        axes.plot(ends, [y, y], color=BLUE, linewidth=5, alpha=0.25, solid_capstyle="butt")
        axes.plot(cell.mean, y, "|", color=INK, markersize=11, markeredgewidth=1.6)
    axes.plot(sample, [y] * len(sample), "o", color=BLUE, markersize=4, markeredgewidth=0, alpha=0.75)
    axes.text(1.17, y, with_spread(cell, 1), transform=axes.get_yaxis_transform(), va="center")


def _floor(axes: "Axes", mean: float) -> None:
    axes.axvline(mean, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
    text, up = f"{FLOOR} {mean:.1f}", axes.get_xaxis_transform()
    offset: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(text, (mean, 1), xycoords=up, **offset, ha="center", color=GREY, fontsize=8)


def _scale(figure: "Figure", axes: "Axes", compared: Fit | None) -> None:
    """A line above the rows, as long as the difference that tells half of the pairs apart."""
    if compared is None:
        return
    from matplotlib.transforms import offset_copy

    margin, right = compared.margin_range[1], axes.get_xlim()[1]
    above = offset_copy(axes.get_xaxis_transform(), figure, y=16, units="points")
    axes.plot([right - margin, right], [1, 1], transform=above, color=INK, linewidth=1, marker="|", clip_on=False)
    text = f"{margin:.1f} points tell two rows apart, by the median of all pairs "
    axes.text(right - margin, 1, text, transform=above, ha="right", va="center", fontsize=8)


def curve_figures(records: Sequence[Record]) -> dict[str, Callable[[], "Figure"]]:
    """File name -> function that draws the figure, for the figures of which at least two rows have curves."""
    figures: dict[str, Callable[[], Figure]] = {}
    for spec in COMPARISONS["figures"]:
        groups = runs(records, spec["scenario"])
        every = {row: [record.get("curve", []) for record in groups.get(row, [])] for row in spec["rows"]}
        drawn = {
            row: [seed for seed in seeds if any(metric in point for point in seed for metric in spec["metrics"])]
            for row, seeds in every.items()
        }
        curves = {row: seeds for row, seeds in drawn.items() if seeds}  # old records have no curves
        if len(curves) > 1:
            figures[spec["file"]] = partial(_draw_curves, curves, spec)
    return figures


def mean_and_spread(
    curves: Sequence[Sequence[Mapping[str, float]]], metric: str, x_axis: str = "round"
) -> list[tuple[float, float, float]]:
    """(x, mean, standard deviation) over seeds, for the rounds that every seed has; the deviation of one seed is 0.

    x_axis: "round", or "bytes" or "seconds": their mean up to that round.
    """
    points = [{point["round"]: point for point in curve if metric in point} for curve in curves]
    means = []
    for round in sorted(set.intersection(*map(set, points))):
        cell = Cell.of([seed[round][metric] for seed in points])
        means.append((fmean(seed[round][x_axis] for seed in points), cell.mean, cell.spread or 0.0))
    return means


End = tuple[str, float, float, str]
"""Name, x, y and colour of the end of a line."""


def label_ends(axes: "Axes", ends: Sequence[End]) -> None:
    """Names beside the axes, joined to the ends of their lines and apart from each other; call it last.

    The names are in ink: not all hues have the contrast of text.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    lines = max((name.count("\n") + 1 for name, *_ in ends), default=1)
    gap = 1.5 * LABEL * lines / (figure.get_figheight() * 72 * 0.72)  # titles and ticks take the rest of the height
    axes.autoscale_view()  # else the limits may be those of empty axes still
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for _, x, y, _ in ends]
    for (name, x, y, colour), height in zip(ends, spread_labels(heights, gap), strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 1, "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)}
        at: dict[str, Any] = {"xytext": (1.05, height), "textcoords": "axes fraction", "arrowprops": leader}
        axes.annotate(name, (x, y), **at, va="center", fontsize=LABEL, annotation_clip=False)


def spread_labels(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved apart until neighbours are at least `gap` from each other, in their order."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    groups: list[tuple[float, list[int]]] = []  # centre, members
    for index in order:
        groups.append((heights[index], [index]))
        while len(groups) > 1:
            (below, lower), (above, upper) = groups[-2:]
            if above - below >= gap * (len(lower) + len(upper)) / 2:
                break
            members = [*lower, *upper]
            groups[-2:] = [(sum(heights[member] for member in members) / len(members), members)]
    moved = list(heights)
    for centre, members in groups:
        for position, member in enumerate(members):
            moved[member] = centre + gap * (position - (len(members) - 1) / 2)
    return moved


def _draw_curves(curves: Mapping[str, list[Curve]], spec: Mapping[str, Any]) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    metrics, key = spec["metrics"], spec.get("against", "round")
    label, unit = X_AXES[key]
    figure, every = panels(max(6.4, 3.6 * len(metrics) + 1.2), 3.4, len(metrics))
    for axes, (metric, title) in zip(every, metrics.items(), strict=True):
        ends: list[End] = []
        for (row, seeds), (colour, dash, _) in zip(curves.items(), looks(curves), strict=True):
            points = mean_and_spread(seeds, metric, key)
            x = [x / unit for x, _, _ in points]
            axes.plot(x, [mean for _, mean, _ in points], color=colour, linestyle=dash, linewidth=1.6, label=row)
            low, high = ([mean + sign * spread for _, mean, spread in points] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
            ends += [(short(row, NAME), x[-1], points[-1][1], colour)] if points else []
        axes.set_xlabel(label)
        if key == "bytes":  # methods differ by orders of magnitude
            logarithmic(axes)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(title, loc="left", fontsize=9)
        label_ends(axes, ends)
    count = seeds_phrase(map(len, curves.values()))
    shown = count if count == "one seed" else f"mean and spread of {count}"
    caption = f"{spec['title']} ({short(spec['scenario'], TITLE)}, {shown})"
    figure.suptitle(textwrap.fill(caption, int(14 * figure.get_figwidth())), fontsize=10)
    return figure
