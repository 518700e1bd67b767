"""Regression check: golden numbers, published cells that a CPU can measure, verdicts, and rendered pages."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from benchmark.audit import computations, golden
from benchmark.configuration.keys import nearest
from benchmark.configuration.suites import shipped_rows, shipped_scenarios
from benchmark.tracking.progress import Display
from leaderboards import generate, rank, store
from leaderboards.generate import Moved
from leaderboards.markdown import table_lines
from leaderboards.papers import computed, tables, verdicts
from leaderboards.papers.tables import Published
from leaderboards.schema import RecordError

FOLDER = Path("leaderboards")
COMPUTED = "published numbers that need no run"
HEADINGS = ("what moved", "old", "new")
SHOWN = 60
"""Largest number of changed numbers in a terminal table."""


def measured(cells: Iterable[Published]) -> dict[str, list[float]]:
    """Place of each computed cell -> our values: those of computations of minutes as committed, all others anew."""
    known = computed.read(FOLDER / computed.FILE)
    places = {cell.place for cell in cells if cell.computed and computations.of(cell).stored}
    return computations.measure(cells) | {place: values for place, values in known.items() if place in places}


def capture(display: Display) -> None:
    """Measure golden numbers and published cells again, and write those that are missing or have moved."""
    golden.write(golden.measure(display), display)
    with display.during(COMPUTED):
        computed.write(FOLDER / computed.FILE, measured(tables.collect()))
    display.print(f"{FOLDER / computed.FILE} is written")


def check_names(cells: Iterable[Published]) -> None:
    """Raises RecordError: no suite makes the scenario or the row that a published cell is compared with.

    Its number would be open, as not run yet, for ever.
    """
    known = {"scenario": shipped_scenarios(), "row": shipped_rows()}
    for cell in cells:
        for what, names in known.items() if cell.ours else ():
            if (name := getattr(cell.ours, what)) not in names:
                raise RecordError(f"{cell.place}: no suite has a {what} {name!r}{nearest(name, sorted(names))}")


def regress(display: Display) -> list[Moved]:
    """Everything that differs from the committed files.

    Raises RecordError: a record or a published file that cannot be read, two records of one run that differ, or a cell
    that is compared with a row that no suite has.
    """
    records, cells, committed = store.collect(FOLDER / "results"), tables.collect(), golden.read()
    check_names(cells)
    for scenario in {record["scenario"] for record in records}:
        rank.runs(records, scenario)  # refuses seeds with different settings
    lines = list(generate.moved("golden:", committed, golden.measure(display), golden.TOLERANCE))
    if (name := golden.mark(committed)) not in golden.CHANGELOG.read_text(encoding="utf-8"):
        lines.append(Moved(str(golden.CHANGELOG), f"has to give the reason for: {name}", "does not"))
    with display.during(COMPUTED):
        ours, file = measured(cells), FOLDER / computed.FILE
        lines += generate.moved(str(file), computed.read(file), ours, computed.TOLERANCE)
    with display.during("rendered pages"):
        judged = verdicts.judged(cells, records, ours)
        worse = verdicts.worse(verdicts.read(FOLDER), judged)
        lines += [Moved(f"verdict: {place}", old, new) for place, old, new in worse]
        lines += generate.stale()
    return lines


def table(lines: Sequence[Moved]) -> str:
    """Markdown table of the changes, for a comment on a pull request."""
    if not lines:
        return "Nothing moved.\n"
    return "\n".join([*table_lines(HEADINGS, lines, "l"), ""])


def shown(lines: Sequence[Moved]) -> Table | str:
    """Table of the changes for the terminal."""
    caption = f"and {len(lines) - SHOWN} more" if len(lines) > SHOWN else None
    first = Table(*HEADINGS, caption=caption)
    for change in lines[:SHOWN]:
        first.add_row(*map(Text, change))
    return first if lines else table(lines).strip()
