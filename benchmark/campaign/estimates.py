"""Estimated time left of a run, from the recorded sessions of a campaign's runs."""

import contextlib
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmark.campaign.jobs import Job, State, Status, read_sessions
from benchmark.configuration.instantiate import locate
from benchmark.disk import read_lines
from leaderboards import schema, store

STARTUP = 5.0
"""Seconds from a command to its first round, if none has been timed."""


class TimedSession(NamedTuple):
    """Times of one session of a campaign on a run, with what estimates compare: asked of a config it takes longer.

    trains: whether its method does. rounds, device_seconds: of the rounds that it trained; device_seconds: seconds
    times ranks. startup: seconds outside rounds and scoring, None if the session was cut short. evaluation: seconds of
    scoring.
    """

    folder: Path
    scenario: str
    row: str
    method: str
    trains: bool
    machine: str
    rounds: int
    device_seconds: float
    startup: float | None
    evaluation: float | None


class Estimates:
    """Expected seconds of a campaign's jobs; sessions on another machine count only if this one has none."""

    def __init__(self, jobs: Iterable[Job], machine: str) -> None:
        sessions = [timed for job in jobs for timed in _timed_sessions(job)]
        self.sessions = [timed for timed in sessions if timed.machine == machine] or sessions

    def seconds(self, job: Job, state: State) -> float | None:
        """Seconds left of a job on one device; None if unknown."""
        rounds = job.rounds - state.rounds
        a_round = self.round(job) if rounds else 0.0
        return None if a_round is None else self.startup(job) + rounds * a_round + self.evaluation(job)

    def round(self, job: Job) -> float | None:
        """Seconds of one round on one device, measured on the run, its row, method or scenario; None if unknown."""
        sessions = [timed for timed in self._of_scenario(job) if timed.rounds]
        row, method = job.config.row, job.config.method["name"]
        of_row = [timed for timed in sessions if timed.row == row]
        of_run = [timed for timed in of_row if timed.folder == job.folder]
        of_method = [timed for timed in sessions if timed.method == method]
        similar = of_run or of_row or of_method or [timed for timed in sessions if timed.trains]
        rounds = sum(timed.rounds for timed in similar)
        return sum(timed.device_seconds for timed in similar) / rounds if rounds else None

    def startup(self, job: Job) -> float:
        """Seconds of a session outside rounds and scoring."""
        return self._median(job, "startup", STARTUP)

    def evaluation(self, job: Job) -> float:
        """Seconds of scoring; 0 if none was timed."""
        return self._median(job, "evaluation", 0.0)

    def _of_scenario(self, job: Job) -> list[TimedSession]:
        scenario = job.config.scenario
        return [timed for timed in self.sessions if timed.scenario == scenario]

    def _median(self, job: Job, name: str, default: float) -> float:
        """Median over the sessions of the job's scenario, else over all sessions, else the default."""
        for sessions in (self._of_scenario(job), self.sessions):
            if values := [value for timed in sessions if (value := getattr(timed, name)) is not None]:
                return statistics.median(values)
        return default


def _timed_sessions(job: Job) -> Iterator[TimedSession]:
    """The sessions on a job with the times of their rounds."""
    rounds, record, scoring = read_lines(job.folder / "rounds.jsonl"), job.folder / "result.json", None
    if record.exists():
        with contextlib.suppress(schema.RecordError):  # `job_state` reports it
            scoring = store.read(record)["seconds"]["evaluation"]
    for session in read_sessions(job.folder):
        trained = rounds[session["from"] : session["to"]]
        seconds = math.fsum(row["seconds"] for row in trained)
        evaluation = scoring if session["end"] == Status.DONE else None
        startup = None
        if session["end"] in (Status.DONE, Status.PAUSED):
            startup = max(0.0, session["seconds"] - seconds - (evaluation or 0.0))
        config = job.config
        yield TimedSession(
            folder=job.folder, scenario=config.scenario, row=config.row, method=config.method["name"],
            trains=bool(locate(config.method, "method").phases), machine=session["machine"], rounds=len(trained),
            device_seconds=seconds * session["ranks"], startup=startup, evaluation=evaluation,
        )  # fmt: skip
