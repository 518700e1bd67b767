"""Trade-offs: a row's accuracy against what it costs, with the rows that no other row is cheaper and better than."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from leaderboards.labels import short
from leaderboards.pages.plots import BLUE, GRID, INK, LABEL, logarithmic, panels
from leaderboards.palette import GREY
from leaderboards.rank import HEADLINE, Row
from leaderboards.sources import row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 4
"""Rows that a figure takes at least."""

MARKED = 6
"""Different costs at most that are the marks of a logarithmic axis, whose powers of ten may all lie outside."""

LINE, NAME = 0.075, 32
"""A name's height, as a share of the axes', and its letters at most."""
ROOM = 10
"""Steps at most by which the axes grow upwards, until all names are in them."""


class Cost(NamedTuple):
    """What a row's accuracy costs.

    title, label: of a figure and its axis. of: a row -> its cost; None: it has none. log: whether the axis is.
    """

    title: str
    label: str
    of: Callable[[Row], float | None]
    log: bool = False


def _bytes(row: Row) -> float | None:
    """MB of one visit, both ways."""
    both = (row.bytes_up or 0) + (row.bytes_down or 0)
    return both / 1e6 or None


def _epsilon(row: Row) -> float | None:
    """Epsilon of whole clients' updates; noise on another entry protects that entry alone."""
    return row.epsilon or None if any("by client" in entry for entry in row.covers) else None


def _of_one_guarantee(rows: Sequence[Row]) -> list[Row]:
    """The rows with an epsilon of the most common mechanism and delta: others do not compare."""
    given = [(row.settings.get("privacy.mechanism"), row.delta) for row in rows]
    counted = [guarantee for row, guarantee in zip(rows, given, strict=True) if _epsilon(row) is not None]
    common = max(counted, key=counted.count, default=None)
    return [row for row, guarantee in zip(rows, given, strict=True) if guarantee == common]


def _gflop(row: Row) -> float | None:
    """Of a client in a round; an untrained one has none, and one that holds all images is none of a federation."""
    return row.flops / 1e9 if row.flops and not row.unranked else None


def _memory(row: Row) -> float | None:
    """MB at a client, of the rows with operations."""
    return row.memory / 1e6 if row.memory and _gflop(row) else None


def _membership(row: Row) -> float | None:
    cell = row.cells.get("membership/v1 auc")
    return None if cell is None else cell.mean


COSTS = {
    "bytes": Cost("What a byte buys", "MB a visit, up and down", _bytes, log=True),
    "flops": Cost("What an operation buys", "GFLOP of a client in a round", _gflop, log=True),
    "memory": Cost("What memory buys", "MB at a client at most at once", _memory, log=True),
    "epsilon": Cost("What privacy costs", "epsilon of a client's updates", _epsilon, log=True),
    "membership": Cost("What an attacker learns", "membership AUC (0.5: nothing)", _membership),
}
"""End of a figure's name -> the cost."""

Points = Mapping[str, tuple[float, float]]
"""Row -> cost and mean accuracy in percent."""


def figures(rows: Sequence[Row], scenario: str) -> dict[str, Callable[[], "Figure"]]:
    """End of its name -> function that draws the figure, for the costs that enough rows of a board differ in.

    Controls are left out: their accuracy is not a method's.
    """
    drawn: dict[str, Callable[[], Figure]] = {}
    for name, cost in COSTS.items():
        points = {
            row_name(row): (value, row.cells[HEADLINE].mean)
            for row in (_of_one_guarantee(rows) if name == "epsilon" else rows)
            if HEADLINE in row.cells and not row.control and (value := cost.of(row)) is not None
        }
        if len(points) >= FEWEST and len({value for value, _ in points.values()}) > 1:
            drawn[name] = partial(_draw, points, cost, scenario)
    return drawn


def undominated(points: Points) -> list[str]:
    """The rows that no other is cheaper and better than, cheapest first; by the means, whatever their spread.

    >>> undominated({"a": (1, 40), "b": (2, 50), "c": (2, 45), "d": (3, 50)})
    ['a', 'b']
    """
    found: list[str] = []
    best = float("-inf")
    for row, (_, accuracy) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if accuracy > best:
            found.append(row)
            best = accuracy
    return found


def _draw(points: Points, cost: Cost, scenario: str) -> "Figure":
    front = undominated(points)
    figure, (axes,) = panels(7.2, 3.2)
    others = [point for row, point in points.items() if row not in front]
    axes.plot([x for x, _ in others], [y for _, y in others], "o", color=GREY, markersize=3.5, markeredgewidth=0)
    x, y = ([points[row][index] for row in front] for index in (0, 1))
    axes.step(x, y, where="post", color=BLUE, linewidth=1, alpha=0.6)
    axes.plot(x, y, "o", color=BLUE, markersize=5, markeredgewidth=0)
    axes.margins(x=0.06, y=0.12)
    if cost.log:
        logarithmic(axes)
        _mark(axes, sorted({float(f"{value:.3g}") for value, _ in points.values()}))
    axes.set(xlabel=cost.label, ylabel=f"{HEADLINE} (%)")
    axes.set_title(f"{cost.title} ({scenario})", loc="left", fontsize=10, fontweight="bold", color=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    _name(axes, {row: points[row] for row in front}, cost.log)
    return figure


def _mark(axes: "Axes", costs: Sequence[float]) -> None:
    """Numbers on a logarithmic axis: a few costs that lie apart, or round ones where it has few powers of ten."""
    from matplotlib.ticker import MaxNLocator

    if len(costs) <= MARKED and all(more > 1.3 * less for less, more in pairwise(costs)):  # far enough for numbers
        axes.set_xticks(costs)
    elif costs[-1] < 10 * costs[0]:
        axes.xaxis.set_major_locator(MaxNLocator(MARKED))


def _name(axes: "Axes", front: Points, log: bool) -> None:
    """Names of undominated rows, cheapest first, to their left, where no row is, and moved up until they are apart."""
    (low, high), room = axes.get_xlim(), 0.36
    axes.set_xlim(low * (low / high) ** room if log else low - (high - low) * room, high)
    bottom, top = axes.get_ylim()
    names = list(front)
    line = min(LINE, (1 - LINE) / len(names)) if names else LINE
    for _ in range(ROOM):
        axes.set_ylim(bottom, top)
        to_axes = axes.transData + axes.transAxes.inverted()
        places = [to_axes.transform(front[row]) for row in names]
        heights = list(accumulate((y for _, y in places), lambda below, y: max(y, below + line)))
        if heights[-1] <= 1 - LINE:
            break
        top += (top - bottom) / ROOM
    heights = [min(y, 1 - LINE - line * above) for y, above in zip(heights, range(len(names) - 1, -1, -1), strict=True)]
    for row, (x, _), height in zip(names, places, heights, strict=True):
        leader = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2, "relpos": (1, 0.5)}
        at: dict[str, Any] = {
            "xytext": (x - 0.02, height + LINE / 2),
            "textcoords": "axes fraction",
            "arrowprops": leader,
        }
        axes.annotate(short(row, NAME), front[row], **at, ha="right", va="center", fontsize=LABEL, color=INK)
