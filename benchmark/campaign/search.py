"""Search of a suite's rows by the tuning rule (`configuration.tuned`): trials as jobs, the choice, a row's file.

A row is searched in two stages: the rule's rates, then, at the best rate, values of its constant or finer rates. What
is known of a trial is in its run folder alone, so that the same command goes on wherever it was stopped.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import Job, State, Status, job_state
from benchmark.campaign.scheduler import RunningJob, Scheduler
from benchmark.campaign.summary import format_seconds
from benchmark.configuration import tuned
from benchmark.configuration.compose import compose, merge
from benchmark.configuration.identity import folder, identity, title
from benchmark.configuration.instantiate import defaults, locate
from benchmark.configuration.suites import joined, lines_of
from benchmark.configuration.tuned import RATE, Constant, Rule
from benchmark.disk import write_json
from benchmark.errors import ConfigError
from benchmark.evaluation.protocols import expanded
from leaderboards import store
from leaderboards.encoders import shown

RECENT = 50
"""Finished trials from which the time of the others is estimated."""
SETTLED = ("row", "scenario", "seed")

Point = tuple[str, ...]
"""Overrides that make a trial of a row."""


class Outcome(NamedTuple):
    """What a trial scored: the mean over its seeds; None: training diverged.

    accuracy: of the probe on a slice of the training labels. evaluated: by which code, where and when.
    """

    score: float | None = None
    accuracy: float | None = None
    evaluated: Mapping[str, Any] | None = None


@dataclass
class Row:
    """A row that is searched.

    Args:
        words: of its `run` command, without what is searched and its names. base: its config before any search.
        constant: that is searched; None: it has none, or the row's line sets it. default: the constant's value.
        file: for what is chosen. chosen_by: as the rule's, a field of an `Outcome`.
        pinned: overrides of every trial, which keep what is chosen already out of it.
    """

    words: tuple[str, ...]
    base: DictConfig
    constant: Constant | None
    default: float
    file: Path
    pinned: tuple[str, ...] = ()
    chosen_by: str = "score"
    tried: dict[Point, Outcome] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    open: list[Job] = field(default_factory=list)

    @property
    def name(self) -> str:
        """In messages."""
        return f"{self.base.scenario} {self.base.row}"

    @property
    def best(self) -> Point | None:
        """The trial that the rule chooses, of equals the first; None where all have diverged."""
        scored = [point for point in self.points if self.tried.get(point, Outcome()).score is not None]
        return max(scored, key=lambda point: getattr(self.tried[point], self.chosen_by) or 0.0, default=None)

    @property
    def done(self) -> bool:
        """Whether every trial is known."""
        return bool(self.points) and all(point in self.tried for point in self.points)


def first_stage(rule: Rule) -> list[Point]:
    """The rates, with the constant at its default.

    >>> first_stage(Rule([0.1, 1.0], [], [100], None, "", ""))
    [('optimizer.lr=0.1',), ('optimizer.lr=1',)]
    """
    return [(f"{RATE}={rate:g}",) for rate in rule.rates]


def second_stage(rule: Rule, row: Row, best: Point) -> list[Point]:
    """At the best rate the values of the constant nearest to its default; without a constant finer rates around it."""
    if row.constant is None:
        rate = float(best[0].partition("=")[2])
        return [(f"{RATE}={rate * factor:.2g}",) for factor in rule.finer]
    others = [value for value in row.constant.values if float(value) != row.default]
    near = sorted(others, key=lambda value: abs(float(value) - row.default))[: len(rule.finer)]
    return [(*best, f"{row.constant.key}={value}") for value in others if value in near]


def rows_of(
    suite: str, replaced: Mapping[str, Any], placement: Sequence[str], into: Path | None
) -> tuple[list[Row], list[str]]:
    """The rows of a suite that can be searched, and a line for each other one.

    Args:
        replaced: `methods` or `scenarios` in place of the suite's. placement: overrides of where trials are executed.
        into: folder for the files SCENARIO/ROW.json; None: that which suites read, and `tuned` in the output folder for
            a scenario of the user's own.

    Raises ConfigError: two rows have one name, or a scenario is changed by the suite's line.
    """
    lists, rows, left_out = lines_of(suite, replaced), dict[str, Row](), list[str]()
    for setting, line in itertools.product(map(str, lists["scenarios"]), map(str, lists["methods"])):
        if len(setting.split()) > 1:
            raise ConfigError(f"suite {suite}: {setting}: a search is of a scenario as it is: give scenarios=NAME")
        row = _row(*joined(setting, line), placement=placement, into=into)
        if isinstance(row, str):
            left_out.append(row)
        elif rows.setdefault(row.name, row) is not row:
            raise ConfigError(f"suite {suite} names {row.name} twice: name every row once")
    return list(rows.values()), left_out


def _row(scenario: str, method: str, *line: str, placement: Sequence[str], into: Path | None) -> Row | str:
    """The row of a suite's line; or why it is not searched, in a line."""
    base = compose(scenario, method, placement, line, tuned=False)
    given = {word.partition("=")[0]: word.partition("=")[2] for word in line}
    name = f"{base.scenario} {base.row}"
    if not locate(base.method, "method").phases:
        return f"{name}: nothing is trained"
    if RATE in given and not base.optimizer.lr:
        return f"{name}: its line sets {RATE}={given[RATE]}, a control"
    constant = tuned.constant(base.method["name"])
    if constant is not None and constant.key in given:
        constant = None
    known = defaults(base)

    def value(key: str) -> Any:
        return known[key] if OmegaConf.select(base, key) is None else OmegaConf.select(base, key)

    kept = [word for word in line if word.partition("=")[0] not in (RATE, *SETTLED)]
    names = (base.row, base.method["name"], f"{base.method['name']}-{base.objective['name']}")  # a trial is of one
    chosen = [words for row in names for words in tuned.chosen(scenario, [row]).values()]
    keys = {word.partition("=")[0] for words in chosen for word in words} - {RATE}
    keys = {key for key in keys if key in known or OmegaConf.select(base, key) is not None}  # not those of other losses
    keys |= {constant.key} if constant else set()  # always, so that a trial is the same before and after the choice
    target = into or (Path(base.output) / "tuned" if scenario.endswith(".yaml") else tuned.TUNED)
    return Row(
        words=(scenario, method, *kept),
        base=base,
        constant=constant,
        default=float(value(constant.key)) if constant else 0.0,
        file=target / base.scenario / f"{base.row}.json",
        pinned=tuple(f"{key}={value(key)}" for key in sorted(keys - given.keys())),
    )


class Search:
    """The trials of some rows. jobs: those that are known and not finished, row by row; changed in place."""

    def __init__(self, rows: Sequence[Row], rule: Rule) -> None:
        self.rows, self.rule = rows, rule
        self.jobs: list[Job] = []
        self.recent: list[Job] = []
        self.made: dict[tuple[str, Point, int], Job] = {}  # one for each trial: the scheduler tells them by identity
        for row in rows:
            row.chosen_by = rule.chosen_by
            self._look(row)
        self._refill()

    def update(self, job: Job) -> Row | None:
        """Takes a finished job's outcome in; returns its row where that has its choice now, whose file is written."""
        name = next(name for (name, *_), made in self.made.items() if made is job)
        row = next(row for row in self.rows if row.name == name)
        before = row.done
        self._look(row)
        self._refill()
        return row if not before and self.write(row) else None

    def write(self, row: Row) -> bool:
        """Writes a row's file; False where it has no choice yet."""
        best = row.best if row.done else None
        if best is not None:
            write_json(row.file, self._content(row, best))
        return best is not None

    def estimates(self, machine: str) -> Estimates:
        """Times by the open trials and some finished ones."""
        return Estimates([*self.recent[-RECENT:], *self.jobs], machine)

    @property
    def counts(self) -> tuple[int, int]:
        """Finished runs of trials, and all of them; a row that has diverged at every rate has no second stage."""
        seeds = len(self.rule.seeds)
        total = sum(len(row.points) if row.done else self.rule.trials for row in self.rows) * seeds
        left = sum(len(row.open) + (self.rule.trials - len(row.points)) * seeds for row in self.rows if not row.done)
        return total - left, total

    def progress(self, estimates: Estimates, devices: int) -> tuple[int, str]:
        """Finished runs, and a line: those, the rows that have their choice, the time left."""
        done, total = self.counts
        seconds = [estimates.seconds(job, job_state(job, retry=True, check_lock=False)) for job in self.jobs]
        known = [each for each in seconds if each is not None]
        left = None if not known and done < total else (fmean(known) if known else 0.0) * (total - done) / devices
        rows = sum(row.done for row in self.rows)
        line = f"{done} of {total} trials done, {rows} of {len(self.rows)} rows, {format_seconds(left)} of work left"
        return done, line + (f" on {devices} devices" if devices > 1 else "")

    def _refill(self) -> None:
        self.jobs[:] = [job for row in self.rows for job in row.open]

    def _look(self, row: Row) -> None:
        """Reads what is known of a row's trials."""
        row.points = first_stage(self.rule)
        row.open = self._read(row, row.points)
        if not row.open and (best := row.best) is not None:
            second = second_stage(self.rule, row, best)
            row.points = [*row.points, *second]
            row.open = self._read(row, second)

    def _read(self, row: Row, points: Iterable[Point]) -> list[Job]:
        """Takes finished trials into `row.tried`; returns the jobs of the others."""
        unfinished: list[Job] = []
        for point in points:
            if point in row.tried:
                continue
            jobs = [self._job(row, point, seed) for seed in self.rule.seeds]
            known = {job.folder: outcome for job in jobs if (outcome := self._outcome(job)) is not None}
            unfinished += [job for job in jobs if job.folder not in known]
            if len(known) == len(jobs):
                row.tried[point] = _pooled(list(known.values()))
                self.recent += [job for job in jobs if job not in self.recent]
        return unfinished

    def _job(self, row: Row, point: Point, seed: int) -> Job:
        key = row.name, point, seed
        if key not in self.made:
            self.made[key] = make_job(row, self.rule, point, seed)
        return self.made[key]

    def _outcome(self, job: Job) -> Outcome | None:
        """What a run has scored, by its folder; None: it is not finished."""
        state = job_state(job, check_lock=False)
        if state.kind != Status.DONE:
            return Outcome() if state.diverged else None
        record = store.read(job.folder / "result.json")
        if record["provenance"]["config"] != identity(job.config):
            raise ConfigError(f"{job.folder} is a trial of another config: the row has changed: delete that folder")
        scores = shown(record)
        (free, score), (probe, accuracy) = (each.split() for each in (self.rule.label_free, self.rule.labels))
        return Outcome(scores[free][score], scores[probe][accuracy], record["evaluated"][free])

    def _content(self, row: Row, best: Point) -> dict[str, Any]:
        """Of a row's file; the best trials come first."""
        base, rule = row.base, self.rule
        order = sorted(row.points, key=lambda point: -(getattr(row.tried[point], row.chosen_by) or 0.0))
        order.sort(key=lambda point: row.tried[point].score is None)
        tried = [{"point": list(point), **row.tried[point]._asdict()} for point in order]
        content = {"scenario": base.scenario, "row": base.row, "method": base.method["name"]}
        content |= {"objective": base.objective["name"], "seeds": rule.seeds, "rounds": _rounds(row, rule)}
        content |= {"constant": f"{row.constant.key}={row.default:g}"} if row.constant else {}
        content |= {"chosen_by": row.chosen_by} if row.chosen_by != "score" else {}
        return content | {"score": rule.label_free, "accuracy": rule.labels, "best": list(best), "tried": tried}


def _rounds(row: Row, rule: Rule) -> int:
    planned = int(row.base.federation.rounds)
    return planned if rule.rounds is None else min(rule.rounds, planned)


def make_job(row: Row, rule: Rule, point: Point, seed: int) -> Job:
    """The run of a trial under a seed, in the folder SCENARIO/ROW/POINT of the output."""
    protocols = [rule.label_free.split()[0], rule.labels.split()[0]]
    set_by_point = {word.partition("=")[0] for word in point}
    searched = [*point, *(word for word in row.pinned if word.partition("=")[0] not in set_by_point)]
    searched += [f"seed={seed}", f"evaluation.protocols=[{','.join(protocols)}]", "evaluation.every=0"]
    searched += [f"federation.rounds={_rounds(row, rule)}"] if rule.rounds is not None else []
    names = [f"scenario={row.base.scenario}", f"row={row.base.row}/{'+'.join(point)}"]
    config = merge(row.base, [*searched, *names])
    return Job(
        words=(*row.words, *searched, *names),
        config=config,
        cells=(),
        protocols=expanded(protocols, config.data.name),
        folder=folder(config),
        name=title(config),
        rounds=int(config.federation.rounds),
    )


def _pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean over seeds; diverged where one has."""
    scores, accuracies, evaluated = zip(*outcomes, strict=True)
    if None in scores:
        return Outcome()
    dirty = any(each["dirty"] for each in evaluated)
    return Outcome(fmean(scores), fmean(accuracies), {**evaluated[0], "dirty": dirty})


class SearchScheduler(Scheduler):
    """Runs the trials of a search; those of a row's second stage join as soon as its first is over."""

    search: Search

    def finish(self, running: RunningJob) -> None:
        """Also takes the outcome in."""
        super().finish(running)
        if self.failed.get(running.job.name) is not None and job_state(running.job, check_lock=False).diverged:
            del self.failed[running.job.name]  # it is an outcome
        if (row := self.search.update(running.job)) is not None and row.best is not None:
            self.display.print(f"{row.name}: best: {' '.join(row.best)}; written to {row.file}")

    def progress(self, states: Sequence[State]) -> tuple[int, str]:
        """Of the whole search, not of the open trials alone."""
        return self.search.progress(self.estimates(), len(self.machine.devices))


def plan(search: Search) -> Table:
    """Every row: its constant and values, its finished trials, and its best setting so far."""
    headings = ("scenario", "row", "constant", "values")
    table = Table(*headings, Column("trials", justify="right"), "best so far", box=SIMPLE_HEAD)
    for row in search.rows:
        constant = ("-", "finer rates") if row.constant is None else (row.constant.key, ", ".join(row.constant.values))
        trials = f"{len(row.tried)}/{search.rule.trials}"
        table.add_row(row.base.scenario, row.base.row, *constant, trials, " ".join(row.best or ("-",)))
    return table
