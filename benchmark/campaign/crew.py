"""Works off a campaign: the next piece in order on whatever device is free, until all is done or the time is up.

A piece is played by a command of its own, `run` or `evaluate`, so that one that fails takes nothing with it and memory
is given back. Commands stop by themselves before the time is up; those that do not are told to, and at last ended. What
was played is safe in every case.
"""

import contextlib
import datetime
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

from benchmark.callbacks import Display
from benchmark.campaign import report
from benchmark.campaign.estimates import Estimates
from benchmark.campaign.machine import Machine, start
from benchmark.campaign.pieces import BUSY, DONE, FAILED, HALF, OPEN, Piece, State, claimed, look, note, played
from benchmark.commands import LATER
from benchmark.ranks import cohort

MARGIN, SHARE = 20.0, 0.1
"""Seconds before the end of the budget by which rounds have to end; of a short one this share."""
LOOK = 0.2
"""Seconds between two looks at the commands."""
AGAIN = 30.0
"""Seconds after which a free device is offered to the pieces again: others may have given one up."""
SHOW, SAY = 2.0, 600.0
"""Seconds between two lines of progress, on a terminal and elsewhere."""
PAUSED, STOPPED = "paused", "stopped"
"""Ends of a session, beside DONE and FAILED: it ran out of time by itself, or it was told to end."""


@dataclass
class Job:
    """A command at work on a piece."""

    piece: Piece
    child: subprocess.Popen
    log: IO[str]
    held: ExitStack
    devices: tuple[str, ...]
    before: int
    evaluates: bool
    together: int = 1
    told: bool = False
    began: float = field(default_factory=time.monotonic)
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))


class Crew:
    """The commands of one campaign on one machine.

    Args:
        pieces: in order of worth. overrides: for every command. on: the devices.
        minutes: the budget, from now; None: until all is done. retry: failed pieces are tried again.
        speed: images/s to expect where nothing was measured.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        overrides: Sequence[str],
        on: Machine,
        display: Display,
        *,
        minutes: float | None = None,
        retry: bool = False,
        speed: float | None = None,
    ) -> None:
        self.pieces, self.overrides, self.on, self.display = pieces, list(overrides), on, display
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.margin = min(MARGIN, SHARE * 60 * minutes) if minutes is not None else 0.0
        self.retry, self.speed = retry, speed
        self.free = list(on.devices)
        self.jobs: list[Job] = []
        self.over: dict[str, str] = {}  # folder -> why it is not begun again by this campaign
        self.said = self.begun = time.monotonic()
        self.changed = True

    def work(self) -> None:
        """Plays what can be played; every command has ended when this returns or raises."""
        try:
            while True:
                for job in [job for job in self.jobs if job.child.poll() is not None]:
                    self.close(job)
                if self.free and (self.changed or time.monotonic() - self.begun > AGAIN):
                    self.begin()
                if not self.jobs:
                    return
                self.hurry()
                self.tell()
                time.sleep(LOOK)
        finally:
            self.stop()

    def begin(self) -> None:
        """Starts the next pieces on the free devices."""
        self.changed, self.begun = False, time.monotonic()
        if self.left() <= 0:
            return
        states = [(piece, self.look(piece)) for piece in self.pieces]
        waiting = [(piece, state) for piece, state in states if state.kind in (HALF, OPEN)]
        estimates = Estimates(self.pieces, self.on.name, self.speed)
        waiting = [(piece, state) for piece, state in waiting if self.fits(piece, state, estimates)]
        for place, (piece, state) in enumerate(waiting):
            wanted = ranks(len(waiting) - place, len(self.free), len(self.on.devices), estimates)
            if not self.free or wanted > len(self.free):
                return
            self.start(piece, state, min(wanted, cohort(piece.config)))

    def look(self, piece: Piece) -> State:
        """How far a piece is, and whether this campaign has to do with it."""
        if any(job.piece is piece for job in self.jobs):
            return State(BUSY, 0)
        state = look(piece, self.retry)
        why = self.over.get(str(piece.folder))
        return State(FAILED, state.rounds, why=why) if why is not None and state.kind in (HALF, OPEN) else state

    def fits(self, piece: Piece, state: State, estimates: Estimates) -> bool:
        """Whether a round, or what is left after the last, can be done in time; True where nobody knows."""
        each = estimates.round(piece) if state.rounds < piece.rounds else estimates.evaluation(piece)
        return each is None or estimates.start(piece) + each < self.left()

    def left(self) -> float:
        """Seconds in which rounds may still be played."""
        return float("inf") if self.end is None else self.end - self.margin - time.monotonic()

    def start(self, piece: Piece, state: State, number: int) -> None:
        """Starts a piece's command, unless another campaign was faster."""
        held = ExitStack()
        if not held.enter_context(claimed(piece)):
            held.close()
            return
        if look(piece, self.retry, own=True) != state:  # somebody had it since we looked
            held.close()
            return
        devices, self.free = tuple(self.free[:number]), self.free[number:]
        evaluates = state.rounds >= piece.rounds and bool(state.missing)
        words = ["evaluate", str(piece.folder), f"protocols={','.join(state.missing)}"] if evaluates else ["run"]
        words += [] if evaluates else list(piece.words)
        words += self.overrides
        if self.end is not None and not evaluates:
            words.append(f"minutes={self.left() / 60:.4f}")
        log = held.enter_context((piece.folder / "log.txt").open("a", encoding="utf-8"))
        job = Job(piece, start(words, self.on, devices, log), log, held, devices, state.rounds, evaluates)
        self.jobs.append(job)
        for one in self.jobs:
            one.together = max(one.together, len(self.jobs))
        what = "scores" if state.rounds >= piece.rounds else f"rounds {state.rounds + 1} to {piece.rounds}"
        self.display.say(f"{piece.name}: {what}, on {len(devices)} of {len(self.on.devices)} devices")

    def close(self, job: Job) -> None:
        """Takes note of a command that has ended."""
        self.changed = True
        self.jobs.remove(job)
        self.free += job.devices
        seconds, piece = time.monotonic() - job.began, job.piece
        after = look(piece, retry=True, own=True)
        end, why = DONE, ""
        if after.kind != DONE:
            end, why = self.ended(job)
        job.log.flush()
        if (piece.folder / "config.yaml").exists():  # what was refused before it began is to be tried anew
            about = {"began": job.date, "seconds": seconds, "from": job.before, "to": after.rounds}
            about |= {"ranks": len(job.devices), "together": job.together, "machine": self.on.name}
            note(piece.folder, {**about, "end": end, "why": why})
        job.held.close()
        if end in (FAILED, STOPPED):
            self.over[str(piece.folder)] = why or "was ended"
        elif end == PAUSED and after.rounds == job.before:  # somebody else is at it, or there is no time for a round
            self.over[str(piece.folder)] = "gained no round"
        left = "" if end == DONE else f" after {after.rounds} of {piece.rounds} rounds"
        self.display.say(f"{piece.name}: {end}{left}{f': {why}' if why else ''}  ({report.span(seconds)})")

    def ended(self, job: Job) -> tuple[str, str]:
        """How a command that is not done ended, and why."""
        code = job.child.returncode
        if code == LATER:
            return PAUSED, ""
        if job.told or code in (130, -signal.SIGTERM, -signal.SIGINT):
            return STOPPED, ""
        if code < 0:
            return FAILED, f"ended by signal {-code}"
        said = (job.piece.folder / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), f"exit code {code}")
        return FAILED, last.removeprefix("error: ")

    def hurry(self) -> None:
        """Tells commands to end where the time is nearly up, and ends them where it is."""
        if self.end is None:
            return
        now = time.monotonic()
        for job in self.jobs:
            if not job.told and now > self.end - self.margin / 2:
                job.told = True
                job.child.terminate()
            elif now > self.end:
                job.child.kill()

    def stop(self) -> None:
        """Ends every command: first asked, then forced."""
        for job in self.jobs:
            job.told = True
            with contextlib.suppress(OSError):
                os.kill(job.child.pid, signal.SIGTERM)
        until = time.monotonic() + 10
        while self.jobs:
            for job in list(self.jobs):
                if job.child.poll() is not None:
                    self.close(job)
                elif time.monotonic() > until:
                    job.child.kill()
            time.sleep(LOOK if self.jobs else 0)

    def tell(self) -> None:
        """Progress over the campaign: cells settled, hours left."""
        if time.monotonic() - self.said < (SHOW if self.display.live else SAY):
            return
        self.said = time.monotonic()
        states = [self.look(piece) for piece in self.pieces]
        running = [f"{job.piece.name} {played(job.piece.folder)}/{job.piece.rounds}" for job in self.jobs]
        estimates = Estimates(self.pieces, self.on.name, self.speed)
        line = f"{report.progress(self.pieces, states, estimates)}; now {', '.join(running)}"
        self.display.overview(sum(state.kind == DONE for state in states), line)


def ranks(pieces: int, free: int, devices: int, estimates: Estimates) -> int:
    """How many devices the next of some pieces is to get.

    One each while there are enough pieces: runs side by side exchange nothing. What is free beyond that goes to the
    last ones as ranks. Where both were measured here and one run on all devices was faster, it gets all.
    """
    alone, apart = estimates.rate(devices, 1), estimates.rate(1, devices)
    if devices > 1 and alone is not None and apart is not None and alone > apart:
        return devices
    return max(1, free // pieces)
