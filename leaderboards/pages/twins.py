"""The study of natural clients: how a board orders the rows beside its twins, in tables and a figure for each board."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leaderboards.markdown import replace_between, rewrite, table_lines
from leaderboards.pages.plots import BLUE, GRID, LABEL, panels, save
from leaderboards.palette import GREY
from leaderboards.rank import HEADLINE, board
from leaderboards.schema import Record
from leaderboards.sources import row_name
from leaderboards.twins import Agreement, agreement, moved, natural_twins, worst_served

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "natural.md"
"""In the folder of studies."""
NAMED = 4
"""Rows with the largest differences of places, whose names a figure has."""

Compared = dict[str, dict[str, Agreement]]
"""Scenario of natural clients -> twin -> how they agree."""


def write(records: Sequence[Record], folder: Path) -> None:
    """Fills the page, where it exists, and draws `natural-<scenario>.svg` for each natural board beside it."""
    page = folder / PAGE
    if not page.exists():
        return
    compared = compare(records)
    rewrite(page, partial(replace_between, mark="twins", text="\n".join(lines(records, compared))))
    for scenario, twins in compared.items():
        save(partial(_draw, records, scenario, list(twins)), folder / f"{page.stem}-{scenario}.svg")


def compare(records: Sequence[Record]) -> Compared:
    """Every natural board beside those of its twins that share enough rows with it."""
    found: Compared = {}
    for scenario, twins in natural_twins(records).items():
        pairs = {twin: agreement(records, scenario, twin) for twin in twins}
        found[scenario] = {twin: each for twin, each in pairs.items() if each is not None}
    return {scenario: twins for scenario, twins in found.items() if twins}


def lines(records: Sequence[Record], compared: Compared) -> list[str]:
    """The tables: agreement of boards, the order by mean and by the worst tenth, and every row's places."""
    if not compared:
        return ["No board and its twin have been recorded yet."]
    headings = ("board", "twin", "rows", "tau", "same order", "pairs alike", "reversed")
    pairs = [
        (scenario, twin, len(each.places), *_taus(each), each.alike, len(each.reversed))
        for scenario, twins in compared.items()
        for twin, each in twins.items()
    ]
    found = table_lines(headings, pairs, "llrrrrr")
    for scenario, twins in compared.items():
        found += _of_board(records, scenario, twins)
    return found


def _of_board(records: Sequence[Record], scenario: str, twins: Mapping[str, Agreement]) -> list[str]:
    """What the page says of one natural board."""
    rows, made = board(records, scenario), list[str]()
    names = {row.row: row_name(row) for row in rows}
    if (served := worst_served(rows)) is not None:
        orders = f"tau between the orders by the mean client and by the worst tenth, of {served[2]} rows"
        made += ["", f"`{scenario}`: {orders}: {_with_interval(*served[:2])}."]
    for better, worse in sorted({pair for each in twins.values() for pair in each.reversed}):
        where = ", ".join(twin for twin, each in twins.items() if (better, worse) in each.reversed)
        made += ["", f"`{names[better]}` is better than `{names[worse]}` on {scenario}, and worse on {where}."]
    shared = [row.row for row in rows if all(row.row in each.places for each in twins.values())]
    places = [(names[row], *_places(row, list(twins.values()))) for row in shared]
    made += ["", *table_lines(("row, by the mean", scenario, *twins), places, "lrrr")]
    return [*made, "", f"![{scenario}]({Path(PAGE).stem}-{scenario}.svg)"]


def _places(row: str, twins: Sequence[Agreement]) -> list[int]:
    return [twins[0].places[row][0], *(each.places[row][1] for each in twins)]


def _taus(each: Agreement) -> tuple[str, str]:
    return _with_interval(each.tau, each.interval), f"{each.same[0]:.2f} (5 % below {each.same[1]:.2f})"


def _with_interval(tau: float, interval: tuple[float, float]) -> str:
    return f"{tau:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _draw(records: Sequence[Record], scenario: str, twins: Sequence[str]) -> "Figure":
    """Means on the natural board against those on each twin, a dot a row; the line is of equal accuracy."""
    figure, every = panels(4.4 * len(twins), 4.2, len(twins))
    here = {row.row: row for row in board(records, scenario) if row.rank}
    style: dict[str, Any] = {"fmt": "o", "color": BLUE, "ecolor": GREY, "markersize": 4, "elinewidth": 1}
    for axes, twin in zip(every, twins, strict=True):
        there = {row.row: row for row in board(records, twin) if row.rank and row.row in here}
        points = {name: (here[name].cells[HEADLINE], row.cells[HEADLINE]) for name, row in there.items()}
        for x, y in points.values():
            axes.errorbar(x.mean, y.mean, y.spread, x.spread, **style)
        means = [cell.mean for both in points.values() for cell in both]
        axes.plot([min(means), max(means)], [min(means), max(means)], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        both = agreement(records, scenario, twin)
        for name, *_ in moved(both.places)[:NAMED] if both else ():
            at = points[name][0].mean, points[name][1].mean
            axes.annotate(row_name(here[name]), at, (6, -3), textcoords="offset points", fontsize=LABEL)
        axes.set(xlabel=f"{scenario}, {HEADLINE} (%)", ylabel=f"{twin} (%)")
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure
