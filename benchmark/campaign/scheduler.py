"""Works off a campaign: the next piece in order on whatever device is free, until all is done or the time is up.

A piece is played by a command of its own, `run` or `evaluate`, so that one that fails takes nothing with it and memory
is given back. Commands stop by themselves before the time is up; those that do not are told to, and at last ended. What
was played is safe in every case.
"""

import datetime
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmark.campaign import summary
from benchmark.campaign.devices import Machine, start
from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import (
    BUSY,
    DONE,
    FAILED,
    HALF,
    OPEN,
    PAUSED,
    STOPPED,
    Job,
    State,
    claimed,
    look,
    note,
    played,
    sessions,
)
from benchmark.errors import DEADLINE_PREFIX, EX_TEMPFAIL
from benchmark.experiment.data import source
from benchmark.runtime import began
from benchmark.tracking.progress import Display
from benchmark.tracking.record import headline
from datamodules.sources import DataError
from leaderboards import store

MARGIN, SHARE = 20.0, 0.1
"""Seconds before the end of the budget by which rounds have to end; of a short one this share."""
LOOK = 0.2
"""Seconds between two looks at the commands."""
AGAIN = 30.0
"""Seconds after which a free device is offered to the pieces again: others may have given one up."""
SHOW, SAY = 2.0, 600.0
"""Seconds between two lines of progress, on a terminal and elsewhere."""


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass
class RunningJob:
    """A command at work on a piece.

    held: the claim and the log, to be closed; log: bytes of it before. before: rounds it began with.
    together: the most commands at once so far. told: to end. began, date: by `time.monotonic`, and by the calendar.
    """

    piece: Job
    child: subprocess.Popen
    held: ExitStack
    devices: tuple[str, ...]
    before: int
    log: int
    together: int = 1
    told: bool = False
    began: float = field(default_factory=time.monotonic)
    date: datetime.datetime = field(default_factory=_now)

    def touched(self) -> bool:
        """Whether it came so far as to write rounds or a record, and was not refused before."""
        files = [self.piece.folder / name for name in ("rounds.jsonl", "result.json")]
        return any(file.exists() and file.stat().st_mtime >= self.date.timestamp() for file in files)


class Scheduler:
    """The commands of one campaign on one machine.

    Args:
        pieces: in order of worth. overrides: for every command. on: the devices.
        minutes: the budget, from the start of the command; None: until all is done.
        retry: failed pieces are tried again. expected: what is known now of the time pieces take.
    """

    def __init__(
        self,
        pieces: Sequence[Job],
        overrides: Sequence[str],
        on: Machine,
        display: Display,
        expected: Callable[[], Estimates],
        *,
        minutes: float | None = None,
        retry: bool = False,
    ) -> None:
        self.pieces, self.overrides, self.on, self.display = pieces, list(overrides), on, display
        self.expected = expected
        self.end = None if minutes is None else began() + 60 * minutes
        self.margin = min(MARGIN, SHARE * 60 * minutes) if minutes is not None else 0.0
        self.retry, self.since = retry, _now().isoformat(timespec="seconds")
        self.free = list(on.devices)
        self.jobs: list[RunningJob] = []
        self.over: dict[str, str] = {}  # name -> why it is not begun again by this campaign
        self.failed: dict[str, str] = {}  # name -> with what error it ended, or was refused
        self.said = self.begun = time.monotonic()
        self.changed = True

    def work(self) -> None:
        """Plays what can be played; every command has ended when this returns or raises."""
        self.refuse()
        try:
            while True:
                for job in [job for job in self.jobs if job.child.poll() is not None]:
                    self.close(job)
                if self.free and (self.changed or time.monotonic() - self.begun > AGAIN):
                    self.begin()
                if not self.jobs:
                    if any(self.look(piece).kind in (HALF, OPEN) for piece in self.pieces):
                        self.display.say("there is no time left for a round of any run that is open")
                    return
                self.enforce_deadline()
                self.tell()
                time.sleep(LOOK)
        finally:
            self.stop()

    def refuse(self) -> None:
        """Leaves out the pieces whose images are not here; those that are here are decoded once, for all."""
        why: dict[str, str] = {}
        for piece in self.pieces:
            data = str(piece.config.data)
            if self.look(piece).kind in (DONE, FAILED):
                continue
            if data not in why:
                why[data] = ""
                try:
                    source(piece.config, self.display.decoding)
                except DataError as error:
                    why[data] = str(error)
                    self.display.say(
                        f"left out, and so is every run of {piece.config.data.name}: {piece.name}: {error}"
                    )
            if why[data]:
                self.over[piece.name] = self.failed[piece.name] = why[data]

    def begin(self) -> None:
        """Starts the next pieces on the free devices."""
        self.changed, self.begun = False, time.monotonic()
        if self.left() <= 0:
            return
        states = [(piece, self.look(piece)) for piece in self.pieces]
        waiting = [(piece, state) for piece, state in states if state.kind in (HALF, OPEN)]
        estimates = self.expected()
        waiting = [(piece, state) for piece, state in waiting if self.fits(piece, state, estimates)]
        for place, (piece, state) in enumerate(waiting):
            wanted = estimates.devices(piece, len(waiting) - place, len(self.free), len(self.on.devices))
            wanted = min(wanted, self.on.most)
            if not self.free or wanted > len(self.free):
                return
            self.start(piece, state, 1 if state.missing else wanted)  # one process scores

    def look(self, piece: Job) -> State:
        """How far a piece is, and whether this campaign has to do with it."""
        if any(job.piece is piece for job in self.jobs):
            return State(BUSY, played(piece.folder))
        return look(piece, self.is_retryable(piece)).unless(self.over.get(piece.name))

    def verdict(self, piece: Job) -> State:
        """How far a piece is, at the end; what was refused or left out has failed, if only for this campaign."""
        return look(piece).unless(self.failed.get(piece.name))

    def is_retryable(self, piece: Job) -> bool:
        """Whether a failure of this piece does not count: one of before, where it is to be tried again."""
        return self.retry and not any(one["began"] >= self.since for one in sessions(piece.folder)[-1:])

    def fits(self, piece: Job, state: State, estimates: Estimates) -> bool:
        """Whether a round, or what is left after the last, can be done in time, as far as anybody knows."""
        each = estimates.round(piece) if state.rounds < piece.rounds else estimates.evaluation(piece)
        return estimates.start(piece) + (each or 0.0) < self.left()

    def left(self) -> float:
        """Seconds in which rounds may still be played."""
        return float("inf") if self.end is None else self.end - self.margin - time.monotonic()

    def start(self, piece: Job, state: State, number: int) -> None:
        """Starts a piece's command, unless another campaign was faster."""
        held = ExitStack()
        if not held.enter_context(claimed(piece)):
            held.close()
            return
        if look(piece, self.is_retryable(piece), own=True) != state:  # somebody had it since we looked
            held.close()
            return
        devices, self.free = tuple(self.free[:number]), self.free[number:]
        words = ["evaluate", str(piece.folder), f"protocols={','.join(state.missing)}"]
        if not state.missing:
            words = ["run", *piece.words]
            words += [f"minutes={max(0.0, self.left()) / 60:.4f}"] if self.end is not None else []
        words += self.overrides
        log = held.enter_context((piece.folder / "log.txt").open("a", encoding="utf-8"))
        before = log.tell()
        job = RunningJob(piece, start(words, self.on, devices, log), held, devices, state.rounds, before)
        self.jobs.append(job)
        for one in self.jobs:
            one.together = max(one.together, len(self.jobs))
        what = "scores" if state.rounds >= piece.rounds else f"rounds {state.rounds + 1} to {piece.rounds}"
        several = len(self.on.devices) > 1
        where = f", on {len(devices)} of {len(self.on.devices)} devices" if several else ""
        self.display.say(f"{piece.name}: {what}{where}")

    def close(self, job: RunningJob) -> None:
        """Takes note of a command that has ended."""
        self.changed = True
        self.jobs.remove(job)
        self.free += job.devices
        seconds, piece = time.monotonic() - job.began, job.piece
        after = look(piece, retry=True, own=True)
        end, why = DONE, ""
        if after.kind != DONE:
            end, why = self.ended(job)
        if job.touched() or (end != FAILED and after.rounds):  # what was refused is tried anew by the next campaign
            about = {"began": job.date.isoformat(timespec="seconds"), "seconds": seconds, "end": end, "why": why}
            about |= {"from": job.before, "to": after.rounds, "ranks": len(job.devices)}
            note(piece.folder, {**about, "together": job.together, "machine": self.on.name})
        job.held.close()
        if end == FAILED:
            self.failed[piece.name] = why
        if end in (FAILED, STOPPED):
            self.over[piece.name] = why or "was ended"
        elif end == PAUSED and after.rounds == job.before:  # somebody else is at it, or there is no time for a round
            self.over[piece.name] = "gained no round"
        left = f" after {after.rounds} of {piece.rounds} rounds"
        if end == DONE:
            left = f", {headline(store.read(piece.folder / 'result.json'))}"
        self.display.say(f"{piece.name}: {end}{left}{f': {why}' if why else ''}  ({summary.span(seconds)})")

    def ended(self, job: RunningJob) -> tuple[str, str]:
        """How a command that is not done ended, and why."""
        code = job.child.returncode
        said = (job.piece.folder / "log.txt").read_bytes()[job.log :].decode("utf-8", errors="replace")
        if (
            code == EX_TEMPFAIL or f"\n{DEADLINE_PREFIX}" in f"\n{said}"
        ):  # told to end it may be, while it was ending by itself
            return PAUSED, ""
        if job.told or code in (130, -signal.SIGTERM, -signal.SIGINT):
            return STOPPED, ""
        if code < 0:
            return FAILED, f"ended by signal {-code}"
        return FAILED, summary.reason(said) or f"exit code {code}"

    def enforce_deadline(self) -> None:
        """Tells commands to end where the time is nearly up, and ends them where it is."""
        if self.end is None:
            return
        now = time.monotonic()
        for job in self.jobs:
            if not job.told and now > self.end - self.margin / 2:
                job.told = True
                job.child.terminate()
            elif now > self.end - self.margin / 4:
                job.child.kill()

    def stop(self) -> None:
        """Ends every command: first asked, then forced."""
        if self.jobs:
            self.display.say(f"ending {len(self.jobs)} runs; their finished rounds are safe")
        for job in self.jobs:
            job.told = True
            job.child.terminate()
        until = time.monotonic() + 10
        while self.jobs:
            try:
                for job in list(self.jobs):
                    if job.child.poll() is not None:
                        self.close(job)
                    elif time.monotonic() > until:
                        job.child.kill()
                time.sleep(LOOK if self.jobs else 0)
            except KeyboardInterrupt:  # once more: somebody does not want to wait
                until = 0.0

    def tell(self) -> None:
        """Progress over the campaign, from time to time."""
        if time.monotonic() - self.said < (SHOW if self.display.live else SAY):
            return
        self.said = time.monotonic()
        states = [self.look(piece) for piece in self.pieces]
        line = summary.progress(self.pieces, states, self.expected(), len(self.on.devices))
        line += f", {summary.span(max(0.0, self.left()))} of the budget left" if self.end is not None else ""
        now = {job.piece.name: (played(job.piece.folder), job.piece.rounds) for job in self.jobs}
        self.display.overview(sum(state.kind == DONE for state in states), line, now)
