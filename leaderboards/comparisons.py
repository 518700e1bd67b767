"""The difference between two rows of a board, over the seeds that both have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leaderboards.rank import Cell, Row, pooled_spread, threshold, unlike_settings
from leaderboards.store import load_yaml

COMPARISONS: dict[str, Any] = load_yaml("comparisons.yaml")
"""What the pages compare: figures over rounds, scenarios whose ranks are averaged, rows that build on other rows."""


@dataclass(frozen=True)
class Difference:
    """A row's headline minus that of the row it builds on, in points.

    by_seed: of the seeds that both rows have; the same seed gives both the same clients and the same start.
    threshold: the mean difference beyond which the rows differ. unlike: settings that differ, except the method's.
    """

    row: str
    base: str
    by_seed: Mapping[int, float]
    threshold: float
    unlike: tuple[str, ...]

    @property
    def cell(self) -> Cell:
        """Mean and spread over seeds."""
        return Cell.of(list(self.by_seed.values()))

    @property
    def significant(self) -> bool:
        """Whether the mean difference is more than the spread over seeds explains."""
        return abs(self.cell.mean) > self.threshold


def differences(rows: Iterable[Row], bases: Mapping[str, Sequence[str]]) -> list[Difference]:
    """Each row of a board compared with the row it builds on, largest gain first; empty where no spread is known.

    bases: row -> the rows that build on it.
    """
    by_name = {row.row: row for row in rows}
    if (spread := pooled_spread(by_name.values())) is None:
        return []
    names = [(row, base) for base, built in bases.items() for row in built if {row, base} <= set(by_name)]
    pairs = [(by_name[row], by_name[base]) for row, base in names]
    compared = [difference for row, base in pairs if (difference := compare(row, base, spread)) is not None]
    return sorted(compared, key=lambda difference: -difference.cell.mean)


def compare(row: Row, base: Row, spread: float) -> Difference | None:
    """The difference between two rows, given the board's pooled spread; None where they share no seed."""
    by_seed = {seed: row.headline[seed] - base.headline[seed] for seed in sorted({*row.headline} & {*base.headline})}
    if not by_seed:
        return None
    unlike = tuple(
        f"{key} {value}, not {base_value}"
        for key, value, base_value in unlike_settings(row.settings, base.settings)
        if not key.startswith("method.")
    )
    return Difference(row.row, base.row, by_seed, threshold(len(by_seed), len(by_seed), spread), unlike)
