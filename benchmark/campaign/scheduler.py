"""Scheduler of a campaign: starts the next job on each free device until all are done or the time is up.

Each job is a process of its own, `run` or `evaluate`, so that a failure affects no other job and memory is freed.
Commands stop by themselves before the deadline; those that do not are asked to stop, then killed. Finished rounds are
safe in every case.
"""

import datetime
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmark.campaign import summary
from benchmark.campaign.budget import Budget
from benchmark.campaign.devices import ForkedCommand, Machine, can_fork, preload, start_command
from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import (
    LOCK,
    Job,
    State,
    Status,
    append_session,
    count_rounds,
    diverged,
    job_state,
    read_sessions,
)
from benchmark.distributed.launch import cohort
from benchmark.errors import DEADLINE_PREFIX, EX_TEMPFAIL, count
from benchmark.experiment.data import source
from benchmark.experiment.lock import try_lock
from benchmark.runtime import LOCKED_BY_PARENT
from benchmark.tracking.progress import Display
from benchmark.tracking.record import headline
from datamodules.sources import DataError
from leaderboards import store

POLL_INTERVAL = 0.2
START_INTERVAL = 30.0
"""Seconds after which a free device is offered to the jobs again: another campaign may have given one up."""
LIVE_PROGRESS_INTERVAL, PROGRESS_INTERVAL = 2.0, 600.0
"""Seconds between two lines of progress, on a terminal and elsewhere."""
STOP_TIMEOUT = 10.0
"""Seconds from the request to stop until a command is killed."""


@dataclass
class RunningJob:
    """A job and its command.

    resources: its lock and its log, closed at the end. log_start: bytes of the log before. rounds: finished before.
    """

    job: Job
    process: subprocess.Popen | ForkedCommand
    resources: ExitStack
    devices: tuple[str, ...]
    rounds: int
    log_start: int
    asked_to_stop: bool = False
    start: float = field(default_factory=time.monotonic)
    date: datetime.datetime = field(default_factory=partial(datetime.datetime.now, datetime.UTC))

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self.asked_to_stop = True
        self.process.terminate()


class Scheduler:
    """Runs the commands of one campaign on one machine.

    Args:
        jobs: in order of importance. overrides: for every command. estimates: returns up-to-date estimates.
        budget: rounds have to end before its margin. retry: try failed jobs again.
        forked: does a job's command, given its arguments, in a fork of this process, where that is possible.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        overrides: Sequence[str],
        machine: Machine,
        display: Display,
        estimates: Callable[[], Estimates],
        budget: Budget,
        *,
        retry: bool = False,
        forked: Callable[[Job, list[str]], int] | None = None,
    ) -> None:
        self.forked = forked if can_fork(machine) else None
        self.jobs, self.overrides, self.machine, self.display = jobs, list(overrides), machine, display
        self.estimates, self.budget = estimates, budget
        self.retry, self.date = retry, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.free = list(machine.devices)
        self.running: list[RunningJob] = []
        self.excluded: dict[str, str] = {}  # name of a job that this campaign does not start again -> why
        self.failed: dict[str, str] = {}  # name of a job that failed or was refused -> why
        self.done: dict[Path, State] = {}  # by folder; read once, as this is asked for every few seconds
        self.last_progress, self.next_start = time.monotonic(), 0.0

    def run(self) -> None:
        """Run every job that can be run; all commands have ended when this returns or raises."""
        if self.forked is not None:
            preload(wandb=any(job.config.logger != "csv" for job in self.jobs))
        self.exclude_missing_data()
        try:
            while True:
                for running in [running for running in self.running if running.process.poll() is not None]:
                    self.finish(running)
                if self.free and time.monotonic() >= self.next_start:
                    self.start_jobs()
                if not self.running:
                    if any(self.job_state(job).runnable for job in self.jobs):
                        self.display.print("there is no time left for a round of any run that is open")
                    return
                self.enforce_deadline()
                self.show_progress()
                time.sleep(POLL_INTERVAL)
        finally:
            self.stop()

    def exclude_missing_data(self) -> None:
        """Exclude jobs whose images are not on this machine; images that are get decoded once, for all jobs."""
        errors: dict[str, str] = {}
        for job in self.jobs:
            data = str(job.config.data)
            if self.job_state(job).kind in (Status.DONE, Status.FAILED):
                continue
            if data not in errors:
                errors[data] = ""
                try:
                    source(job.config, self.display.decoding)
                except DataError as error:
                    errors[data] = str(error)
                    self.display.print(f"left out, and so is every run of {job.config.data.name}: {job.name}: {error}")
            if errors[data]:
                self.excluded[job.name] = self.failed[job.name] = errors[data]

    def start_jobs(self) -> None:
        """Start the next jobs on the free devices: one each, spare devices go to the last jobs as ranks."""
        self.next_start = time.monotonic() + START_INTERVAL
        if self.budget.left() <= 0:
            return
        waiting = [(job, state) for job in self.jobs if (state := self.job_state(job)).runnable]
        if waiting and not math.isinf(self.budget.left()):
            estimates = self.estimates()
            waiting = [(job, state) for job, state in waiting if self.fits_in_time(job, state, estimates)]
        for index, (job, state) in enumerate(waiting):
            if not self.free:
                return
            self.start(job, state, self.device_count(job, state, len(waiting) - index))

    def device_count(self, job: Job, state: State, waiting: int) -> int:
        """Number of the free devices for the first of some waiting jobs."""
        if state.missing:  # one process scores
            return 1
        return min(cohort(job.config), max(1, len(self.free) // waiting))

    def job_state(self, job: Job) -> State:
        """State of a job for this campaign, which does not start a BUSY or FAILED job."""
        if any(running.job is job for running in self.running):
            return State(Status.BUSY, count_rounds(job.folder))
        if job.folder not in self.done:
            state = job_state(job, self.is_retryable(job)).unless_failed(self.excluded.get(job.name))
            if state.kind != Status.DONE:
                return state
            self.done[job.folder] = state
        return self.done[job.folder]

    def is_retryable(self, job: Job) -> bool:
        """Whether a failure is ignored: with `retry`, unless its session began after this campaign did."""
        return self.retry and not any(session["began"] >= self.date for session in read_sessions(job.folder)[-1:])

    def fits_in_time(self, job: Job, state: State, estimates: Estimates) -> bool:
        """Whether a round, or the scoring after the last round, is expected to end in time."""
        step = estimates.round(job) if state.rounds < job.rounds else estimates.evaluation(job)
        return estimates.startup(job) + (step or 0.0) < self.budget.left()

    def start(self, job: Job, state: State, devices: int) -> None:
        """Start a job's command, unless another process works on the job or has changed its state.

        The campaign takes the run's lock for its command and passes it on, so that no other campaign starts the job
        before the command could lock the folder, nor before the session is recorded.
        """
        resources = ExitStack()
        job.folder.mkdir(parents=True, exist_ok=True)
        lock = resources.enter_context((job.folder / LOCK).open("a"))
        if not try_lock(lock) or job_state(job, self.is_retryable(job), check_lock=False) != state:
            resources.close()
            return
        used, self.free = tuple(self.free[:devices]), self.free[devices:]
        arguments = ["evaluate", str(job.folder), f"protocols={','.join(state.missing)}"]
        if not state.missing:
            left = max(0.0, self.budget.left()) / 60
            arguments = ["run", *job.words, *([] if math.isinf(left) else [f"minutes={left:.4f}"])]
        log = resources.enter_context((job.folder / "log.txt").open("a", encoding="utf-8"))
        log_start, variables = log.tell(), {LOCKED_BY_PARENT: os.fspath(job.folder.resolve())}
        forked = None if self.forked is None else partial(self.in_fork, job)
        with nullcontext() if forked is None else self.display.paused():
            process = start_command([*arguments, *self.overrides], self.machine, used, log, lock, variables, forked)
        self.running.append(RunningJob(job, process, resources, used, state.rounds, log_start))
        what = "scores" if state.rounds >= job.rounds else f"rounds {state.rounds + 1} to {job.rounds}"
        total = len(self.machine.devices)
        self.display.print(f"{job.name}: {what}{f', on {devices} of {total} devices' if total > 1 else ''}")

    def in_fork(self, job: Job, arguments: list[str]) -> int:
        """A job's command in a forked process, which keeps only its own lock; returns the exit code."""
        assert self.forked is not None
        for other in self.running:
            other.resources.close()
        return self.forked(job, arguments)

    def finish(self, running: RunningJob) -> None:
        """Record the session of a command that has ended, and free its devices."""
        self.next_start = 0.0
        self.running.remove(running)
        self.free += running.devices
        seconds, job = time.monotonic() - running.start, running.job
        state = job_state(job, retry=True, check_lock=False)
        end, why = (Status.DONE, "") if state.kind == Status.DONE else self.find_end(running)
        files = [job.folder / name for name in ("rounds.jsonl", "result.json")]
        written = any(file.exists() and file.stat().st_mtime >= running.date.timestamp() for file in files)
        # else it was refused: the next campaign tries it again
        if written or diverged(why) or (end != Status.FAILED and state.rounds):
            append_session(
                job.folder,
                {
                    "began": running.date.isoformat(timespec="seconds"), "seconds": seconds, "end": end, "why": why,
                    "from": running.rounds, "to": state.rounds, "ranks": len(running.devices),
                    "machine": self.machine.name,
                },
            )  # fmt: skip
        running.resources.close()
        if end == Status.FAILED:
            self.failed[job.name] = why
        if end in (Status.FAILED, Status.STOPPED):
            self.excluded[job.name] = why or "was ended"
        elif end == Status.PAUSED and state.rounds == running.rounds:  # no time, or another process has the run
            self.excluded[job.name] = "gained no round"
        if end == Status.DONE:
            line = f", {headline(store.read(job.folder / 'result.json'))}"
        else:
            line = f" after {state.rounds} of {job.rounds} rounds{f': {why}' if why else ''}"
        self.display.print(f"{job.name}: {end}{line}  ({summary.format_seconds(seconds)})")

    def find_end(self, running: RunningJob) -> tuple[str, str]:
        """End of an unfinished job's session, and the reason of a failure."""
        code = running.process.returncode
        output = (running.job.folder / "log.txt").read_bytes()[running.log_start :].decode("utf-8", errors="replace")
        # a command may be asked to stop while it ends by itself: what it printed then counts
        if code == EX_TEMPFAIL or f"\n{DEADLINE_PREFIX}" in f"\n{output}":
            return Status.PAUSED, ""
        if running.asked_to_stop or code in (130, -signal.SIGTERM, -signal.SIGINT):
            return Status.STOPPED, ""
        if code < 0:
            return Status.FAILED, f"ended by signal {-code}"
        return Status.FAILED, summary.failure_reason(output) or f"exit code {code}"

    def enforce_deadline(self) -> None:
        """Ask commands to stop half-way through the margin, and kill them at three quarters of it."""
        margin = self.budget.margin
        for running in self.running:
            if not running.asked_to_stop and self.budget.left() < -margin / 2:
                running.ask_to_stop()
            elif self.budget.left() < -margin * 3 / 4:
                running.process.kill()

    def stop(self) -> None:
        """End every command: ask it to stop, kill it after STOP_TIMEOUT or at a second Ctrl-C."""
        if self.running:
            self.display.print(f"ending {count(len(self.running), 'run')}; their finished rounds are safe")
        for running in self.running:
            running.ask_to_stop()
        kill_at = time.monotonic() + STOP_TIMEOUT
        while self.running:
            try:
                for running in list(self.running):
                    if running.process.poll() is not None:
                        self.finish(running)
                    elif time.monotonic() > kill_at:
                        running.process.kill()
                time.sleep(POLL_INTERVAL if self.running else 0)
            except KeyboardInterrupt:
                kill_at = 0.0

    def show_progress(self) -> None:
        """Show the progress of the campaign from time to time."""
        interval = LIVE_PROGRESS_INTERVAL if self.display.live else PROGRESS_INTERVAL
        if time.monotonic() - self.last_progress < interval:
            return
        self.last_progress = time.monotonic()
        done, line = self.progress([self.job_state(job) for job in self.jobs])
        if not math.isinf(left := self.budget.left()):
            line += f", {summary.format_seconds(max(0.0, left))} of the budget left"
        rounds = {r.job.name: (count_rounds(r.job.folder), r.job.rounds) for r in self.running}
        self.display.overview(done, line, rounds)

    def progress(self, states: Sequence[State]) -> tuple[int, str]:
        """Number of finished jobs, and the progress in a line. states: of the jobs."""
        line = summary.progress(self.jobs, states, self.estimates(), len(self.machine.devices))
        return sum(state.kind == Status.DONE for state in states), line
