"""The difference between two rows of a board, over the seeds that both have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from leaderboards.rank import Row, fitted, unlike_settings
from leaderboards.significance import Fit, fit
from leaderboards.store import load_yaml

COMPARISONS: dict[str, Any] = load_yaml("comparisons.yaml")
"""What the pages compare: figures over rounds, scenarios whose ranks are averaged, rows that build on other rows."""


@cache
def methods() -> dict[str, dict[str, list[str]]]:
    """Method -> `over`, the rows that it builds on, and `paper`, keys of papers.bib. `make pages` writes it."""
    content: dict[str, dict[str, list[str]]] = load_yaml("methods.json")
    return content


def bases() -> dict[str, list[str]]:
    """Row -> the rows that build on it: methods over what they say, and those of comparisons.yaml."""
    found = {base: [*rows] for base, rows in COMPARISONS["bases"].items()}
    for method, facts in methods().items():
        for base in facts["over"]:
            found.setdefault(base, []).append(method)
    return found


@dataclass(frozen=True)
class Difference:
    """A row's headline minus that of the row it builds on, in points.

    points: as `significance` estimates it: the difference of the means, where both rows have the same seeds.
    by_seed: of the seeds that both rows have; the same seed gives both the same clients and the same start.
    margin: the difference beyond which the rows differ; None where one has too few seeds to say.
    unlike: settings that differ, except the method's. idle: whether what the row adds hardly acts.
    """

    row: str
    base: str
    points: float
    by_seed: Mapping[int, float]
    margin: float | None
    unlike: tuple[str, ...]
    idle: bool = False

    @property
    def verdict(self) -> str:
        """The difference in words; of a row whose idea hardly acts it is none that the idea makes."""
        if self.idle:
            return "hardly acts"
        if self.margin is None:
            return "too few seeds"
        return "no clear difference" if abs(self.points) <= self.margin else "more" if self.points > 0 else "less"

    @property
    def decimals(self) -> int:
        """Those that tell the points from the margin: 1, or as many as it takes up to 4."""
        if self.margin is None:
            return 1
        return next((n for n in (1, 2, 3) if f"{abs(self.points):.{n}f}" != f"{self.margin:.{n}f}"), 4)


def differences(rows: Iterable[Row], bases: Mapping[str, Sequence[str]]) -> list[Difference]:
    """Each row of a board compared with the row it builds on, largest gain first.

    bases: row -> the rows that build on it.
    """
    by_name = {row.row: row for row in rows}
    of_board = fitted(by_name.values())
    names = [(row, base) for base, built in bases.items() for row in built if {row, base} <= set(by_name)]
    pairs = [compare(by_name[row], by_name[base], of_board) for row, base in names]
    return sorted((pair for pair in pairs if pair is not None), key=lambda difference: -difference.points)


def compare(row: Row, base: Row, of_board: Fit | None) -> Difference | None:
    """The difference between two rows; None where they share no seed.

    of_board: the comparison of all ranked rows. A row that is not ranked, as a control, is compared by the pair's own
    spread: for two rows, `fit` is the paired t-test.
    """
    by_seed = {seed: row.headline[seed] - base.headline[seed] for seed in sorted({*row.headline} & {*base.headline})}
    if not by_seed:
        return None
    ranked = row.rank is not None and base.rank is not None
    compared = of_board if ranked else fit({row.row: row.headline, base.row: base.headline})
    unlike = tuple(
        f"{key} {value}, not {base_value}"
        for key, value, base_value in unlike_settings(row.settings, base.settings)
        if not key.startswith("method.")
    )
    points = compared.difference(row.row, base.row) if compared else fmean(by_seed.values())
    margin = compared.margins[row.row][base.row] if compared else None
    return Difference(row.row, base.row, points, by_seed, margin, unlike, row.idle)
