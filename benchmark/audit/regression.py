"""What must not move unnoticed: golden numbers, published cells that a CPU can measure, verdicts, what is rendered."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from benchmark.audit import golden
from benchmark.tracking.progress import Display
from datamodules.heterogeneity import report
from datamodules.partition import dirichlet_balanced
from leaderboards import generate, rank, store
from leaderboards.generate import Moved
from leaderboards.markdown import line
from leaderboards.papers import tables, verdicts
from leaderboards.papers.tables import Published

FOLDER = Path("leaderboards")
CHANGELOG = Path("CHANGELOG.md")
SEEDS, IMAGES = 10, 50_000
"""Partitions drawn, of so many images in equal classes, as CIFAR's."""

TABLE_4 = "Orchestra's Table 4"
SHOWN = 60
"""Lines of what moved that are shown, at most."""


def heterogeneity(cells: Iterable[Published]) -> dict[str, list[float]]:
    """Place -> classes a client over SEEDS partitions, of the cells of Orchestra's Table 4."""
    found = {}
    for cell in cells:
        if (cell.paper, cell.table) != ("orchestra", "4"):
            continue
        labels = np.arange(IMAGES) % {"CIFAR-10": 10, "CIFAR-100": 100}[str(cell.setting["data"])]
        clients, alpha = int(str(cell.setting["clients"])), float(str(cell.setting["alpha"]))
        definition = "classes_1pct" if "1 %" in cell.row else "classes"
        found[cell.place] = [
            report(labels, dirichlet_balanced(labels, clients, alpha=alpha, seed=seed))[definition]
            for seed in range(SEEDS)
        ]
    return found


def capture(display: Display) -> None:
    """Takes golden numbers and measured cells anew. CHANGELOG.md has to name them."""
    rows = golden.measured(display)
    golden.write(rows)
    with display.during(TABLE_4):
        found = heterogeneity(tables.collect())
    (FOLDER / generate.MEASURED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    display.say(f"{golden.FILE} and {FOLDER / generate.MEASURED} are taken anew")
    if (name := golden.mark(rows)) not in CHANGELOG.read_text(encoding="utf-8"):
        display.say(f"now say in {CHANGELOG}, under what changes numbers, why there are: {name}")


def regress(display: Display) -> list[Moved]:
    """Everything that is not as it was committed; empty where all is.

    Raises:
        RecordError: a record or a published file that cannot be read, or two records of one run that differ.
    """
    records, cells, held = store.collect(FOLDER / "results"), tables.collect(), golden.read()
    for scenario in {record["scenario"] for record in records}:
        rank.runs(records, scenario)  # refuses seeds that are not one setting
    lines = [Moved(f"golden: {what}", *told) for what, *told in golden.moved(held, golden.measured(display))]
    if (name := golden.mark(held)) not in CHANGELOG.read_text(encoding="utf-8"):
        lines.append(Moved(str(CHANGELOG), f"has to say why there are: {name}", "does not"))
    with display.during(TABLE_4):
        now, file = heterogeneity(cells), FOLDER / generate.MEASURED
        lines += generate.moved(str(file), json.loads(file.read_text(encoding="utf-8")), now)
    with display.during("what the records render to"):
        judged = verdicts.judged(cells, records, now)
        lines += [Moved(f"verdict: {place}", *told) for place, *told in verdicts.worse(verdicts.read(FOLDER), judged)]
        lines += generate.stale()
    return lines


def table(lines: Sequence[Moved]) -> str:
    """Markdown, fit for a comment on a pull request."""
    if not lines:
        return "Nothing moved.\n"
    return "\n".join(["| what moved | old | new |", "|---|---|---|", *map(line, lines), ""])


def shown(lines: Sequence[Moved]) -> Table | str:
    """The same for the terminal."""
    if not lines:
        return table(lines).strip()
    made = Table("what moved", "old", "new")
    for one in lines[:SHOWN]:
        made.add_row(*map(Text, one))
    if len(lines) > SHOWN:
        made.caption = f"and {len(lines) - SHOWN} more"
    return made
