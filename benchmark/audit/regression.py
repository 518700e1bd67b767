"""Regression check: golden numbers, published cells that a CPU can measure, verdicts, and rendered pages."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from benchmark.audit import golden
from benchmark.configuration.keys import nearest
from benchmark.configuration.suites import shipped_rows, shipped_scenarios
from benchmark.tracking.progress import Display
from datamodules.heterogeneity import report
from datamodules.partition import dirichlet_balanced
from leaderboards import generate, rank, store
from leaderboards.generate import Moved
from leaderboards.markdown import table_lines
from leaderboards.papers import tables, verdicts
from leaderboards.papers.tables import Published
from leaderboards.schema import RecordError

FOLDER = Path("leaderboards")
SEEDS, IMAGES = 10, 50_000
"""Partitions that are drawn, and images of each, in equal classes as CIFAR's."""

TABLE_4 = "Orchestra's Table 4"
HEADINGS = ("what moved", "old", "new")
SHOWN = 60
"""Largest number of changed numbers in a terminal table."""


def heterogeneity(cells: Iterable[Published]) -> dict[str, list[float]]:
    """Place of each cell of Orchestra's Table 4 -> classes per client in SEEDS partitions."""
    classes = {}
    for cell in (cell for cell in cells if (cell.paper, cell.table) == ("orchestra", "4")):
        labels = np.arange(IMAGES) % {"CIFAR-10": 10, "CIFAR-100": 100}[str(cell.setting["data"])]
        clients, alpha = int(str(cell.setting["clients"])), float(str(cell.setting["alpha"]))
        definition = "classes_1pct" if "1 %" in cell.row else "classes"
        classes[cell.place] = [
            report(labels, dirichlet_balanced(labels, clients, alpha=alpha, seed=seed))[definition]
            for seed in range(SEEDS)
        ]
    return classes


def capture(display: Display) -> None:
    """Measure golden numbers and published cells again, and write those that are missing or have moved."""
    golden.write(golden.measure(display), display)
    with display.during(TABLE_4):
        cells = heterogeneity(tables.collect())
    (FOLDER / generate.MEASURED).write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
    display.print(f"{FOLDER / generate.MEASURED} is written")


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
    with display.during(TABLE_4):
        measured, file = heterogeneity(cells), FOLDER / generate.MEASURED
        lines += generate.moved(str(file), json.loads(file.read_text(encoding="utf-8")), measured)
    with display.during("rendered pages"):
        judged = verdicts.judged(cells, records, measured)
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
