"""The board of a scenario: means and spreads over seeds, and ranks that are shared where seeds cannot separate rows.

Rows are ordered by the headline, the linear probe's accuracy after the last round. Seeds are few, so one standard
deviation is pooled over all rows of the scenario with at least two seeds,

    s^2 = sum_i (n_i - 1) s_i^2 / sum_i (n_i - 1),

and two rows differ only if |mean_i - mean_j| > 2 s sqrt(1 / n_i + 1 / n_j). From the top of the board to the bottom, a
row that does not differ from the first row of the group above joins that group and shares its rank; any other row opens
a group, and its rank is its position (1, 1, 3, ...). If no row has two seeds, s is unknown and no row is ranked. The
untrained encoder is the floor: never ranked, always last.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import NamedTuple

from leaderboards.schema import Record, RecordError
from leaderboards.store import SETTING_DEFAULTS
from leaderboards.store import name as run_name

HEADLINE = "linear/v1 accuracy"
FLOOR = "untrained"


class Cell(NamedTuple):
    """One metric over `n` seeds: the mean, and the sample standard deviation (None for one seed)."""

    mean: float
    spread: float | None
    n: int

    @classmethod
    def of(cls, sample: Sequence[float]) -> "Cell":
        """The cell of one value for each seed."""
        return cls(fmean(sample), stdev(sample) if len(sample) > 1 else None, len(sample))


@dataclass(frozen=True)
class Row:
    """A row of a board.

    cells: "protocol metric" (as in `HEADLINE`) -> its Cell. headline: seed -> value.
    bytes_up, bytes_down, client_seconds: per client and round, None without any visit to a client; bytes are also None
        for a single client, which holds all the data and exchanges nothing.
    commits: with a star where files differed from the commit. dates: of the first and the last run.
    epsilon: the largest that a client of any seed has spent, None without noisy releases; it covers the entries of
        `covers` and no other, at `delta`.
    rank: None for the floor, for a row without the headline and where no spread is known. tied: another row shares it.
    """

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
    commits: tuple[str, ...]
    hardware: tuple[str, ...]
    dates: tuple[str, str]
    epsilon: float | None = None
    covers: tuple[str, ...] = ()
    delta: float | None = None
    rank: int | None = None
    tied: bool = False


def finished(record: Record) -> bool:
    """Whether the run reached its last planned round or the end of its privacy budget; boards show only such runs."""
    return record["rounds"]["done"] == record["rounds"]["planned"] or "ended" in record["rounds"]


def runs(records: Iterable[Record], scenario: str) -> dict[str, list[Record]]:
    """The finished runs of a scenario: row -> records in order of seed.

    Raises RecordError: the runs of a row are not one setting under several seeds.
    """
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        if record["scenario"] == scenario and finished(record):
            rows.setdefault(record["row"], []).append(record)
    for group in rows.values():
        for record in group[1:]:
            if unlike := unlike_settings(_shared_settings(group[0]), _shared_settings(record)):
                values = "; ".join(f"{key} is {_short(first)} and {_short(other)}" for key, first, other in unlike[:4])
                raise RecordError(
                    f"{run_name(group[0])} and {run_name(record)} are not one setting of a row ({values}): "
                    "give one a row of its own, or remove it"
                )
    return dict(sorted(rows.items()))


def _short(value: object) -> str:
    """A setting's value as text; of a long hash, the first digits."""
    return f"{value}"[:12] if re.fullmatch("[0-9a-f]{64}", str(value)) else str(value)


def _shared_settings(record: Record) -> dict[str, object]:
    """What has to be the same for all seeds of a row."""
    identity = {"method": record["method"], "objective": record["objective"], "rounds": record["rounds"]["planned"]}
    return {**identity, "dataset": record["provenance"]["dataset"], **record["settings"]}


def unlike_settings(first: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """(key, value, other value) of the settings that differ.

    A setting that is missing in an old record has the value of `setting_defaults.yaml`.
    """
    first, other = ({**SETTING_DEFAULTS, **settings} for settings in (first, other))
    keys = sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
    return [(key, first.get(key), other.get(key)) for key in keys]


def metric_values(group: Iterable[Record], key: str) -> list[float]:
    """One metric ("protocol metric") of the records that have it, in their order."""
    protocol, metric = key.split(" ", 1)
    scores = [record["scores"].get(protocol, {}) for record in group]
    return [score[metric] for score in scores if metric in score]


def board(records: Iterable[Record], scenario: str) -> list[Row]:
    """The rows of a scenario: ranked rows, best first; then rows without a headline; then the floor."""
    rows = [_row(group) for group in runs(records, scenario).values()]
    scored = [row for row in rows if HEADLINE in row.cells and row.row != FLOOR]
    scored.sort(key=lambda row: -row.cells[HEADLINE].mean)  # equal means stay in order of name
    others = sorted((row for row in rows if row not in scored), key=lambda row: row.row == FLOOR)
    return _ranked(scored, pooled_spread(rows)) + others


def ranks_by_scenario(boards: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, float]]:
    """Row -> scenario -> rank, of the rows that all these boards rank, best mean first (Demsar 2006, section 3.2.2).

    In each scenario those rows are ranked again among themselves, by the rule above; each row of a tied group gets the
    mean of the group's positions. Boards without any rank are left out.
    """
    ranking = {name: [row for row in rows if row.rank is not None] for name, rows in boards.items()}
    ranking = {name: rows for name, rows in ranking.items() if rows}
    shared = set.intersection(*({row.row for row in rows} for rows in ranking.values())) if ranking else set()
    ranks: dict[str, dict[str, float]] = {row: {} for row in sorted(shared)}
    for name, rows in ranking.items():
        reranked = _ranked([row for row in rows if row.row in shared], pooled_spread(boards[name]))
        for row in reranked:
            size = sum(other.rank == row.rank for other in reranked)
            ranks[row.row][name] = (row.rank or 0) + (size - 1) / 2
    return dict(sorted(ranks.items(), key=lambda item: fmean(item[1].values())))


def gaps(rows: Sequence[Row]) -> list[str]:
    """What rows lack, in words: a headline, or a seed below their last one.

    Expected are the seeds between a row's first and last, and those of other rows.
    """
    all_seeds, lines = {seed for row in rows for seed in row.seeds}, list[str]()
    for row in rows:
        missing = [str(seed) for seed in sorted(all_seeds) if seed < row.seeds[0]]
        for before, after in pairwise(row.seeds):
            few = after - before <= 10
            missing += map(str, range(before + 1, after)) if few else [f"{before + 1} to {after - 1}"]
        unscored = [seed for seed in row.seeds if row.headline and seed not in row.headline]
        lines += [f"{row.row} has no seed {', '.join(missing)}"] if missing else []
        lines += [f"{row.row}, seed {', '.join(map(str, unscored))}, has no {HEADLINE}"] if unscored else []
    return lines


def pooled_spread(rows: Iterable[Row]) -> float | None:
    """The headline's standard deviation over seeds in percent, pooled over all rows that have one; None without any."""
    cells = [row.cells[HEADLINE] for row in rows if HEADLINE in row.cells]
    known = [(cell.n - 1, cell.spread) for cell in cells if cell.spread is not None]
    if not known:
        return None
    return math.sqrt(math.fsum(df * spread**2 for df, spread in known) / sum(df for df, _ in known))


def threshold(n: int, m: int, spread: float) -> float:
    """The difference between means of n and m seeds beyond which they differ."""
    return 2 * spread * math.sqrt(1 / n + 1 / m)


def _row(group: Sequence[Record]) -> Row:
    first, visits = group[0], sum(record["bytes"]["visits"] for record in group)
    origins = [record["provenance"] for record in group]
    commits = [f"{(origin['git'] or 'no commit')[:7]}{'*' if origin['dirty'] else ''}" for origin in origins]
    samples: dict[str, list[float]] = {}
    for protocol, metrics in (item for record in group for item in record["scores"].items()):
        for metric, value in metrics.items():
            samples.setdefault(f"{protocol} {metric}", []).append(value)
    noise = [record.get("privacy", {}) for record in group]

    def per_visit(totals: Iterable[float]) -> float | None:
        return math.fsum(totals) / visits if visits else None

    def traffic(direction: str) -> float | None:
        if first["federation"]["clients"] == 1:
            return None
        return per_visit(sum(record["bytes"][direction].values()) for record in group)

    return Row(
        **{key: first[key] for key in ("row", "method", "objective", "settings")},
        headline={record["seed"]: value for record in group for value in metric_values([record], HEADLINE)},
        seeds=tuple(record["seed"] for record in group),
        cells={key: Cell.of(sample) for key, sample in sorted(samples.items())},
        bytes_up=traffic("up"),
        bytes_down=traffic("down"),
        client_seconds=per_visit(record["seconds"]["clients"] for record in group),
        rounds=first["rounds"]["done"],
        commits=tuple(dict.fromkeys(commits)),
        hardware=tuple(dict.fromkeys(origin["hardware"] for origin in origins)),
        dates=(min(dates := [origin["date"] for origin in origins]), max(dates)),
        epsilon=max((record["epsilon"] for record in group if record["epsilon"] is not None), default=None),
        covers=tuple(sorted({entry for privacy in noise for entry in privacy.get("covers", ())})),
        delta=noise[0].get("delta"),
    )


def _ranked(rows: Sequence[Row], spread: float | None) -> list[Row]:
    """Rows in descending order of the headline, with their ranks, given the pooled spread."""
    if spread is None:
        return list(rows)
    leaders: list[int] = []  # for each row, the index of its group's first row
    for index, row in enumerate(rows):
        leader = leaders[-1] if leaders else index
        best, cell = rows[leader].cells[HEADLINE], row.cells[HEADLINE]
        leaders.append(index if abs(best.mean - cell.mean) > threshold(best.n, cell.n, spread) else leader)
    return [
        replace(row, rank=leader + 1, tied=leaders.count(leader) > 1) for row, leader in zip(rows, leaders, strict=True)
    ]
