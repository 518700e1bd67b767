"""Compares the suite's numbers with a parity file's, and says how large a difference rounding allows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmark.parity.codes import Case
from benchmark.parity.files import SERVER, Numbers, ParityFile, Place
from benchmark.parity.inputs import Fingerprint

EXACT = 1e-6
"""Largest relative difference in float64, and of the first step's loss in float32."""
GROWTH = 10.0
"""Later float32 numbers may differ by this factor more than two runs of one code do: rounding grows so much a step."""
FLOOR = 1e-3
"""Part of a tensor's root mean square that is added to the number a difference is divided by."""


class Difference(NamedTuple):
    """The relative difference of one number, or of a tensor's fingerprint.

    step: of the visit, from 0, for a loss. tensor: its name. ours, theirs: the numbers; empty: missing.
    """

    place: Place
    step: int | None
    tensor: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    size: float


class Spread(NamedTuple):
    """Largest relative differences in a round."""

    losses: float
    weights: float


@dataclass(frozen=True)
class Comparison:
    """A file's numbers beside ours in one precision.

    differences: all. allowed: by round, for all but the first step. exact: of the first step.
    """

    precision: str
    differences: list[Difference]
    allowed: dict[int, Spread]
    exact: float

    def limit(self, difference: Difference) -> float:
        """The largest difference that is allowed there."""
        first = min(self.allowed)
        if difference.step == 0 and difference.place[0] == first and difference.place[1] != SERVER:
            return self.exact
        return self.allowed[difference.place[0]][difference.step is None]

    @property
    def beyond(self) -> list[Difference]:
        """Differences larger than allowed: losses, then tensors, in the order of the run."""
        return [difference for difference in self.differences if not difference.size <= self.limit(difference)]

    @property
    def largest(self) -> dict[int, Spread]:
        """The largest differences of each round."""
        return spreads(self.differences, self.allowed)


def loss_difference(ours: float, theirs: float) -> float:
    """Relative difference of a loss."""
    return abs(ours - theirs) / max(abs(theirs), 1e-12)


def fingerprint_difference(ours: Fingerprint, theirs: Fingerprint) -> float:
    """The largest relative difference of a fingerprint's three numbers; `FLOOR` keeps one near zero from counting."""
    floor = FLOOR * math.hypot(theirs[0], theirs[1]) + 1e-12
    return max(abs(a - b) / (abs(b) + floor) for a, b in zip(ours, theirs, strict=True))


def differences(ours: Numbers, theirs: Numbers) -> Iterator[Difference]:
    """Every number of theirs beside ours: losses, then tensors, by round; clients come before the server."""
    order = sorted(theirs.losses, key=_by_round), sorted(theirs.weights, key=_by_round)
    for place in order[0]:
        mine, given = ours.losses.get(place, []), theirs.losses[place]
        for step in range(max(len(mine), len(given))):
            a, b = tuple(mine[step : step + 1]), tuple(given[step : step + 1])
            yield Difference(place, step, "", a, b, loss_difference(a[0], b[0]) if a and b else math.inf)
    for place in order[1]:
        mine_by_name = ours.weights.get(place, {})
        for name, print_ in theirs.weights[place].items():
            own = mine_by_name.get(name)
            size = math.inf if own is None else fingerprint_difference(own, print_)
            yield Difference(place, None, name, own or (), print_, size)


def _by_round(place: Place) -> tuple[int, bool, int]:
    return place[0], place[1] == SERVER, place[1]


def spreads(found: list[Difference], rounds: dict[int, Spread] | list[int]) -> dict[int, Spread]:
    """The largest differences of losses and weights in each round."""
    largest = {round: [0.0, 0.0] for round in rounds}
    for place, step, *_, size in found:
        kind = step is None
        largest[place[0]][kind] = max(largest[place[0]][kind], size)
    return {round: Spread(*pair) for round, pair in largest.items()}


def compare(file: ParityFile, case: Case, ours: dict[str, Numbers]) -> list[Comparison]:
    """A comparison for each precision of the file; ours: numbers by precision, see `needed`."""
    compared = []
    for precision, theirs in file.sections.items():
        found = list(differences(ours[precision], theirs))
        rounds = theirs.rounds
        if precision == "64-true":
            allowed = dict.fromkeys(rounds, Spread(case.exact, case.exact))
            compared.append(Comparison(precision, found, allowed, case.exact))
            continue
        if file.rounding:
            measured = {round: Spread(*file.rounding[round]) for round in rounds}
        else:
            doubled, single = (file.sections["64-true"], theirs) if "64-true" in file.sections else (
                ours["64-true"], ours["32-true"])  # fmt: skip
            measured = spreads(list(differences(single, doubled)), rounds)
        compared.append(Comparison(precision, found, _growing(measured), EXACT))
    return compared


def needed(file: ParityFile) -> list[str]:
    """Precisions to run in: the file's, and float64 where float32 has nothing else that tells what rounding does."""
    alone = set(file.sections) == {"32-true"} and not file.rounding
    return [*file.sections, *(["64-true"] if alone else [])]


def _growing(measured: dict[int, Spread]) -> dict[int, Spread]:
    """Allowed differences: `GROWTH` times the measured ones so far, at least `EXACT`."""
    allowed, losses, weights = {}, EXACT, EXACT
    for round in sorted(measured):
        losses = max(losses, GROWTH * measured[round].losses)
        weights = max(weights, GROWTH * measured[round].weights)
        allowed[round] = Spread(losses, weights)
    return allowed
