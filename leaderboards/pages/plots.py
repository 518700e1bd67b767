"""Pictures for the pages: the same records give the same bytes."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leaderboards.markdown import rank_of, with_spread
from leaderboards.rank import FLOOR, HEADLINE, Cell, Row, board, runs, values
from leaderboards.schema import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, INK, GREY, BAND = "#3b6ea8", "#222222", "#777777", "#f1f1ee"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "leaderboards",  # element ids, and with them the bytes, depend on the content only
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


def save(draw: Callable[[], "Figure"], path: str | Path) -> None:
    """An SVG whose bytes depend on what is drawn alone."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the reader's own settings must not show
        matplotlib.rcParams.update(STYLE)
        draw().savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def headline(records: Sequence[Record], scenario: str, path: str | Path) -> None:
    """Write the headline of a scenario as an SVG dot plot; the same records give the same bytes.

    A dot is a seed, a tick the mean of several, a bar one spread to either side, a band a group of tied rows, the
    dashed line the floor.
    """
    save(lambda: _draw(records, scenario), path)


def _draw(records: Sequence[Record], scenario: str) -> "Figure":
    from matplotlib.figure import Figure

    rows = [row for row in board(records, scenario) if HEADLINE in row.cells]
    samples = {name: values(group, HEADLINE) for name, group in runs(records, scenario).items()}
    shown = [row for row in rows if row.row != FLOOR]
    picture = Figure(figsize=(7.2, 1.1 + 0.3 * max(len(shown), 1)), layout="constrained")
    axes = picture.add_subplot()
    _bands(axes, shown)
    for place, row in enumerate(shown):
        _dots(axes, place, row.cells[HEADLINE], samples[row.row])
        axes.text(1.02, place, rank_of(row), transform=axes.get_yaxis_transform(), va="center")
    for row in rows[len(shown) :]:
        _floor(axes, row.cells[HEADLINE].mean)
    _frame(axes, [row.row for row in shown], scenario)
    return picture


def _dots(axes: "Axes", place: int, cell: Cell, sample: Sequence[float]) -> None:
    if cell.spread is not None:
        ends = [cell.mean - cell.spread, cell.mean + cell.spread]
        axes.plot(ends, [place, place], color=BLUE, linewidth=5, alpha=0.25, solid_capstyle="butt")
        axes.plot(cell.mean, place, "|", color=INK, markersize=11, markeredgewidth=1.6)
    axes.plot(sample, [place] * len(sample), "o", color=BLUE, markersize=4, markeredgewidth=0, alpha=0.75)
    axes.text(1.095, place, with_spread(cell, 1), transform=axes.get_yaxis_transform(), va="center")


def _floor(axes: "Axes", mean: float) -> None:
    axes.axvline(mean, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"{FLOOR} {mean:.1f}",
        xy=(mean, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        color=GREY,
        fontsize=8,
    )


def _bands(axes: "Axes", rows: Sequence[Row]) -> None:
    """A band behind each group of tied rows."""
    for rank, group in groupby(rows, key=lambda row: row.rank):
        size = len(list(group))
        if rank is not None and size > 1:
            axes.axhspan(rank - 1.44, rank - 1.56 + size, color=BAND, linewidth=0, zorder=0)


def _frame(axes: "Axes", names: Sequence[str], scenario: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)  # best on top
    axes.set_xlabel(f"{HEADLINE} after the last round (%)")
    axes.set_title(scenario, loc="left", fontsize=10, fontweight="bold", pad=16)
    axes.grid(axis="x", color="#e4e4e0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
