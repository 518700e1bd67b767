"""A published number, ours beside it, and a verdict.

A cell is *reproduced* where |our mean - the paper's| <= max(1 point, 2 sigma), sigma the larger of our spread over
three seeds or more and the paper's own; *off* where it is not; *open* where we have no number at the paper's setting,
or no rule for its unit. Only runs that played all their rounds count, and only where all that the paper says of its
setting is what the record says: a number measured otherwise is never held against a paper's.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leaderboards.papers.tables import FITTING, Published, plain
from leaderboards.rank import Cell, over_seeds, values
from leaderboards.schema import Record

REPRODUCED, OFF, OPEN = "reproduced", "off", "open"
RANKS = {OPEN: 0, OFF: 1, REPRODUCED: 2}
"""Verdicts from worst to best: a number that is off says more than none."""
FILE = "verdicts.json"
"""Of the leaderboards' folder: place -> verdict of every cell that is not open, as committed."""

ALLOWED = {"%": 1.0, "classes": 0.005}
"""What may always lie between two numbers, by unit: a point of accuracy, a mean's rounding."""

HELD = {
    "partition": ("partition.name", 1),
    "clients": ("partition.clients", 1),
    "alpha": ("partition.alpha", 1),
    "data_share": ("partition.share", 0.01),
    "participation": ("federation.participation", 1),
    "rounds": ("federation.rounds", 1),
    "epochs": ("training.epochs", 1),
    "batch_size": ("training.batch_size", 1),
    "public_share": ("public.share", 0.01),
    "kept": ("method.kept", 0.01),
    "temperature": ("method.teacher_temperature", 1),
    "anchors": ("method.anchors", 1),
    "momentum": ("method.momentum", 1),
    "distil_batch_size": ("method.distil_batch_size", 1),
    "global_clusters": ("objective.clusters", 1),
    "local_clusters": ("method.local_clusters", 1),
    "epsilon": ("method.epsilon", 1),
}
"""Setting of a published cell -> that of a record, where both have to be the same, and the unit of the cell's."""

NAMED = {"data": "data.name", "encoder": "encoder.class", "public": "public.name"}
"""Those that have to be the same name, as `plain` writes it."""

ABSENT = {"partition.share": 1.0, "public.share": 1.0}
"""Settings that a record leaves out where they are this."""

CUT = "training.steps"
"""Cuts epochs short: no paper does."""

SEEDS = 3
"""From so many on our own spread is believed; that of two is as good as any number."""


@dataclass(frozen=True)
class Verdict:
    """What became of a published cell.

    kind: REPRODUCED, OFF or OPEN. ours: our mean and spread, None without a run. delta: ours less the paper's, in the
    cell's unit. within: what may lie between them. why: of an open one, in words.
    """

    cell: Published
    kind: str
    ours: Cell | None = None
    delta: float | None = None
    within: float | None = None
    why: str = ""


def judged(
    cells: Iterable[Published], records: Iterable[Record], measured: Mapping[str, Sequence[float]] | None = None
) -> list[Verdict]:
    """A verdict on every cell, in the order of the cells.

    measured: place of a cell -> what we measured of it by seeds, for those that need no run.
    """
    measured, runs = measured or {}, dict[tuple[str, str], list[Record]]()
    for record in records:
        runs.setdefault((record["scenario"], record["row"]), []).append(record)
    found = []
    for cell in cells:
        if cell.place in measured:
            found.append(_compared(cell, measured[cell.place]))
        else:
            found.append(_judged(cell, runs.get(cell.ours[:2], []) if cell.ours else []))
    return found


def _judged(cell: Published, group: Sequence[Record]) -> Verdict:
    if cell.ours is None:
        return Verdict(cell, OPEN, why="no run of ours is meant for it")
    if not group:
        return Verdict(cell, OPEN, why="not run yet")
    whole = [record for record in group if record["rounds"]["done"] == record["rounds"]["planned"]]
    if not whole:
        return Verdict(cell, OPEN, why=f"not run to its end: {max(one['rounds']['done'] for one in group)} rounds")
    if unlike := differences(cell, whole[0]):
        return Verdict(cell, OPEN, why=f"run at another setting: {'; '.join(unlike)}")
    sample = values(whole, cell.ours.score)
    if not sample:
        return Verdict(cell, OPEN, why=f"not measured by {cell.ours.score.partition(' ')[0]}")
    return _compared(cell, sample)


def _compared(cell: Published, sample: Sequence[float]) -> Verdict:
    ours = over_seeds(sample)
    if isinstance(cell.value, str) or cell.unit not in ALLOWED:
        return Verdict(cell, OPEN, ours, why=f"no rule for {cell.unit}")
    own = (ours.spread or 0.0) if ours.n >= SEEDS else 0.0
    within = max(ALLOWED[cell.unit], 2 * max(own, cell.spread or 0.0))
    delta = ours.mean - cell.value
    return Verdict(cell, REPRODUCED if abs(delta) <= within else OFF, ours, delta, within)


def differences(cell: Published, record: Record) -> list[str]:
    """In what the paper's setting and a record's differ, in words; empty where they are the same."""
    own = ABSENT | record["settings"]
    unlike = [f"{CUT} {own[CUT]}"] if own.get(CUT) is not None else []
    for key, said in cell.setting.items():
        if key in HELD:
            place, unit = HELD[key]
            same = _same(own.get(place), said, unit)
        elif key in NAMED:
            place = NAMED[key]
            same = plain(own.get(place)) == plain(said)
        else:  # what the score itself says, see FITTING; anything else nobody can check
            place, same = key, key in FITTING
        if not same:
            unlike.append(f"{key} {own.get(place)}, not {said}")
    return unlike


def _same(own: object, said: object, unit: float) -> bool:
    if isinstance(own, int | float) and isinstance(said, int | float):
        return math.isclose(own, said * unit)
    return own is None if said == "all" else own == said


def read(folder: Path) -> dict[str, str]:
    """The committed verdicts, by place; none where there is no such file."""
    file = folder / FILE
    if not file.exists():
        return {}
    kinds: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return kinds


def worse(committed: Mapping[str, str], found: Iterable[Verdict]) -> list[tuple[str, str, str]]:
    """(place, what it was, what it is) of verdicts that are worse than the committed ones."""
    now = {one.cell.place: one.kind for one in found}
    kinds = [(place, before, now.get(place, OPEN)) for place, before in sorted(committed.items())]
    return [(place, before, kind) for place, before, kind in kinds if RANKS[kind] < RANKS[before]]


def write(folder: Path, found: Iterable[Verdict]) -> None:
    """Puts the verdicts on disk that are not open."""
    now = {one.cell.place: one.kind for one in found if one.kind != OPEN}
    (folder / FILE).write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
