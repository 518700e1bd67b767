"""The study of natural clients: how a board orders the rows beside its twins, in tables and a figure for each board."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leaderboards.markdown import replace_between, rewrite, table_lines
from leaderboards.pages.plots import BLUE, GRID, label_ends, panels, save
from leaderboards.palette import GREY
from leaderboards.rank import HEADLINE, Row, board
from leaderboards.schema import Record
from leaderboards.sources import row_name
from leaderboards.twins import Agreement, agreement, moved, natural_twins, worst_served

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "natural.md"
"""In the folder of studies."""
NAMED = 4
"""Rows with the largest differences of places, whose names a figure has."""

Boards = Mapping[str, Sequence[Row]]

Compared = dict[str, dict[str, Agreement]]
"""Scenario of natural clients -> twin -> how they agree."""


def write(records: Sequence[Record], folder: Path) -> None:
    """Fills the page, where it exists, and draws `natural-<scenario>.svg` for each natural board beside it."""
    page = folder / PAGE
    if not page.exists():
        return
    natural = natural_twins(records)
    boards = {name: board(records, name) for scenario, twins in natural.items() for name in (scenario, *twins)}
    compared = compare(boards, natural)
    rewrite(page, partial(replace_between, mark="twins", text="\n".join(lines(boards, compared))))
    for scenario, twins in compared.items():
        save(partial(_draw, boards, scenario, twins), folder / f"{page.stem}-{scenario}.svg")


def compare(boards: Boards, natural: Mapping[str, Sequence[str]]) -> Compared:
    """Every natural board beside those of its twins that share enough rows with it. natural: see `natural_twins`."""
    found: Compared = {}
    for scenario, twins in natural.items():
        pairs = {twin: agreement(boards[scenario], boards[twin]) for twin in twins}
        found[scenario] = {twin: each for twin, each in pairs.items() if each is not None}
    return {scenario: twins for scenario, twins in found.items() if twins}


def lines(boards: Boards, compared: Compared) -> list[str]:
    """The tables: agreement of boards, the order by mean and by the worst tenth, and every row's places."""
    if not compared:
        return ["No board and its twin have been recorded yet."]
    headings = ("board", "twin", "rows", "tau", "same order", "pairs alike", "reversed")
    pairs = [
        (
            *(scenario, twin, len(each.places), _with_interval(each.tau, each.interval)),
            *(f"{each.same[0]:.2f} (5 % below {each.same[1]:.2f})", each.alike, len(each.reversed)),
        )
        for scenario, twins in compared.items()
        for twin, each in twins.items()
    ]
    found = table_lines(headings, pairs, "llrrrrr")
    for scenario, twins in compared.items():
        found += _of_board(boards[scenario], scenario, twins)
    return found


def _of_board(rows: Sequence[Row], scenario: str, twins: Mapping[str, Agreement]) -> list[str]:
    """What the page says of one natural board."""
    made: list[str] = []
    names = {row.row: row_name(row) for row in rows}
    if (served := worst_served(rows)) is not None:
        orders = f"tau between the orders by the mean client and by the worst tenth, of {served[2]} rows"
        made += ["", f"`{scenario}`: {orders}: {_with_interval(*served[:2])}."]
    for better, worse in sorted({pair for each in twins.values() for pair in each.reversed}):
        where = ", ".join(twin for twin, each in twins.items() if (better, worse) in each.reversed)
        made += ["", f"`{names[better]}` is better than `{names[worse]}` on {scenario}, and worse on {where}."]
    shared = [row.row for row in rows if all(row.row in each.places for each in twins.values())]
    first, *others = twins.values()
    places = [(names[row], *first.places[row], *(each.places[row][1] for each in others)) for row in shared]
    headings = (f"row, by the mean of {HEADLINE.split()[0]}", scenario, *twins)
    made += ["", *table_lines(headings, places, "l" + "r" * (1 + len(twins)))]
    return [*made, "", f"![{scenario}]({Path(PAGE).stem}-{scenario}.svg)"]


def _with_interval(tau: float, interval: tuple[float, float]) -> str:
    return f"{tau:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _draw(boards: Boards, scenario: str, twins: Mapping[str, Agreement]) -> "Figure":
    """Means on the natural board against those on each twin, a dot a row; the line is of equal accuracy."""
    figure, every = panels(5.4 * len(twins), 4.2, len(twins))
    here = {row.row: row for row in boards[scenario]}
    style: dict[str, Any] = {"fmt": "o", "color": BLUE, "ecolor": GREY, "markersize": 4, "elinewidth": 1}
    for axes, (twin, both) in zip(every, twins.items(), strict=True):
        there = [row for row in boards[twin] if row.row in both.places]
        points = {row.row: (here[row.row].cells[HEADLINE], row.cells[HEADLINE]) for row in there}
        for x, y in points.values():
            axes.errorbar(x.mean, y.mean, y.spread, x.spread, **style)
        means = [cell.mean for pair in points.values() for cell in pair]
        axes.plot([min(means), max(means)], [min(means), max(means)], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set(xlabel=f"{scenario}, {HEADLINE} (%)", ylabel=f"{twin} (%)")
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        names = [name for name, *_ in moved(both.places)[:NAMED]]
        label_ends(axes, [(row_name(here[name]), points[name][0].mean, points[name][1].mean, GREY) for name in names])
    return figure
