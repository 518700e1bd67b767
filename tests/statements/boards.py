"""The boards of the committed records, as sentences ask them."""

import math
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from statistics import fmean

from leaderboards.comparisons import NEGLIGIBLY, UNCLEAR, Difference, bases, compare, differences
from leaderboards.encoders import shown
from leaderboards.paired import paired
from leaderboards.rank import Row, board, fitted
from leaderboards.schema import Record
from leaderboards.significance import Fit
from tests.committed import records

ROOT = Path(__file__).parents[2]
LINEAR, KNN = "linear/v1 accuracy", "knn/v1 accuracy"


@cache
def rows_of(scenario: str) -> dict[str, Row]:
    """The rows of a scenario's board by name."""
    return {row.row: row for row in board(records(), scenario)}


class Board:
    """The board of a scenario, asked what a sentence needs; made when it is first asked."""

    def __init__(self, scenario: str):
        self.scenario = scenario

    @property
    def rows(self) -> dict[str, Row]:
        return rows_of(self.scenario)

    @cached_property
    def fit(self) -> Fit:
        found = fitted(self.rows.values())
        assert found is not None
        return found

    @property
    def margin(self) -> float:
        return self.fit.margin_range[0]

    @cached_property
    def declared(self) -> dict[tuple[str, str], Difference]:
        return {(pair.row, pair.base): pair for pair in differences(self.rows.values(), bases())}

    def score(self, row: str, key: str = LINEAR) -> float:
        return self.rows[row].cells[key].mean

    def by_seed(self, row: str, key: str) -> dict[int, float]:
        return {record["seed"]: value for record, value in self._scores(key) if record["row"] == row}

    def of_seed(self, seed: int, key: str) -> dict[str, float]:
        return {record["row"]: value for record, value in self._scores(key) if record["seed"] == seed}

    def _scores(self, key: str) -> Iterator[tuple[Record, float]]:
        protocol, metric = key.split()
        for record in records():
            if record["scenario"] == self.scenario and metric in (scores := shown(record).get(protocol, {})):
                yield record, scores[metric]

    def compared(self, row: str, base: str) -> Difference:
        """By the test of what a row adds, where it builds on the other; else by that of all pairs."""
        found = self.declared.get((row, base)) or compare(self.rows[row], self.rows[base], self.fit)
        assert found is not None
        return found

    def gain(self, row: str, base: str, verdict: str = "") -> float:
        """Points that a row is above another one; the verdict, where one is given, is the board's."""
        found = self.compared(row, base)
        assert verdict in ("", found.verdict)
        return found.points

    def less(self, row: str, base: str) -> float:
        """Points that a row is below another one, which count."""
        return -self.gain(row, base, "less")

    def even(self, row: str, base: str) -> float:
        """Points that a row is above or below another one, which do not count."""
        assert self.verdict(row, base) in (UNCLEAR, NEGLIGIBLY)
        return self.gain(row, base)

    def within(self, pairs: Iterable[tuple[str, str]]) -> str:
        """The change that is excluded for each of these pairs: the largest of theirs, rounded up."""
        found = [self.declared[pair].within for pair in pairs]
        return f"{math.ceil(10 * max(points for points in found if points is not None)) / 10:.1f}"

    def leave_out_0(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The pairs whose interval by itself is on one side of 0."""
        return [pair for pair in pairs if math.prod(self.declared[pair].interval or (-1, 1)) > 0]

    def alone(self, row: str, base: str) -> str:
        """The 95 % interval of a difference in points, of the pair by itself."""
        by_seed = self.compared(row, base).by_seed
        found = paired({(row, base): [*by_seed.values()]})[row, base]
        return f"{found.low:.1f} to {found.high:.1f}"

    def verdict(self, row: str, base: str) -> str:
        return self.compared(row, base).verdict

    def all_are(self, verdict: str, rows: Iterable[str], bases: Iterable[str]) -> bool:
        return {self.verdict(*pair) for pair in product(rows, bases)} == {verdict}

    def cells(self, key: str) -> dict[str, float]:
        return {row.row: row.cells[key].mean for row in self.rows.values() if key in row.cells}


MICRO, MINI = Board("cifar10-micro"), Board("cifar10-mini")


def over(row: Row, seeds: Iterable[int]) -> float:
    """The headline's mean over some seeds of a row, as where another row has no more."""
    return fmean(row.headline[seed] for seed in seeds)


def ahead(row: Row, base: Row, seeds: Iterable[int] | None = None) -> float:
    """Points by which a row's headline is above another's over some seeds; none given: those that both have."""
    seeds = row.headline.keys() & base.headline.keys() if seeds is None else seeds
    return over(row, seeds) - over(base, seeds)


def interval(found: Board, row: str, base: str) -> str:
    """The 95 % interval of a difference, in points."""
    low, high = found.compared(row, base).interval or (math.nan, math.nan)
    return f"{low:.1f} to {high:.1f}"


def span(values: Iterable[float], digits: int = 1) -> str:
    """Sizes as "1.5 to 2.0", without their signs."""
    low, *_, high = sorted([*(abs(value) for value in values)] * 2)
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (low, high))
    return " to ".join(ends)
