"""Tables of pools of runs for the terminal: scores, the monitor over rounds, costs, and settings that differ."""

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from benchmark.configuration.identity import settings
from benchmark.tracking.comparison import MONITORS, Pool, RunContent, cell_of, monitored
from benchmark.tracking.comparison_scores import SPREAD, ScoreLine, number
from leaderboards.pages.columns import IDLE

MOST_ROUNDS = 8
"""Largest number of rounds in the table of the monitor's scores."""
BEST = "*"
"""Mark of the best score of a row, readable without colours."""
COSTS = (
    ("images of training", "", "images", 1, ",.0f"),
    ("sent by clients", "MB", "bytes_up", 1e6, ",.1f"),
    ("sent to clients", "MB", "bytes_down", 1e6, ",.1f"),
    ("training", "s", "seconds", 1, ",.1f"),
)
"""Name, unit, key of a line of `rounds.jsonl`, what is divided by, format."""


COUNTED = (
    ("operations of a client, a round", "GFLOP", "flops", 1e9, ",.4g"),
    ("memory of a client", "MB", "memory", 1e6, ",.1f"),
    ("kept by a client", "MB", "kept", 1e6, ",.1f"),
)
"""The same of a record's `costs`."""


def tables(pools: Sequence[Pool], labels: Sequence[str], lines: Sequence[ScoreLine]) -> list[Table]:
    """A column for each pool; a table without a row is left out. lines: of the scores."""
    spread = f"; {SPREAD} over seeds" if any(len(pool.runs) > 1 for pool in pools) else ""
    key = monitored([run for pool in pools for run in pool.runs])
    scores = f"scores, the best mean marked {BEST} (a board tests it){spread}"
    made = {
        scores: (["protocol", "metric", "better"], _score_rows(pools, lines)),
        f"monitor: {MONITORS[key]}": (["round"], _monitor_rows(pools, key)),
        "costs": (["", "unit"], _cost_rows(pools)),
        f"activity of what is added, {IDLE} hardly acts": (["", "hardly acts below"], _activity_rows(pools)),
        "settings that differ": (["key"], _setting_rows(pools)),
    }
    filled = []
    for title, (columns, rows) in made.items():
        table = Table(*(Column(name, overflow="fold") for name in columns), title=title, box=SIMPLE_HEAD)
        table.title_justify = "left"
        for label in labels:
            table.add_column(label, justify="right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        if table.row_count:
            filled.append(table)
    return filled


def _score_rows(pools: Sequence[Pool], lines: Sequence[ScoreLine]) -> Iterable[list[str]]:
    """The lines, each protocol named once."""
    above = ""
    for line in lines:
        best, notes = line.best(), line.notes or [""] * len(pools)
        cells = [
            f"{number(cell, len(pool.runs))}{BEST if index in best else ''}{f' ({note})' if note else ''}"
            for index, (pool, cell, note) in enumerate(zip(pools, line.cells, notes, strict=True))
        ]
        protocol = line.protocol.id
        yield ["" if protocol == above else protocol, line.name, line.protocol.better(line.metric), *cells]
        above = protocol


def _monitor_rows(pools: Sequence[Pool], key: str) -> Iterable[list[str]]:
    """The monitor's number at some of the rounds at which a run was monitored, the last one among them."""
    curves = [pool.curve(key) for pool in pools]
    rounds = sorted({round for values in curves for round in values})
    step = -(-len(rounds) // MOST_ROUNDS) if rounds else 1
    for round in reversed(rounds[::-1][::step]):
        yield [str(round), *(number(cell_of(values.get(round, [])), 1) for values in curves)]


def _cost_rows(pools: Sequence[Pool]) -> Iterable[list[str]]:
    """Rounds, images, bytes and seconds."""
    yield ["rounds", "", *map(_rounds, pools)]
    for name, unit, key, scale, form in COSTS:
        yield [name, unit, *(_cost([_total(run, key) / scale for run in pool.runs], form) for pool in pools)]
    for name, unit, key, scale, form in COUNTED:
        counted = [[run.record["costs"][key] / scale for run in pool.runs if run.record.get("costs")] for pool in pools]
        if any(counted):
            yield [name, unit, *(_cost(values, form) for values in counted)]
    if any(pool.encoders > 1 for pool in pools):
        yield ["encoders scored", "", *(f"{pool.encoders}" if pool.encoders else "" for pool in pools)]
    evaluation = ([run.record["seconds"]["evaluation"] for run in pool.runs if run.scores] for pool in pools)
    yield ["evaluation", "s", *(_cost(seconds, ",.1f") for seconds in evaluation)]


def _rounds(pool: Pool) -> str:
    """Of how many planned rounds were done; seeds whose privacy budget ends do not all do as many."""
    done = sorted({len(run.history) for run in pool.runs})
    return f"{done[0]}{f' to {done[-1]}' if len(done) > 1 else ''} of {pool.config.federation.rounds}"


def _total(run: RunContent, key: str) -> float:
    """The sum over rounds, and over what is listed in a round."""
    spent = (line[key] for line in run.history)
    return sum(sum(each.values()) if isinstance(each, Mapping) else each for each in spent)


def _cost(values: Sequence[float], form: str) -> str:
    """Mean and spread, plain where seeds do not differ."""
    cell = cell_of(values)
    if cell is None:
        return ""
    return f"{cell.mean:{form}}{f' ± {cell.spread:{form}}' if cell.spread else ''}"


def _activity_rows(pools: Sequence[Pool]) -> Iterable[list[str]]:
    """How much the methods' own ideas move something, mean over rounds and seeds."""
    each = [[run.record.get("activity", {}) for run in pool.runs] for pool in pools]
    bounds = {name: activity["bound"] for runs in each for found in runs for name, activity in found.items()}
    for name, bound in bounds.items():
        cells = [cell_of([found[name]["mean"] for found in runs if name in found]) for runs in each]
        marks = [f" {IDLE}" if cell is not None and cell.mean < bound else "" for cell in cells]
        texts = [number(cell, len(runs)) for cell, runs in zip(cells, each, strict=True)]
        yield [name.replace("_", " "), f"{bound:g}", *map(str.__add__, texts, marks)]


def _setting_rows(pools: Sequence[Pool]) -> Iterable[list[str]]:
    """The settings that define a run and are not the same in all."""
    unset = object()
    each = [settings(pool.config) | {"seed": ", ".join(map(str, pool.seeds))} for pool in pools]

    def text(key: str, value: Any) -> str:
        if isinstance(value, str) and key != "seed":  # of a class by import path its name
            return value.rpartition(".")[2] if "." in value and "/" not in value and " " not in value else value
        return "" if value is unset else str(value) if key == "seed" else shortened(value)

    for key in sorted({key for values in each for key in values}):
        found = [values.get(key, unset) for values in each]
        if any(value != found[0] for value in found):
            yield [key, *(text(key, value) for value in found)]
