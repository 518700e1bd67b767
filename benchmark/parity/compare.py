"""Comparison of the suite's numbers with a parity file's, and how large a difference rounding allows."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from benchmark.parity.case import Case
from benchmark.parity.files import KINDS, SERVER, Numbers, ParityFile, RoundClient
from benchmark.parity.inputs import Fingerprint

GROWTH = 10.0
"""Later float32 numbers may differ by this factor more than two runs of one code do: rounding grows so much a step."""
FLOOR = 1e-3
"""Share of a tensor's root mean square that is added to the number which a difference is divided by."""


class Difference(NamedTuple):
    """The relative difference of a loss, or of a tensor's fingerprint.

    step: of the visit, from 0, for a loss. tensor: its name. ours, theirs: the numbers; empty: missing.
    """

    at: RoundClient
    step: int | None
    tensor: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    size: float

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return KINDS[self.step is None]


class Comparison(NamedTuple):
    """A file's numbers beside ours in one precision: all differences, and the largest size that is allowed of each."""

    precision: str
    differences: Sequence[Difference]
    limit: Callable[[Difference], float]

    @property
    def beyond(self) -> list[Difference]:
        """Differences larger than allowed: losses, then tensors, in the order of the run."""
        return [difference for difference in self.differences if not difference.size <= self.limit(difference)]


def fingerprint_difference(ours: Fingerprint, theirs: Fingerprint) -> float:
    """The largest relative difference of a fingerprint's three numbers, whose sizes count `FLOOR` at least."""
    floor = FLOOR * math.hypot(theirs[0], theirs[1]) + 1e-12
    return max(abs(a - b) / (abs(b) + floor) for a, b in zip(ours, theirs, strict=True))


def differences(ours: Numbers, theirs: Numbers) -> Iterator[Difference]:
    """Every number of theirs beside ours: losses, then tensors, by round; clients come before the server."""

    def in_time(at: RoundClient) -> tuple[int, bool, int]:
        return at[0], at[1] == SERVER, at[1]

    for at in sorted(theirs.losses, key=in_time):
        our_losses, their_losses = ours.losses.get(at, []), theirs.losses[at]
        for step in range(max(len(our_losses), len(their_losses))):
            a, b = tuple(our_losses[step : step + 1]), tuple(their_losses[step : step + 1])
            size = abs(a[0] - b[0]) / max(abs(b[0]), 1e-12) if a and b else math.inf
            yield Difference(at, step, "", a, b, size)
    for at in sorted(theirs.weights, key=in_time):
        for name, their_print in theirs.weights[at].items():
            our_print = ours.weights.get(at, {}).get(name)
            size = math.inf if our_print is None else fingerprint_difference(our_print, their_print)
            yield Difference(at, None, name, our_print or (), their_print, size)


def compare(case: Case, ours: dict[str, Numbers]) -> list[Comparison]:
    """A comparison for each precision of the file; ours: numbers by precision, see `needed`."""
    compared = []
    for precision, theirs in case.file.sections.items():
        all_differences = list(differences(ours["64-true" if case.file.rounding else precision], theirs))
        limit = (lambda _: case.exact) if precision == "64-true" else _by_rounding(case, theirs, ours)
        compared.append(Comparison(precision, all_differences, limit))
    return compared


def needed(file: ParityFile) -> list[str]:
    """Precisions to run ours in: those of the file, except for a file of float32 numbers alone.

    If the file says what rounding does to its numbers, ours have none: float64. On another kind of CPU other float32
    errors arise and grow, and the file's measure does not cover them. Otherwise ours in float32 and float64 show it.
    """
    if file.rounding:
        return ["64-true"]
    return ["32-true", "64-true"] if set(file.sections) == {"32-true"} else list(file.sections)


def _by_rounding(case: Case, theirs: Numbers, ours: dict[str, Numbers]) -> Callable[[Difference], float]:
    """What is allowed in float32: little at the first step, then what rounding has done by the end of the round.

    That is, in this order: what the file has on it; how far the authors' float32 is from their float64; or ours from
    ours.
    """
    file = case.file
    if file.rounding:
        measured = [(round, kind, size) for round, sizes in file.rounding.items() for kind, size in sizes.items()]
    else:
        authors = "64-true" in file.sections
        pair = (theirs, file.sections["64-true"]) if authors else (ours["32-true"], ours["64-true"])
        measured = [(each.at[0], each.kind, each.size) for each in differences(*pair) if math.isfinite(each.size)]

    @cache
    def by_round(round: int, kind: str) -> float:
        sizes = [size for at, of, size in measured if of == kind and at <= round]
        return max(case.first, GROWTH * max(sizes, default=0.0))

    return lambda each: case.first if is_first_step(case, each) else by_round(each.at[0], each.kind)


def is_first_step(case: Case, difference: Difference) -> bool:
    """Whether it is of the loss of a client's first step in the first round."""
    round, client = difference.at
    return difference.step == 0 and round == case.first_round and client != SERVER
