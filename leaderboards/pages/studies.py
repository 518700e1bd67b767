"""Studies: one question a page, our rows along an axis, and what a paper reports along its own if one asks it."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leaderboards.markdown import render, replace_between, rewrite
from leaderboards.pages.plots import GRID, End, label_ends, logarithmic, panels, save
from leaderboards.pages.trade_offs import COSTS, Cost
from leaderboards.palette import Look, looks
from leaderboards.rank import HEADLINE, Cell, Row, board
from leaderboards.schema import Record
from leaderboards.store import load_yaml

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STUDIES: list[dict[str, Any]] = load_yaml("studies.yaml")

AGAINST = {
    **{key: COSTS[key] for key in ("bytes", "flops", "memory")},
    "seconds": Cost("What a second buys", "seconds of a client in a round", lambda row: row.client_seconds, log=True),
}
"""What a study's `against` may list: costs that a panel each sets the accuracy against."""

Curve = Mapping[float | str, Cell]
"""Position on the axis, a number or a word -> the mean there; "flat": that of a row without one, a horizontal line."""


def write(records: Sequence[Record], folder: str | Path) -> None:
    """Fills the pages `<study>.md` that exist in a folder, and draws their figures next to them."""
    for study in STUDIES:
        page = Path(folder) / f"{study['page']}.md"
        if page.exists():
            rows = _rows(study, records)
            ours = our_curves(study, rows)
            text = table(study, ours, epsilons(study, rows), costs(study, rows))
            rewrite(page, partial(replace_between, mark="ours", text=text))
            if ours:
                save(partial(_draw, study, ours, rows), page.with_suffix(".svg"))


def studied(boards: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Scenario -> the page of the study that shows all of its ranked rows; of those that one shows."""
    shown: dict[str, set[str]] = {}
    for study in STUDIES:
        shown[study["page"]] = {where for line in study["ours"]["lines"].values() for where in line.values()}
    return {
        scenario: page
        for scenario, rows in boards.items()
        for page, places in shown.items()
        if any(row.rank for row in rows) and {f"{scenario} {row.row}" for row in rows if row.rank} <= places
    }


def _rows(study: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Row]:
    """The rows with a headline, by "scenario row", of the scenarios that a study names."""
    scenarios = {where.split()[0] for line in study["ours"]["lines"].values() for where in line.values()}
    rows = ((scenario, row) for scenario in scenarios for row in board(records, scenario))
    return {f"{scenario} {row.row}": row for scenario, row in rows if HEADLINE in row.cells}


def our_curves(study: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Curve]:
    """Our lines by name, over the seeds that all rows of the study have; a position without a record is left out.

    Rows that share no seed keep their own.
    """
    lines = {
        name: {x: rows[where].headline for x, where in line.items() if where in rows}
        for name, line in study["ours"]["lines"].items()
    }
    samples = [values for line in lines.values() for values in line.values()]
    shared = sorted(set(samples[0]).intersection(*samples)) if samples else []

    def cell(values: Mapping[int, float]) -> Cell:
        return Cell.of([values[seed] for seed in shared or sorted(values)])

    return {name: {x: cell(values) for x, values in line.items()} for name, line in lines.items() if line}


def paper_curves(study: Mapping[str, Any]) -> dict[str, Curve]:
    """The paper's lines by name: a number, or a number and its spread, at each position."""

    def cell(value: Any) -> Cell:
        mean, spread = value if isinstance(value, list) else (value, None)
        return Cell(float(mean), spread, 1)

    lines = study.get("paper", {}).get("lines", {})
    return {name: {x: cell(value) for x, value in line.items()} for name, line in lines.items()}


def epsilons(study: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[float, float]:
    """Position -> the largest epsilon that a client of any seed has spent, for the line that `ours.epsilon` names."""
    line = study["ours"]["lines"].get(study["ours"].get("epsilon"), {})
    spent = {x: rows[where].epsilon for x, where in line.items() if where in rows}
    return {x: epsilon for x, epsilon in spent.items() if epsilon is not None}


def costs(study: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[float | str, list[float | None]]:
    """Position -> what the row there costs, of the first line that is no horizontal one, by the study's `against`."""
    against = [AGAINST[key] for key in study["ours"].get("against", [])]
    line: Mapping[float | str, str]
    line = next((line for line in study["ours"]["lines"].values() if "flat" not in line), {})
    found = {x: [cost.of(rows[where]) for cost in against] for x, where in line.items() if where in rows}
    return found if against else {}


def table(
    study: Mapping[str, Any],
    ours: Mapping[str, Curve],
    epsilon: Mapping[float, float],
    paid: Mapping[float | str, Sequence[float | None]] = {},
) -> str:
    """A row for each position on the axis; columns are our lines, the paper's, and epsilon where any was spent.

    paid: see `costs`; where there are any they have a table of their own.
    """
    columns = {f"{name}, ours": curve for name, curve in ours.items()}
    columns |= {f"{name}, paper": curve for name, curve in paper_curves(study).items()}
    counts = [cell.n for curve in ours.values() for cell in curve.values()]
    rows = {"columns": columns, "positions": positions(columns.values()), "epsilon": epsilon, "counts": counts}
    against = [AGAINST[key].label for key in study["ours"].get("against", [])]
    return render("study.md.j2", study=study, label=label, paid=paid, against=against, **rows)


def positions(curves: Iterable[Curve]) -> list[float | str]:
    """All positions on the axis: numbers in order, words as the study has them."""
    found = dict.fromkeys(x for curve in curves for x in curve if x != "flat")
    numbers = [x for x in found if not isinstance(x, str)]
    return [*sorted(numbers), *(x for x in found if isinstance(x, str))]


def label(position: float | str) -> str:
    """A position as the table and the axis show it."""
    return position if isinstance(position, str) else f"{position:g}".replace("inf", "∞")


def _draw(study: Mapping[str, Any], ours: Mapping[str, Curve], rows: Mapping[str, Row]) -> "Figure":
    shown = [(f"ours: {study['ours']['title']}", ours)]
    if theirs := paper_curves(study):
        shown.append((f"paper: {study['paper']['title']}", theirs))
    against = [AGAINST[key] for key in study["ours"].get("against", [])]
    figure, every = panels(max(6.4, 5.2 * len(shown)) + 2.8 * len(against), 3.8, len(shown) + len(against))
    names = list(dict.fromkeys(name for _, curves in shown for name in curves))
    of_line = {name: next(iter(line.values())).split()[1] for name, line in study["ours"]["lines"].items()}
    styles = dict(zip(names, looks(of_line.get(name, name) for name in names), strict=True))
    for axes, (title, curves) in zip(every, shown, strict=False):
        _panel(axes, curves, styles)
        axes.set_xlabel(study["axis"])
        axes.set_title(textwrap.fill(title, 60), loc="left", fontsize=8)
    for axes, cost in zip(every[len(shown) :], against, strict=True):
        _cost_panel(axes, study, ours, rows, styles, cost)
    figure.suptitle(study["title"], fontsize=11, fontweight="bold")
    return figure


def _cost_panel(
    axes: "Axes",
    study: Mapping[str, Any],
    ours: Mapping[str, Curve],
    rows: Mapping[str, Row],
    styles: Mapping[str, Look],
    cost: Cost,
) -> None:
    """Draws accuracy against a cost: a mark for each row that has both, its spread as a bar."""
    from matplotlib.ticker import LogLocator

    for name, curve in ours.items():
        colour, _, marker = styles[name]
        for x, cell in curve.items():
            if (value := cost.of(rows[study["ours"]["lines"][name][x]])) is not None:
                axes.errorbar(value, cell.mean, yerr=cell.spread, color=colour, marker=marker, markersize=4, capsize=3)
    logarithmic(axes)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # costs are within one order of magnitude
    axes.set_xlabel(cost.label)
    axes.grid(color=GRID, linewidth=0.6)


def _panel(axes: "Axes", curves: Mapping[str, Curve], styles: Mapping[str, Look]) -> None:
    """Draws positions at equal distances: axes cover orders of magnitude, and some begin at 0.

    An axis with words has no lines between its positions.
    """
    axis, ends = positions(curves.values()), list[End]()
    joined = not any(isinstance(x, str) for x in axis)
    for name, curve in curves.items():
        colour, dash, marker = styles[name]
        if "flat" in curve:
            axes.axhline(curve["flat"].mean, color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
            end = (max(len(axis) - 1, 0), curve["flat"].mean)
        points = [(index, curve[x]) for index, x in enumerate(axis) if x in curve]
        if points:
            indices, cells = zip(*points, strict=True)
            means = [cell.mean for cell in cells]
            axes.plot(indices, means, color=colour, linestyle=dash if joined else "none", marker=marker, markersize=4)
            end = (indices[-1], means[-1])
        for index, cell in points:
            if cell.spread is not None:
                axes.errorbar(index, cell.mean, yerr=cell.spread, color=colour, capsize=3)
        ends.append((textwrap.fill(name, 18), *end, colour))
    axes.set_xticks(range(len(axis)), [label(x) for x in axis])
    if not joined:
        for word in axes.get_xticklabels():
            word.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_ylabel("linear probe (%)")
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    label_ends(axes, ends)
