"""Studies: one question a page, our rows along an axis beside what the paper reports along its own."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leaderboards.markdown import MISSING, between, fill, line, three_digits, with_spread
from leaderboards.pages import methods, plots
from leaderboards.pages.curves import COLOURS
from leaderboards.rank import HEADLINE, Cell, Row, board
from leaderboards.schema import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STUDIES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "studies.yaml").read_text(encoding="utf-8"))

Curve = Mapping[float | str, Cell]
"""Place on the axis -> the mean there; "flat": a row that has no place on it."""


def write(records: Sequence[Record], folder: str | Path) -> None:
    """Fills the pages `<study>.md` of a folder, where it is there, and draws their figures beside them."""
    for study in STUDIES:
        page = Path(folder) / f"{study['page']}.md"
        if page.exists():
            found = measured(study, records)
            lines = table(study, found, spent(study, records))
            fill(page, partial(between, start=methods.START, end=methods.END, lines=lines))
            if found:
                plots.save(partial(_draw, study, found), page.with_suffix(".svg"))


def measured(study: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Curve]:
    """Our lines by name, each over the seeds it has; a place without a record is left out."""
    rows = _rows(study, records)
    found = {
        name: {place: rows[where].cells[HEADLINE] for place, where in asked.items() if where in rows}
        for name, asked in study["ours"]["lines"].items()
    }
    return {name: curve for name, curve in found.items() if curve}


def spent(study: Mapping[str, Any], records: Sequence[Record]) -> dict[float, float]:
    """Place -> epsilon, the largest that a client of any seed has spent, of the line that `ours.epsilon` names."""
    places = study["ours"]["lines"].get(study["ours"].get("epsilon"), {})
    rows = _rows(study, records) if places else {}
    found = {place: rows[where].epsilon for place, where in places.items() if where in rows}
    return {place: epsilon for place, epsilon in found.items() if epsilon is not None}


def _rows(study: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Row]:
    """The board's rows with a headline, by "scenario row", of the scenarios that a study asks for."""
    scenarios = {where.split()[0] for asked in study["ours"]["lines"].values() for where in asked.values()}
    rows = ((scenario, row) for scenario in scenarios for row in board(records, scenario))
    return {f"{scenario} {row.row}": row for scenario, row in rows if HEADLINE in row.cells}


def reported(study: Mapping[str, Any]) -> dict[str, Curve]:
    """The paper's lines by name: a number, or a number and its spread, at each place."""

    def cell(given: Any) -> Cell:
        mean, spread = given if isinstance(given, list) else (given, None)
        return Cell(float(mean), spread, 1)

    lines = study["paper"].get("lines", {})
    return {name: {place: cell(given) for place, given in known.items()} for name, known in lines.items()}


def table(study: Mapping[str, Any], ours: Mapping[str, Curve], epsilon: Mapping[float, float]) -> list[str]:
    """A row a place on the axis, a column a line: ours, then the paper's; and what was spent, where anything was."""
    if not ours:
        return ["No row of it has been recorded yet."]
    columns = [(f"{name}, ours", curve) for name, curve in ours.items()]
    columns += [(f"{name}, paper", curve) for name, curve in reported(study).items()]
    heads = [study["axis"], *(name for name, _ in columns), *(["epsilon"] if epsilon else [])]
    lines = [line(heads), "|---:" * len(heads) + "|"]
    for place in places(curve for _, curve in columns):
        shown = [with_spread(curve.get(place, curve.get("flat")), 1) for _, curve in columns]
        told = [three_digits(epsilon[place]) if place in epsilon else MISSING] if epsilon else []
        lines.append(line([f"{place:g}", *shown, *told]))
    fewest, *_, most = sorted([cell.n for curve in ours.values() for cell in curve.values()] * 2)
    behind = f"{fewest} to {most} seeds" if fewest < most else f"{most} seeds" if most > 1 else "one seed"
    what = f"Ours: {study['ours']['title']}, linear/v1 (%), {behind}. Paper: {study['paper']['title']}."
    return [*lines, "", what, "", f"![{study['title']}]({study['page']}.svg)"]


def places(curves: Iterable[Curve]) -> list[float]:
    """All places on the axis, in order."""
    return sorted({place for curve in curves for place in curve if not isinstance(place, str)})


def _draw(study: Mapping[str, Any], ours: Mapping[str, Curve]) -> "Figure":
    from matplotlib.figure import Figure

    panels = [(f"ours: {study['ours']['title']}", ours), (f"paper: {study['paper']['title']}", reported(study))]
    panels = [(title, lines) for title, lines in panels if lines]
    picture = Figure(figsize=(max(6.4, 5.2 * len(panels)), 3.8), layout="constrained")
    axes = picture.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(name for _, lines in panels for name in lines))
    colours = dict(zip(names, (COLOURS[3], COLOURS[4], *COLOURS[:3], *COLOURS[5:]), strict=False))
    for one, (title, lines) in zip(axes, panels, strict=True):
        _panel(one, study, title, lines, colours)
    picture.suptitle(study["title"], fontsize=11, fontweight="bold")
    return picture


def _panel(
    axes: "Axes", study: Mapping[str, Any], title: str, lines: Mapping[str, Curve], colours: Mapping[str, str]
) -> None:
    """Places are drawn at equal distances: axes run over orders of magnitude, and some begin at 0."""
    along = places(lines.values())
    for name, curve in lines.items():
        if "flat" in curve:
            axes.axhline(curve["flat"].mean, color=colours[name], linewidth=1.2, linestyle=(0, (4, 3)), label=name)
        known = [place for place in along if place in curve]
        if not known:
            continue
        at, means = [along.index(place) for place in known], [curve[place].mean for place in known]
        axes.plot(at, means, color=colours[name], marker="o", markersize=4, label=name)
        for x, place in zip(at, known, strict=True):
            if (spread := curve[place].spread) is not None:  # one seed has none
                axes.errorbar(x, curve[place].mean, yerr=spread, color=colours[name], capsize=3)
    axes.set_xticks(range(len(along)), [f"{place:g}" for place in along])
    axes.set_xlabel(study["axis"])
    axes.set_ylabel("linear probe (%)")
    axes.set_title(textwrap.fill(title, 60), loc="left", fontsize=8)
    axes.grid(axis="y", color="#e4e4e0", linewidth=0.6)
    axes.spines[["right", "top"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
