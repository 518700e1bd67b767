"""A campaign in words: its plan, how far it is, what it has settled."""

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import BUSY, DONE, FAILED, HALF, OPEN, Job, State

UNKNOWN = "?"


def span(seconds: float | None) -> str:
    """A time in the largest unit that says something."""
    if seconds is None:
        return UNKNOWN
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def cells(pieces: Sequence[Job], states: Sequence[State]) -> tuple[int, int]:
    """Published numbers that some finished run stands beside, and those that all of the pieces would settle."""
    every = {cell.place for piece in pieces for cell in piece.cells}
    settled = {c.place for piece, state in zip(pieces, states, strict=True) if state.kind == DONE for c in piece.cells}
    return len(settled), len(every)


def left(pieces: Sequence[Job], states: Sequence[State], estimates: Estimates) -> tuple[float, int]:
    """Seconds that what is left would take on one device, and of how many pieces nobody knows."""
    todo = [(p, s) for p, s in zip(pieces, states, strict=True) if s.kind in (HALF, OPEN, BUSY)]
    each = [estimates.seconds(piece, state) for piece, state in todo]
    return sum(one for one in each if one is not None), each.count(None)


def progress(pieces: Sequence[Job], states: Sequence[State], estimates: Estimates, devices: int) -> str:
    """One line: runs done and failed, published numbers settled, the time left on so many devices."""
    settled, every = cells(pieces, states)
    seconds, unknown = left(pieces, states, estimates)
    kinds = Counter(state.kind for state in states)
    said = [f"{kinds[DONE]} of {len(pieces)} runs done"]
    said += [f"{kinds[FAILED]} failed"] if kinds[FAILED] else []
    said += [f"{settled} of {every} published cells settled"] if every else []
    if seconds or not unknown:
        said.append(f"{span(seconds / devices)} of work left{f' on {devices} devices' if devices > 1 else ''}")
    said += [f"{unknown} runs not yet timed here (speed=IMAGES/S gives a guess)"] if unknown else []
    return ", ".join(said)


def plan(pieces: Sequence[Job], states: Sequence[State], estimates: Estimates) -> Table:
    """Every piece in its order: how far it is, what it settles, how long it will take on one device."""
    numeric = [Column(name, justify="right") for name in ("seed", "rounds", "cells", "time")]
    named = [Column(name, overflow="fold") for name in ("scenario", "row")]  # cut they would look alike
    table = Table("", *named, *numeric, Column("state", no_wrap=True), box=SIMPLE_HEAD)
    for number, (piece, state) in enumerate(zip(pieces, states, strict=True), 1):
        config = piece.config
        expected = "" if state.kind in (DONE, FAILED) else span(estimates.seconds(piece, state))
        rounds = f"{state.rounds}/{piece.rounds}"
        numbers = (str(config.seed), rounds, str(len(piece.cells)), expected)
        table.add_row(str(number), config.scenario, config.row, *numbers, state.kind)
    return table


def failures(pieces: Sequence[Job], states: Sequence[State]) -> list[str]:
    """A line for each reason, with the runs that failed for it."""
    names: dict[str, list[str]] = {}
    for piece, state in zip(pieces, states, strict=True):
        if state.kind == FAILED:
            names.setdefault(state.why, []).append(piece.name)
    lines = [f"failed: {', '.join(those)}: {why}" for why, those in names.items()]
    return [*lines, "retry=true tries failed runs again"] if lines else []


def summary(
    pieces: Sequence[Job], before: Sequence[State], after: Sequence[State], estimates: Estimates, devices: int
) -> list[str]:
    """Lines: what was settled, what is half done and how long it will take, what failed, what is next."""
    lines = []
    now = list(zip(pieces, before, after, strict=True))
    for piece, was, state in now:
        if state.kind == DONE and was.kind != DONE:
            settles = f", {len(piece.cells)} published cells" if piece.cells else ""
            lines.append(f"done: {piece.name}{settles}")
    for piece, _, state in now:
        if state.kind == HALF:
            more = span(estimates.seconds(piece, state))
            lines.append(f"half done: {piece.name}, {state.rounds} of {piece.rounds} rounds, {more} more")
    lines += failures(pieces, after)
    lines += [f"elsewhere: {piece.name}" for piece, _, state in now if state.kind == BUSY]
    ahead = [piece for piece, _, state in now if state.kind in (HALF, OPEN)]
    lines += [f"next: {ahead[0].name}"] if ahead else []
    return [*lines, progress(pieces, after, estimates, devices)]


def reason(said: str) -> str:
    """Why a command failed, from what it printed: our line for it, what was raised, or else its last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    if errors := [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]:
        return errors[-1]
    raised = said.rpartition("Traceback (most recent call last):")[2].splitlines()[1:]
    if "Traceback (most" in said:  # a message may go on for lines
        return next((line for line in raised if line and not line.startswith(" ")), "")
    return lines[-1] if lines else ""
