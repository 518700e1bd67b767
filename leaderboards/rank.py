"""From run records to a scenario's board: means and spreads over seeds, and ranks that own up to ties.

Rows are ordered by the headline, the linear probe's accuracy after the last round. Seeds are few, so one standard
deviation is pooled over all rows of the scenario with at least two seeds,

    s^2 = sum_i (n_i - 1) s_i^2 / sum_i (n_i - 1),

and two rows differ only if |mean_i - mean_j| > 2 s sqrt(1 / n_i + 1 / n_j). Going down the board, a row that does not
differ from the first row of the group above joins that group and shares its rank; otherwise it opens a group, and its
rank is its place (1, 1, 3, ...). Without any row of two seeds s is unknown and nobody is ranked. The untrained encoder
is the floor: never ranked, always last.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from leaderboards.schema import Record, RecordError

HEADLINE = "linear/v1 accuracy"
FLOOR = "untrained"
CAME_LATER: dict[str, object] = yaml.safe_load(
    (Path(__file__).parent / "setting_defaults.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Cell:
    """One metric over `n` seeds: the mean, and the sample standard deviation (None for one seed)."""

    mean: float
    spread: float | None
    n: int


@dataclass(frozen=True)
class Average:
    """A row's mean rank over scenarios. ranks: scenario -> its rank there, among the rows that are compared."""

    row: str
    mean: float
    ranks: Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """A row of a board; `cells` maps "protocol metric" (as in `HEADLINE`) to its Cell, `headline` a seed to its value.

    Bytes and client seconds are per client and round, None where no client was ever visited; bytes also where there is
    only one client, who holds all and has nobody to exchange with. `epsilon` is the largest that a client of any seed
    has spent, None where nothing was released with noise; it covers the entries of `covers` and no other, at `delta`.
    `rank` is None for the floor, for a row without the headline and where no spread is known; `tied`: another row
    shares the rank. Where it comes from: `commits`, with a star where files had been changed, `hardware`, and the
    `dates` of the first and last run.
    """

    scenario: str
    row: str
    method: str
    objective: str
    settings: dict[str, object]
    seeds: tuple[int, ...]
    headline: dict[int, float]
    cells: dict[str, Cell]
    bytes_up: float | None
    bytes_down: float | None
    client_seconds: float | None
    rounds: int
    images: float
    commits: tuple[str, ...]
    hardware: tuple[str, ...]
    dates: tuple[str, str]
    epsilon: float | None = None
    covers: tuple[str, ...] = ()
    delta: float | None = None
    rank: int | None = None
    tied: bool = False


def finished(record: Record) -> bool:
    """Whether the run reached its last planned round, or its budget's; only such runs enter a board."""
    return record["rounds"]["done"] == record["rounds"]["planned"] or "ended" in record["rounds"]


def runs(records: Iterable[Record], scenario: str) -> dict[str, list[Record]]:
    """The finished runs of a scenario, by row, each row's in order of seed.

    Raises:
        RecordError: when the runs of a row are not one setting under several seeds.
    """
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        if record["scenario"] == scenario and finished(record):
            rows.setdefault(record["row"], []).append(record)
    for name, group in rows.items():
        seeds = [record["seed"] for record in group]
        if len(set(seeds)) < len(seeds):
            raise RecordError(f"{scenario}, row {name}: a seed is given twice in {seeds}, keep one record of each")
        first = _flat(group[0])
        for record in group[1:]:
            other = _flat(record)
            if unlike := sorted(key for key in first.keys() | other.keys() if held(first, key) != held(other, key)):
                values = "; ".join(f"{key} is {held(first, key)} and {held(other, key)}" for key in unlike[:4])
                raise RecordError(
                    f"{scenario}, row {name}: seeds {group[0]['seed']} and {record['seed']} are not one setting "
                    f"({values}): give each a row of its own, or remove one"
                )
    return dict(sorted(rows.items()))


def _flat(record: Record) -> dict[str, object]:
    """What all seeds of a row share."""
    data = record["provenance"]["dataset"]
    own = {"method": record["method"], "objective": record["objective"], "rounds": record["rounds"]["planned"]}
    return {**own, "dataset": data, **record["settings"]}


def held(settings: Mapping[str, object], key: str) -> object:
    """A setting, or what the code did where a record was made before it could be set."""
    return settings.get(key, CAME_LATER.get(key))


def values(group: Iterable[Record], key: str) -> list[float]:
    """One metric of a row's runs ("protocol metric"), in order of seed; runs without it are passed over."""
    protocol, metric = key.split(" ", 1)
    scores = [record["scores"].get(protocol, {}) for record in group]
    return [score[metric] for score in scores if metric in score]


def board(records: Iterable[Record], scenario: str) -> list[Row]:
    """The rows of a scenario, best first, ranked by the rule above; then those without a headline; then the floor."""
    rows = [_row(group) for group in runs(records, scenario).values()]
    scored = [row for row in rows if HEADLINE in row.cells and row.row != FLOOR]
    scored.sort(key=lambda row: -row.cells[HEADLINE].mean)  # equal means stay in order of name
    unscored = [row for row in rows if HEADLINE not in row.cells and row.row != FLOOR]
    floor = [row for row in rows if row.row == FLOOR]
    return _ranked(scored, pooled_spread(rows)) + unscored + floor


def average_ranks(boards: Mapping[str, Sequence[Row]]) -> list[Average]:
    """Mean ranks over scenarios of the rows that all these boards rank, best first (Demsar 2006, section 3.2.2).

    In each scenario those rows are ranked anew among themselves, by the rule above; rows of a group each take the mean
    of its places. Boards that rank nobody are passed over.
    """
    ranking = {name: [row for row in rows if row.rank is not None] for name, rows in boards.items()}
    ranking = {name: rows for name, rows in ranking.items() if rows}
    shared = set.intersection(*({row.row for row in rows} for rows in ranking.values())) if ranking else set()
    ranks: dict[str, dict[str, float]] = {row: {} for row in sorted(shared)}
    for name, rows in ranking.items():
        anew = _ranked([row for row in rows if row.row in shared], pooled_spread(boards[name]))
        for row in anew:
            group = sum(other.rank == row.rank for other in anew)
            ranks[row.row][name] = (row.rank or 0) + (group - 1) / 2
    found = [Average(row, fmean(places.values()), places) for row, places in ranks.items()]
    return sorted(found, key=lambda one: one.mean)


def gaps(rows: Iterable[Row]) -> list[str]:
    """What a row lacks, in words: a seed between its own, or below its last where another row has it; a headline."""
    rows, lines = list(rows), []
    held = {seed for row in rows for seed in row.seeds}
    for row in rows:
        within = range(min(row.seeds), max(row.seeds))
        missing = [str(seed) for seed in sorted(held.union(within)) if seed < max(row.seeds) and seed not in row.seeds]
        silent = [str(seed) for seed in row.seeds if row.headline and seed not in row.headline]
        lines += [f"{row.row} has no seed {', '.join(missing)}"] if missing else []
        lines += [f"{row.row}, seed {', '.join(silent)}, has no {HEADLINE}"] if silent else []
    return lines


def pooled_spread(rows: Iterable[Row]) -> float | None:
    """The headline's standard deviation over seeds, pooled over the rows that have one (percent); None if none has."""
    cells = [row.cells[HEADLINE] for row in rows if HEADLINE in row.cells]
    known = [(cell.n - 1, cell.spread) for cell in cells if cell.spread is not None]
    if not known:
        return None
    return math.sqrt(math.fsum(df * spread**2 for df, spread in known) / sum(df for df, _ in known))


def _row(group: Sequence[Record]) -> Row:
    first, alone = group[0], group[0]["federation"]["clients"] == 1
    keys = {f"{protocol} {metric}": None for r in group for protocol, score in r["scores"].items() for metric in score}
    return Row(
        scenario=first["scenario"],
        row=first["row"],
        method=first["method"],
        objective=first["objective"],
        settings=first["settings"],
        headline={record["seed"]: value for record in group for value in values([record], HEADLINE)},
        seeds=tuple(record["seed"] for record in group),
        cells={key: over_seeds(values(group, key)) for key in sorted(keys)},
        bytes_up=None if alone else _per_visit(group, [sum(record["bytes"]["up"].values()) for record in group]),
        bytes_down=None if alone else _per_visit(group, [sum(record["bytes"]["down"].values()) for record in group]),
        client_seconds=_per_visit(group, [record["seconds"]["clients"] for record in group]),
        rounds=first["rounds"]["done"],
        images=fmean(record["images"] for record in group),
        commits=tuple(dict.fromkeys(_commit(record) for record in group)),
        hardware=tuple(dict.fromkeys(record["provenance"]["hardware"] for record in group)),
        dates=(min(dates := [record["provenance"]["date"] for record in group]), max(dates)),
        epsilon=max((record["epsilon"] for record in group if record["epsilon"] is not None), default=None),
        covers=tuple(sorted({entry for record in group for entry in _of_noise(record, "covers", ())})),
        delta=_of_noise(first, "delta", None),
    )


def _commit(record: Record) -> str:
    made = record["provenance"]
    return f"{(made['git'] or 'no commit')[:7]}{'*' if made['dirty'] else ''}"


def _of_noise(record: Record, key: str, default: Any) -> Any:
    """What a record says of its releases with noise; records of before there were any say nothing."""
    return record.get("privacy", {}).get(key, default)


def over_seeds(sample: Sequence[float]) -> Cell:
    """Mean and sample standard deviation."""
    return Cell(fmean(sample), stdev(sample) if len(sample) > 1 else None, len(sample))


def _per_visit(group: Sequence[Record], totals: Sequence[float]) -> float | None:
    visits = sum(record["bytes"]["visits"] for record in group)
    return math.fsum(totals) / visits if visits else None


def _ranked(rows: Sequence[Row], spread: float | None) -> list[Row]:
    """Ranks for rows in descending order of the headline, given the pooled spread."""
    if spread is None:
        return list(rows)
    leaders: list[int] = []  # for each row, the place of its group's first
    for place, row in enumerate(rows):
        leader = leaders[-1] if leaders else place
        leaders.append(place if _differ(rows[leader].cells[HEADLINE], row.cells[HEADLINE], spread) else leader)
    return [
        replace(row, rank=leader + 1, tied=leaders.count(leader) > 1) for row, leader in zip(rows, leaders, strict=True)
    ]


def _differ(a: Cell, b: Cell, spread: float) -> bool:
    return abs(a.mean - b.mean) > least(a.n, b.n, spread)


def least(n: int, m: int, spread: float) -> float:
    """The least difference that counts between means of n and m seeds."""
    return 2 * spread * math.sqrt(1 / n + 1 / m)
