"""The verdict on a published number, given our number.

A cell is *reproduced* where |our mean - the paper's| <= max(1 point, 2 sigma), sigma the larger of our spread over
at least three seeds and the paper's own; *off* where it is not; *open* where we have no number at the paper's setting,
or no rule for its unit. A cell's own `within` takes the place of the point, and its `agrees` may ask for a number at
most or at least the paper's. A claim is *off* where a comparison contradicts it. Only runs that completed all their
rounds count, and only where the record confirms every setting that the paper, or else its released code, gives: a
number of another setting is never compared with a paper's. What neither gives is named beside the table, as open.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leaderboards import store
from leaderboards.papers import training
from leaderboards.papers.tables import CLAIM, FITTING, SETTINGS, Published, plain
from leaderboards.rank import Cell, metric_values
from leaderboards.schema import Record, RecordError

REPRODUCED, OFF, OPEN = "reproduced", "off", "open"
RANKS = {OPEN: 0, OFF: 1, REPRODUCED: 2}
"""Verdicts from worst to best: a number that is off is worth more than none."""
FILE = "verdicts.json"
"""In the leaderboards' folder: place -> verdict of every cell that is not open, as committed."""
ALLOWED = {"%": 1.0, "classes": 0.005}
"""Difference between two numbers that is always allowed, by unit: a point of accuracy, the rounding of a mean."""
ROUNDING = 1e-9
"""Excess over the allowed difference that is due to binary fractions."""
ABSENT = {"partition.share": 1.0, "public.share": 1.0}
"""Settings that a record leaves out at these values."""
CUT = "training.steps"
"""Setting that cuts epochs short, as no paper does."""
SEEDS = 3
"""Fewest seeds whose spread counts as ours; that of two is too uncertain."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a published cell.

    kind: REPRODUCED, OFF or OPEN. ours: our mean and spread, None without a run. delta: ours minus the paper's, in the
    cell's unit; of a claim the comparisons against it. within: the largest difference of a reproduced cell. why: the
    reason for an open one, in words.
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

    measured: place of a cell that needs no run -> our values by seed; of a claim one for each comparison, 1 where it
        contradicts the claim.
    """
    measured, runs = measured or {}, dict[tuple[str, str], list[Record]]()
    for record in records:
        runs.setdefault((record["scenario"], record["row"]), []).append(record)
    return [
        _compare(cell, measured[cell.place])
        if measured.get(cell.place)
        else _judge(cell, runs.get(cell.ours[:2], []) if cell.ours else [])
        for cell in cells
    ]


def _judge(cell: Published, group: Sequence[Record]) -> Verdict:
    """The verdict on a cell, given the records of its scenario and row."""
    if cell.ours is None:
        return Verdict(cell, OPEN, why=cell.no_run or "no run of ours is meant for it")
    if not group:
        return Verdict(cell, OPEN, why="not run yet")
    complete = [record for record in group if record["rounds"]["done"] == record["rounds"]["planned"]]
    if not complete:
        return Verdict(cell, OPEN, why=f"not run to its end: {max(run['rounds']['done'] for run in group)} rounds")
    if unlike := differences(cell, complete[0]):
        return Verdict(cell, OPEN, why=f"run at another setting: {'; '.join(unlike)}")
    sample = _sample(cell, complete)
    if not sample:
        return Verdict(cell, OPEN, why=f"not measured by {cell.ours.score.partition(' ')[0]}")
    return _compare(cell, sample)


def _sample(cell: Published, records: Sequence[Record]) -> list[float]:
    """Our values by seed; of a cell of one client those of that client's encoder."""
    if not isinstance(client := cell.setting.get("client"), int):
        return metric_values(records, cell.ours.score)  # type: ignore[union-attr] # the caller has checked it
    own = [{**record, "scores": record["encoders"].get(f"client{client}", {}), "encoders": {}} for record in records]
    return metric_values(own, cell.ours.score)  # type: ignore[union-attr]


def _compare(cell: Published, sample: Sequence[float]) -> Verdict:
    ours = Cell.of(sample)
    if cell.unit == CLAIM:
        return Verdict(cell, OFF if sum(sample) else REPRODUCED, ours, sum(sample), 0.0)
    allowed = ALLOWED.get(cell.unit) if cell.within is None else cell.within
    if isinstance(cell.value, str) or allowed is None:
        return Verdict(cell, OPEN, ours, why=f"no rule for {cell.unit}")
    spread = (ours.spread or 0.0) if ours.n >= SEEDS else 0.0
    within = max(allowed, 2 * max(spread, cell.spread or 0.0))
    delta = ours.mean - cell.value
    excess = {"equal": abs(delta), "at most": delta, "at least": -delta}[cell.agrees] - within
    return Verdict(cell, REPRODUCED if excess <= ROUNDING else OFF, ours, delta, within)


def differences(cell: Published, record: Record) -> list[str]:
    """The settings in which a record differs from what is known of the paper's, in words."""
    settings = ABSENT | record["settings"]
    unlike = [f"{CUT} {settings[CUT]}"] if settings.get(CUT) is not None else []
    for key, published in cell.setting.items():
        field, kind, unit = SETTINGS[key].field, SETTINGS[key].kind, SETTINGS[key].unit
        ours = settings.get(field or key)
        if not field:  # reading the cell has checked FITTING; nothing can check any other
            same = key in FITTING
        elif kind == "name":
            same = plain(ours) == plain(published)
        elif isinstance(ours, int | float) and isinstance(published, int | float):
            same = math.isclose(ours, published * unit)
        else:
            same = ours is None if published == "all" else ours == published
        if not same:
            unlike.append(f"{key} {ours}, not {published}")
    return [*unlike, *training.differences(cell.training, settings)]


def read(folder: Path) -> dict[str, str]:
    """The committed verdicts by place; empty without their file. Raises RecordError where it holds something else."""
    file = folder / FILE
    kinds = store.read_table(file, dict[str, str], "verdicts", "board") if file.exists() else {}
    for place, kind in kinds.items():
        if kind not in RANKS:
            raise RecordError(f"{file}: the verdict on {place} is {kind!r}, expected {', '.join(RANKS)}")
    return kinds


def worse(committed: Mapping[str, str], current: Iterable[Verdict]) -> list[tuple[str, str, str]]:
    """(place, committed verdict, current verdict) of the verdicts that became worse."""
    kinds = {verdict.cell.place: verdict.kind for verdict in current}
    pairs = [(place, before, kinds.get(place, OPEN)) for place, before in sorted(committed.items())]
    return [(place, before, now) for place, before, now in pairs if RANKS[now] < RANKS[before]]


def write(folder: Path, verdicts: Iterable[Verdict]) -> None:
    """Writes the verdicts that are not open."""
    kinds = {verdict.cell.place: verdict.kind for verdict in verdicts if verdict.kind != OPEN}
    (folder / FILE).write_text(json.dumps(kinds, indent=1, sort_keys=True) + "\n", encoding="utf-8")
