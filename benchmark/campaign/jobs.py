"""Jobs of a campaign: its runs in order of importance, with the published numbers they settle and their state.

A run's state follows from its folder alone: its record, its rounds, its lock, and `sessions.jsonl`, which has a line
for each time that a campaign ran it.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from benchmark.configuration.compose import compose
from benchmark.configuration.files import read
from benchmark.configuration.identity import RUNTIME, differences, folder, title
from benchmark.configuration.keys import nearest
from benchmark.configuration.suites import joined, listed
from benchmark.disk import read_lines
from benchmark.errors import ConfigError
from benchmark.evaluation.protocols import expanded
from benchmark.experiment.lock import is_locked
from leaderboards import schema, store
from leaderboards.papers import tables
from leaderboards.papers.tables import Published
from leaderboards.papers.verdicts import ALLOWED

SESSIONS, LOCK = "sessions.jsonl", "lock"

COMMAND_KEYS = ("minutes", "devices", "plan", "retry", "cluster", "jobs")
"""Keys of the command line that the command `campaign` itself takes."""

FILE_KEYS = ("parts", "unknown")
PART_KEYS = ("scenarios", "methods", "seeds")


class Status(StrEnum):
    """Kinds of a job's state, and ends of a session: done, failed, paused (ended by itself), stopped (was asked to)."""

    DONE = "done"
    HALF = "half done"
    OPEN = "open"
    BUSY = "busy"
    FAILED = "failed"
    PAUSED = "paused"
    STOPPED = "stopped"


class State(NamedTuple):
    """State of a job. rounds: finished. missing: protocols its record lacks. why: reason of a failure."""

    kind: Status
    rounds: int
    missing: tuple[str, ...] = ()
    why: str = ""

    @property
    def runnable(self) -> bool:
        """Whether there is work left that no process is doing."""
        return self.kind in (Status.HALF, Status.OPEN)

    @property
    def diverged(self) -> bool:
        """Whether it failed because numbers of its training, or its features, were not finite."""
        return self.kind == Status.FAILED and diverged(self.why)

    def unless_failed(self, why: str | None) -> "State":
        """This state; FAILED if it is runnable and a reason against running it is given."""
        return State(Status.FAILED, self.rounds, why=why) if why is not None and self.runnable else self


def diverged(why: str) -> bool:
    """Whether the reason of a failure is that numbers were not finite: another try would end the same way.

    >>> diverged("the loss of client 3 became nan in round 1, phase 'fit'"), diverged("ended by signal 9")
    (True, False)
    """
    return re.search(r"not finite|\bbecame -?(nan|inf)\b", why) is not None


class Job(NamedTuple):
    """One run of a campaign.

    words: arguments of its `run` command. config: composed from them, with the protocols its cells need.
    cells: the published numbers that a rule compares with this run. protocols: ids of those that score it.
    """

    words: tuple[str, ...]
    config: DictConfig
    cells: tuple[Published, ...]
    protocols: list[str]
    folder: Path
    name: str
    rounds: int


def load_jobs(names: Iterable[str], overrides: Sequence[str]) -> list[Job]:
    """Jobs of some campaigns in order, each run once.

    Args:
        names: of shipped campaigns, or paths of files.
        overrides: for every run, of keys that set where and how it is executed.

    Raises ConfigError: a file that docs/how-to/campaigns.md does not allow, or an override that changes what a run is.
    """
    check_placement(overrides, COMMAND_KEYS, "a campaign's file defines its runs")
    cells: dict[tuple[str, str], list[Published]] = {}
    for cell in tables.collect():
        if cell.ours is not None:
            cells.setdefault(cell.ours[:2], []).append(cell)
    jobs: dict[Path, Job] = {}
    for name in names:
        for words in _lines(name):
            try:
                job = _build_job(words, overrides, cells)
            except ConfigError as error:
                raise ConfigError(f"campaign {name}, {' '.join(words)}: {error}") from error
            if unlike := differences(jobs.setdefault(job.folder, job).config, job.config):
                raise ConfigError(f"campaign {name}: {job.name} is two runs ({'; '.join(unlike)}): give each a row=")
    return list(jobs.values())


def check_placement(overrides: Iterable[str], keys: Iterable[str], why: str) -> None:
    """ConfigError where an override is of no key that sets where a run is executed. keys: the command's own."""
    for word in overrides:
        if (key := word.partition("=")[0]) not in RUNTIME:
            known = tuple(dict.fromkeys((*keys, *RUNTIME)))
            raise ConfigError(f"{word}: {why}{nearest(key, known)}; the command line takes only {', '.join(known)}")


def _lines(name: str) -> Iterator[list[str]]:
    """Words of each run of a campaign's file, in order: part by part, seed by seed."""
    content = read("campaign", name)
    if wrong := [str(key) for key in content if key not in FILE_KEYS]:
        raise ConfigError(f"campaign {name}: {wrong[0]} is unknown; a campaign has {' and '.join(FILE_KEYS)}")
    if not isinstance(content.get("parts"), list) or not content["parts"]:
        raise ConfigError(f"campaign {name}: parts is a list; each part has {', '.join(PART_KEYS)}")
    for index, part in enumerate(content["parts"], 1):
        lists = {}
        if isinstance(part, Mapping):
            given = {key: [] if lines is None else listed(lines) for key, lines in part.items()}
            lists = {key: [str(line).strip() for line in lines] for key, lines in given.items()}
        if set(lists) != set(PART_KEYS) or not all(lines and all(lines) for lines in lists.values()):
            raise ConfigError(f"campaign {name}, part {index}: give lines of {', '.join(PART_KEYS)}, not {part!r}")
        for seed, setting, line in itertools.product(lists["seeds"], lists["scenarios"], lists["methods"]):
            yield [*joined(setting, line), f"seed={seed}"]


def open_questions(name: str) -> list[str]:
    """What a campaign's papers leave open about its settings (`unknown` in its file)."""
    lines = read("campaign", name).get("unknown") or []
    return list(map(str, lines if isinstance(lines, list) else [lines]))


def _build_job(
    words: list[str], overrides: Sequence[str], cells_by_row: Mapping[tuple[str, str], list[Published]]
) -> Job:
    scenario, method, *changes = words
    if how := [word for word in changes if word.partition("=")[0] in RUNTIME]:
        raise ConfigError(f"{how[0]}: a campaign's file only defines its runs; give this on the command line")
    config = compose(scenario, method, [*changes, *overrides])
    cells = cells_by_row.get((config.scenario, config.row), [])
    compared = [cell.ours.score.partition(" ")[0] for cell in cells if cell.ours is not None]
    config.evaluation.protocols = list(dict.fromkeys([*config.evaluation.protocols, *compared]))
    words = [word for word in words if not word.startswith("evaluation.protocols=")]
    return Job(
        words=(*words, f"evaluation.protocols=[{','.join(config.evaluation.protocols)}]"),
        config=config,
        cells=tuple(cell for cell in cells if cell.unit in ALLOWED),
        protocols=expanded(config.evaluation.protocols, config.data.name),
        folder=folder(config),
        name=title(config),
        rounds=int(config.federation.rounds),
    )


def job_state(job: Job, retry: bool = False, check_lock: bool = True) -> State:
    """State of a job by its folder.

    retry: a failed session is ignored, but not an unreadable record. check_lock: a locked folder is BUSY, if it has
    work left; False for the holder of the lock.
    """
    rounds = count_rounds(job.folder)
    missing: tuple[str, ...] = ()
    if (job.folder / "result.json").exists():
        try:
            record = store.read(job.folder / "result.json")
        except schema.RecordError as error:
            return State(Status.FAILED, rounds, why=str(error))
        rounds, missing = record["rounds"]["done"], tuple(set(job.protocols) - set(record["scores"]))
        if not missing:
            return State(Status.DONE, rounds)
    if check_lock and is_locked(job.folder / LOCK):
        return State(Status.BUSY, rounds)
    last = (read_sessions(job.folder) or [{}])[-1]
    if last.get("end") == Status.FAILED and not retry:
        return State(Status.FAILED, rounds, missing, last["why"])
    return State(Status.HALF if rounds else Status.OPEN, rounds, missing)


def count_rounds(folder: Path) -> int:
    """Finished rounds of a run folder."""
    return len(read_lines(folder / "rounds.jsonl"))


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Sessions of campaigns on a run: when it began, its seconds, rounds before and after, ranks, end and why."""
    return read_lines(folder / SESSIONS)


def append_session(folder: Path, session: Mapping[str, Any]) -> None:
    """Add a line to a run folder's `sessions.jsonl`."""
    with (folder / SESSIONS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(session) + "\n")
