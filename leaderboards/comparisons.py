"""One row held against another, over the seeds they share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leaderboards.markdown import line
from leaderboards.rank import Cell, Row, held, least, over_seeds, pooled_spread


@dataclass(frozen=True)
class Paired:
    """One row's headline less another's, seed by seed: seeds share clients and start, so like is held against like.

    points: seed -> difference, of the seeds that both have.
    """

    row: str
    base: str
    points: Mapping[int, float]

    @property
    def over(self) -> Cell:
        """Mean and spread of the differences."""
        return over_seeds(list(self.points.values()))

    @property
    def wins(self) -> int:
        """In how many seeds the row is ahead."""
        return sum(points > 0 for points in self.points.values())


@dataclass(frozen=True)
class Difference:
    """A row's headline less that of the row it builds on, over the seeds both have, and the least that counts: points.

    wins: in how many of the seeds the row is ahead. unlike: in which settings beside the method's own the two differ.
    """

    row: str
    base: str
    points: float
    least: float
    seeds: int
    wins: int
    unlike: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """Whether it is more than the seeds' spread explains."""
        return abs(self.points) > self.least


def differences(rows: Iterable[Row], bases: Mapping[str, Sequence[str]]) -> list[Difference]:
    """Each row of a board beside the one it builds on, largest gain first; none where no spread is known.

    bases: row -> the rows that are it and something more.
    """
    known = {row.row: row for row in rows}
    if (spread := pooled_spread(known.values())) is None:
        return []
    pairs = [(known[row], known[base]) for base, built in bases.items() for row in built if {row, base} <= set(known)]
    found = [_difference(row, base, pair, spread) for row, base in pairs if (pair := paired(row, base)) is not None]
    return sorted(found, key=lambda one: -one.points)


def paired(row: Row, base: Row) -> Paired | None:
    """Two rows of a scenario held against one another; None where they share no seed."""
    shared = sorted(row.headline.keys() & base.headline.keys())
    if not shared:
        return None
    return Paired(row.row, base.row, {seed: row.headline[seed] - base.headline[seed] for seed in shared})


def table(rows: Iterable[Row], bases: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of a Markdown table of what rows add to those they build on; none where nothing can be said."""
    found = differences(rows, bases)
    if not found:
        return []
    head = "| row | on top of | adds (points) | counts from | ahead in | | also differs in |"
    lines = ["### What a row adds", "", head, "|---|---|---:|---:|---:|---|---|"]
    for one in found:
        verdict = ("more" if one.points > 0 else "less") if one.counts else "not told apart"
        numbers = (f"{one.points:+z.1f}", f"{one.least:.1f}", f"{one.wins} of {one.seeds}")
        lines.append(line((one.row, one.base, *numbers, verdict, "; ".join(one.unlike))))
    return [*lines, ""]


def _difference(row: Row, base: Row, pair: Paired, spread: float) -> Difference:
    keys = sorted(key for key in row.settings.keys() | base.settings.keys() if not key.startswith("method."))
    pairs = [(key, held(row.settings, key), held(base.settings, key)) for key in keys]
    unlike = tuple(f"{key} {own}, not {theirs}" for key, own, theirs in pairs if own != theirs)
    seeds = len(pair.points)
    return Difference(row.row, base.row, pair.over.mean, least(seeds, seeds, spread), seeds, pair.wins, unlike)
