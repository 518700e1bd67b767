"""Text output of a campaign: its plan, its progress, and what it has settled."""

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import Job, State, Status
from benchmark.errors import count


def format_seconds(seconds: float | None) -> str:
    """A time in hours, minutes or seconds; ? if unknown."""
    if seconds is None:
        return "?"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def count_cells(jobs: Sequence[Job], states: Sequence[State]) -> tuple[int, int]:
    """Published numbers that finished runs settle, and those that all of the jobs would settle."""
    settled = {c.place for job, state in zip(jobs, states, strict=True) if state.kind == Status.DONE for c in job.cells}
    return len(settled), len({cell.place for job in jobs for cell in job.cells})


def time_left(jobs: Sequence[Job], states: Sequence[State], estimates: Estimates) -> tuple[float, int]:
    """Seconds of the unfinished work on one device, and the number of jobs whose time is unknown."""
    unfinished = [(j, s) for j, s in zip(jobs, states, strict=True) if s.runnable or s.kind == Status.BUSY]
    seconds = [estimates.seconds(job, state) for job, state in unfinished]
    return sum(known for known in seconds if known is not None), seconds.count(None)


def progress(jobs: Sequence[Job], states: Sequence[State], estimates: Estimates, devices: int) -> str:
    """One line: runs done and failed, published numbers settled, the time left on so many devices."""
    settled, cells = count_cells(jobs, states)
    seconds, unknown = time_left(jobs, states, estimates)
    kinds = Counter(state.kind for state in states)
    phrases = [f"{kinds[Status.DONE]} of {len(jobs)} runs done"]
    if kinds[Status.FAILED]:
        phrases.append(f"{kinds[Status.FAILED]} failed")
    if cells:
        phrases.append(f"{settled} of {cells} published cells settled")
    if seconds or not unknown:
        phrases.append(f"{format_seconds(seconds / devices)} of work left{f' on {devices} devices' * (devices > 1)}")
    if unknown:
        phrases.append(f"{count(unknown, 'run')} not yet timed here")
    return ", ".join(phrases)


def plan(jobs: Sequence[Job], states: Sequence[State], estimates: Estimates) -> Table:
    """Every job in order: its state, the cells it settles, its expected time on one device."""
    numeric = [Column(name, justify="right") for name in ("seed", "rounds", "cells", "time")]
    named = [Column(name, overflow="fold") for name in ("scenario", "row")]  # cut they would look alike
    table = Table("", *named, *numeric, Column("state", no_wrap=True), box=SIMPLE_HEAD)
    for index, (job, state) in enumerate(zip(jobs, states, strict=True), 1):
        config = job.config
        expected = "" if state.kind in (Status.DONE, Status.FAILED) else format_seconds(estimates.seconds(job, state))
        numbers = (str(config.seed), f"{state.rounds}/{job.rounds}", str(len(job.cells)), expected)
        table.add_row(str(index), config.scenario, config.row, *numbers, state.kind)
    return table


def failures(jobs: Sequence[Job], states: Sequence[State]) -> list[str]:
    """A line for each reason of failure, with the runs that failed for it."""
    names: dict[str, list[str]] = {}
    for job, state in zip(jobs, states, strict=True):
        if state.kind == Status.FAILED:
            names.setdefault(state.why, []).append(job.name)
    lines = [f"failed: {', '.join(failed)}: {why}" for why, failed in names.items()]
    return [*lines, "retry=true tries failed runs again"] if lines else []


def summary(
    jobs: Sequence[Job], before: Sequence[State], after: Sequence[State], estimates: Estimates, devices: int
) -> list[str]:
    """Lines on the runs that were finished, are half done with the time they need, failed, or come next."""
    pairs = list(zip(jobs, after, strict=True))
    lines = []
    for (job, state), old in zip(pairs, before, strict=True):
        if state.kind == Status.DONE and old.kind != Status.DONE:
            lines.append(f"done: {job.name}{f', {len(job.cells)} published cells' if job.cells else ''}")
    for job, state in pairs:
        if state.kind == Status.HALF:
            seconds = format_seconds(estimates.seconds(job, state))
            lines.append(f"half done: {job.name}, {state.rounds} of {job.rounds} rounds, {seconds} more")
    lines += failures(jobs, after)
    lines += [f"elsewhere: {job.name}" for job, state in pairs if state.kind == Status.BUSY]
    lines += [f"next: {job.name}" for job, state in pairs if state.runnable][:1]
    return [*lines, progress(jobs, after, estimates, devices)]


def failure_reason(output: str) -> str:
    """Why a command failed, from its output: its error line, else the exception's message, else its last line."""
    lines = [line for line in output.splitlines() if line.strip()]
    if errors := [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]:
        return errors[-1]
    _, traceback, rest = output.rpartition("Traceback (most recent call last):")
    if traceback:  # the exception's name and message follow the indented lines; the message may have several lines
        return next((line for line in rest.splitlines()[1:] if line and not line.startswith(" ")), "")
    return lines[-1] if lines else ""
