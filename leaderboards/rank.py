"""The board of a scenario: means and spreads over seeds, and ranks that say what the seeds can tell apart.

Rows are ordered by the headline, the linear probe's accuracy after the last round: by its mean as `significance`
estimates it for all seeds of the ranked rows. That is the plain mean of a row that has them all; rows that are not
ranked have their plain means. A row's rank is an interval: from one more than the number of rows that are better, to
the number of ranked rows less those that are worse. A row of rank "2-9" may stand anywhere from second to ninth.
`significance` decides which rows differ. Rows with the headline from three seeds or more are ranked, where there are
two of them. Not ranked are controls, a single client among federations, and the untrained encoder, which is the floor
and always last.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple

from leaderboards import row_costs
from leaderboards.bundles import largest_difference, lowest_mark, recomputed
from leaderboards.encoders import count, shown
from leaderboards.schema import Record, RecordError
from leaderboards.significance import FEWEST_SEEDS, Fit, fit
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


class Activity(NamedTuple):
    """How much what a row adds moves something: mean over seeds, bound below which it hardly acts, words."""

    mean: float
    bound: float
    measures: str


@dataclass(frozen=True)
class Row:
    """A row of a board.

    cells: "protocol metric" (as in `HEADLINE`) -> its Cell. headline: seed -> value.
    encoders: that a run leaves, the most of any seed; of several, an accuracy is their mean (see `encoders.shown`).
    images, server_images: trained on in all rounds, by clients and by a server that trains too; means over seeds. None:
        by the server of older records, which do not say how many public images it trained on.
    bytes_up, bytes_down, client_seconds: per client and round, None without any visit to a client; bytes are also None
        for a single client, which holds all the data and exchanges nothing.
    commits: with a star where files differed from the commit. dates: of the first and the last run.
    epsilon: the largest that a client of any seed has spent, None without noisy releases; it covers the entries of
        `covers` and no other, at `delta`.
    control: its clients do not learn (`optimizer.lr` is 0, or it is another untrained encoder than the floor), so that
        it shows what the rest of a method, or its network, does.
    floor: the row of the untrained encoder of its architecture, or else the floor. below:
        the accuracies of `cells` whose mean, over the seeds that both have, is below that row's.
    activity: name -> Activity; idle: whether it has any and all are below their bounds.
    flops, memory: operations of a client in a round, and bytes at most at once; None where neither a seed has them
        counted nor the row is a committed one.
    clients: that hold the images. unranked: why the row has no rank whatever its seeds: "control" or "one client".
    submission: the mark of a row that somebody else made, see `bundles`; "" of one of this repository. recomputed: its
        mean headline as who verified it measured it; difference: the largest of its scores, see `bundles.difference`.
    rank: the best and the worst place that the seeds allow; None for a row that is not ranked. better, worse: the
        ranked rows that are better and worse than this one, in order of the board.
    """

    row: str
    method: str
    objective: str
    settings: dict[str, object]
    seeds: tuple[int, ...]
    headline: dict[int, float]
    cells: dict[str, Cell]
    images: float
    server_images: float | None
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
    control: bool = False
    clients: int = 0
    encoders: int = 1
    unranked: str = ""
    floor: str = FLOOR
    below: tuple[str, ...] = ()
    rank: tuple[int, int] | None = None
    better: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    activity: Mapping[str, Activity] = field(default_factory=dict)
    idle: bool = False
    flops: float | None = None
    memory: float | None = None
    submission: str = ""
    recomputed: float | None = None
    difference: float | None = None


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
            if unlike := unlike_settings(_shared_settings(group[0]), _shared_settings(record, like=group[0])):
                values = "; ".join(f"{key} is {_short(first)} and {_short(other)}" for key, first, other in unlike[:4])
                raise RecordError(
                    f"{run_name(group[0])} and {run_name(record)} are not one setting of a row ({values}): "
                    "give one a row of its own, or remove it"
                )
    return dict(sorted(rows.items()))


def _short(value: object) -> str:
    """A setting's value as text; of a long hash, the first digits."""
    return f"{value}"[:12] if re.fullmatch("[0-9a-f]{64}", str(value)) else str(value)


def _shared_settings(record: Record, like: Record | None = None) -> dict[str, object]:
    """What has to be the same for all seeds of a row. like: another of them, whose hash of the same images is given."""
    identity = {"method": record["method"], "objective": record["objective"], "rounds": record["rounds"]["planned"]}
    named = record if like is None or _images(record).isdisjoint(_images(like)) else like
    return {**identity, "dataset": named["provenance"]["dataset"], **record["settings"]}


def _images(record: Record) -> set[str]:
    """The hashes of a record's images: older ones have that of their order alone, as `dataset`."""
    return {record["provenance"][key] for key in ("dataset", "in_order") if key in record["provenance"]}


def unlike_settings(first: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """(key, value, other value) of the settings that differ.

    A setting that is missing in an old record has the value of `setting_defaults.yaml`.
    """
    first, other = ({**SETTING_DEFAULTS, **settings} for settings in (first, other))
    keys = sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
    return [(key, first.get(key), other.get(key)) for key in keys]


def metric_values(group: Iterable[Record], key: str) -> list[float]:
    """One metric ("protocol metric", as it is shown) of the records that have it, in their order."""
    protocol, metric = key.split(" ", 1)
    scores = [shown(record).get(protocol, {}) for record in group]
    return [score[metric] for score in scores if metric in score]


def board(records: Iterable[Record], scenario: str) -> list[Row]:
    """The rows of a scenario: those with a headline, the best first; then rows without one; then the floor."""
    groups = runs(records, scenario)
    values = {row: _values(group) for row, group in groups.items()}
    floors = {row: _floor(group[0], groups) for row, group in groups.items()}
    rows = [_row(group, values[row], floors[row], values.get(floors[row], {})) for row, group in groups.items()]
    federated = any(row.clients > 1 for row in rows)
    rows = [replace(row, unranked=_unranked(row, federated)) for row in rows]
    scored = [row for row in rows if HEADLINE in row.cells and row.row != FLOOR]
    others = sorted((row for row in rows if row not in scored), key=lambda row: row.row == FLOOR)
    return _ranked(scored) + others


def _floor(record: Record, groups: Mapping[str, Sequence[Record]]) -> str:
    """The untrained row that a record's row is set beside. groups: row -> records of a board."""
    untrained = {row: group[0] for row, group in groups.items() if group[0]["method"] == FLOOR}
    own = [row for row, other in untrained.items() if _architecture(other) == _architecture(record)]
    return FLOOR if FLOOR in own or not own else own[0]


def _architecture(record: Record) -> dict[str, object]:
    """A record's settings of the encoder, but for those of what of it trains."""
    return {
        key: value
        for key, value in record["settings"].items()
        if key.startswith("encoder.") and not key.startswith(("encoder.adapter", "encoder.freeze"))
    }


def fitted(rows: Iterable[Row]) -> Fit | None:
    """The ranked rows of a board, compared with each other; None where there are fewer than two."""
    return fit({row.row: row.headline for row in rows if row.rank is not None})


def _unranked(row: Row, federated: bool) -> str:
    """Why a row takes no rank, in a word or two; federated: whether others on its board have several clients."""
    if row.row == FLOOR:
        return ""
    return "control" if row.control else "one client" if row.clients == 1 and federated else ""


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Rows in order of the board, those that can be with their ranks; rows of equal means are in order of name."""
    able = {row.row: row for row in rows if len(row.headline) >= FEWEST_SEEDS and not row.unranked}
    compared = fit({name: row.headline for name, row in able.items()})
    means = {row.row: row.cells[HEADLINE].mean for row in rows} | (compared.effects if compared else {})
    rows = sorted(rows, key=lambda row: -round(means[row.row], 9))  # the fit of equal rows may differ by rounding
    if compared is None:
        return rows
    order = [row.row for row in rows]

    def place(row: Row) -> Row:
        better, worse = (
            tuple(sorted(names, key=order.index)) for names in (compared.better(row.row), compared.worse(row.row))
        )
        return replace(row, rank=(1 + len(better), len(able) - len(worse)), better=better, worse=worse)

    return [place(row) if row.row in able else row for row in rows]


Values = Mapping[str, Mapping[int, float]]
"""Score ("protocol metric") -> seed -> value."""


def _values(group: Iterable[Record]) -> Values:
    """All scores of a row's records."""
    values: dict[str, dict[int, float]] = {}
    for record in group:
        for protocol, metrics in shown(record).items():
            for metric, value in metrics.items():
                values.setdefault(f"{protocol} {metric}", {})[record["seed"]] = value
    return dict(sorted(values.items()))


def _below(values: Values, floor: Values) -> tuple[str, ...]:
    """The accuracies of a row that are below those of an untrained encoder, over the seeds that both have."""

    def is_below(key: str) -> bool:
        limits = floor.get(key, {})
        gaps = [value - limits[seed] for seed, value in values[key].items() if seed in limits]
        return bool(gaps) and fmean(gaps) < 0

    return tuple(key for key in values if key.split(" ")[1].startswith("accuracy") and is_below(key))


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


def _server_images(group: Iterable[Record]) -> float | None:
    """The mean over seeds; None: a record has nothing of its server, which trained: public images have no other use."""
    servers = [(record.get("server", {}), "public" in record["provenance"]) for record in group]
    if any(trains and not server for server, trains in servers):
        return None
    return fmean(server.get("images", 0) for server, _ in servers)


def _activity(group: Iterable[Record]) -> dict[str, Activity]:
    """Of a row, over the seeds whose records have them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in group:
        for name, each in record.get("activity", {}).items():
            found.setdefault(name, []).append(each)
    return {
        name: Activity(fmean(one["mean"] for one in each), each[0]["bound"], each[0]["measures"])
        for name, each in found.items()
    }


def _row(group: Sequence[Record], values: Values, floor: str, limits: Values) -> Row:
    """A row without its rank. limits: the scores of the row `floor`."""
    first, visits = group[0], sum(record["bytes"]["visits"] for record in group)
    origins = [record["provenance"] for record in group]
    commits = [f"{(origin['git'] or 'no commit')[:7]}{'*' if origin['dirty'] else ''}" for origin in origins]
    noise, activity = [record.get("privacy", {}) for record in group], _activity(group)
    again, (flops, memory) = _values(recomputed(group)).get(HEADLINE), row_costs.of(group) or (None, None)

    def per_visit(totals: Iterable[float]) -> float | None:
        return math.fsum(totals) / visits if visits else None

    def traffic(direction: str) -> float | None:
        if first["federation"]["clients"] == 1:
            return None
        return per_visit(sum(record["bytes"][direction].values()) for record in group)

    return Row(
        **{key: first[key] for key in ("row", "method", "objective", "settings")},
        headline=dict(values.get(HEADLINE, {})),
        seeds=tuple(record["seed"] for record in group),
        cells={key: Cell.of(list(sample.values())) for key, sample in values.items()},
        floor=floor,
        below=_below(values, limits),
        images=fmean(record["images"] for record in group),
        server_images=_server_images(group),
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
        control=first["row"] != FLOOR and (first["method"] == FLOOR or first["settings"].get("optimizer.lr") == 0),
        clients=first["federation"]["clients"],
        encoders=max(map(count, group)),
        activity=activity,
        flops=flops,
        memory=memory,
        idle=bool(activity) and all(each.mean < each.bound for each in activity.values()),
        submission=lowest_mark(group),
        recomputed=fmean(again.values()) if again else None,
        difference=largest_difference(group),
    )
