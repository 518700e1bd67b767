"""Estimated time left of a run, from the recorded sessions of its own folder and of similar runs."""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from benchmark.campaign.jobs import SESSIONS, Job, State, Status, read_rounds, read_sessions
from benchmark.configuration.compose import load
from benchmark.distributed.launch import cohort
from benchmark.errors import ConfigError
from leaderboards import schema, store

IMAGES = {
    "cifar10": 50_000, "cifar100": 50_000, "fashion_mnist": 60_000, "svhn": 73_257, "tiny-imagenet": 100_000,
    "imagenet-100": 126_689,
}  # fmt: skip
"""Training images of the papers' data sets, for runs without a finished round."""

STARTUP = 5.0
"""Seconds from a command to its first round, if none has been timed."""


@dataclass(frozen=True)
class TimedSession:
    """Times of one session of a campaign on a run.

    rounds, images, device_seconds: of the rounds that it trained; device_seconds: seconds times ranks.
    startup: seconds outside rounds and scoring, None if the session was cut short. evaluation: seconds of scoring.
    """

    config: DictConfig
    folder: Path
    machine: str
    rounds: int
    images: int
    device_seconds: float
    startup: float | None
    evaluation: float | None


class Estimates:
    """Expected seconds of a campaign's jobs on one machine.

    Args:
        jobs: of the campaign, whose folders are read.
        machine: name; sessions on other machines count only if this one has none.
        speed: images/s to assume if nothing has been measured. others: sessions of other runs, see `other_sessions`.
    """

    def __init__(
        self, jobs: Iterable[Job], machine: str, speed: float | None = None, others: Sequence[TimedSession] = ()
    ) -> None:
        sessions = [*(timed for job in jobs for timed in timed_sessions(job.folder, job.config)), *others]
        self.sessions = [timed for timed in sessions if timed.machine == machine] or sessions
        self.speed = speed

    def seconds(self, job: Job, state: State) -> float | None:
        """Seconds left of a job on one device; None if unknown."""
        rounds = job.rounds - state.rounds
        a_round = self.round(job) if rounds else 0.0
        return None if a_round is None else self.startup(job) + rounds * a_round + self.evaluation(job)

    def round(self, job: Job) -> float | None:
        """Seconds of one round on one device: measured on the run, its row or its method; else from images/s."""
        sessions = [timed for timed in self._of_scenario(job) if timed.rounds]
        for similar in (
            [timed for timed in sessions if timed.folder == job.folder],
            [timed for timed in sessions if timed.config.row == job.config.row],
            [timed for timed in sessions if timed.config.method["name"] == job.config.method["name"]],
        ):
            if similar:
                return sum(timed.device_seconds for timed in similar) / sum(timed.rounds for timed in similar)
        images, speed = self._images_per_round(job, sessions), self._images_per_second(job)
        return images / speed if images and speed else None

    def startup(self, job: Job) -> float:
        """Seconds of a session outside rounds and scoring."""
        return self._median(job, lambda timed: timed.startup, STARTUP)

    def evaluation(self, job: Job) -> float:
        """Seconds of scoring; 0 if none was timed."""
        return self._median(job, lambda timed: timed.evaluation, 0.0)

    def _of_scenario(self, job: Job) -> list[TimedSession]:
        return [timed for timed in self.sessions if timed.config.scenario == job.config.scenario]

    def _images_per_round(self, job: Job, sessions: Sequence[TimedSession]) -> float | None:
        if sessions:
            return sum(timed.images for timed in sessions) / sum(timed.rounds for timed in sessions)
        config = job.config
        participants = cohort(config)
        if config.training.steps is not None:
            return participants * config.training.steps * config.training.batch_size
        fraction = participants / int(config.partition.get("clients", 10)) * config.partition.get("share", 1.0)
        images = IMAGES.get(config.data.name)
        return images * fraction * config.training.epochs if images else None

    def _images_per_second(self, job: Job) -> float | None:
        encoder = job.config.encoder["class"]
        sessions = [timed for timed in self.sessions if timed.config.encoder["class"] == encoder]
        seconds = sum(timed.device_seconds for timed in sessions)
        return sum(timed.images for timed in sessions) / seconds if seconds else self.speed

    def _median(self, job: Job, value: Callable[[TimedSession], float | None], default: float) -> float:
        """Median over the sessions of the job's scenario, else over all sessions, else the default."""
        for sessions in (self._of_scenario(job), self.sessions):
            if values := [known for timed in sessions if (known := value(timed)) is not None]:
                return statistics.median(values)
        return default


def other_sessions(output: Path, jobs: Iterable[Job]) -> list[TimedSession]:
    """Sessions of the runs in a folder of runs that are not among the jobs."""
    folders = {job.folder for job in jobs}
    sessions = []
    for file in output.rglob(SESSIONS) if output.is_dir() else []:
        if file.parent not in folders:
            with contextlib.suppress(ConfigError):  # a run whose config cannot be read is skipped
                sessions += timed_sessions(file.parent, load(file.parent / "config.yaml"))
    return sessions


def timed_sessions(folder: Path, config: DictConfig) -> list[TimedSession]:
    """A run folder's sessions with the times of their rounds."""
    rounds, record, scoring = read_rounds(folder), folder / "result.json", None
    if record.exists():
        with contextlib.suppress(schema.RecordError):  # `job_state` reports it
            scoring = store.read(record)["seconds"]["evaluation"]
    timed = []
    for session in read_sessions(folder):
        trained = rounds[session["from"] : session["to"]]
        seconds, images = math.fsum(row["seconds"] for row in trained), sum(row["images"] for row in trained)
        evaluation = scoring if session["end"] == Status.DONE else None
        startup = max(0.0, session["seconds"] - seconds - (evaluation or 0.0))
        timed.append(
            TimedSession(
                config, folder, session["machine"], len(trained), images, seconds * session["ranks"],
                startup if session["end"] in (Status.DONE, Status.PAUSED) else None, evaluation,
            )
        )  # fmt: skip
    return timed
