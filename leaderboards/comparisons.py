"""The difference between two rows of a board, over the seeds that both have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from leaderboards.markdown import MISSING
from leaderboards.paired import NEGLIGIBLE, paired
from leaderboards.rank import Row, unlike_settings
from leaderboards.significance import FEWEST_SEEDS, LEVEL, ROUNDING, Fit, fit
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


MORE, LESS, NEGLIGIBLY, UNCLEAR, TOO_FEW, HARDLY_ACTS = (
    "more",
    "less",
    f"less than {NEGLIGIBLE} either way",
    "no clear difference",
    "too few seeds",
    "hardly acts",
)
"""Verdicts in words; that of a row whose idea hardly acts is none that the idea makes."""


@dataclass(frozen=True)
class Difference:
    """A row's headline minus that of another one, in points.

    by_seed: of the seeds that both rows have, under which they have the same clients and start unless `unlike` says
    otherwise. interval: from and to, with 95 % confidence; None where one has too few seeds to say. within, p: as in
    `paired.Paired`, of rows that build on the other; else None. unlike: settings that differ, except the method's.
    """

    row: str
    base: str
    points: float
    by_seed: Mapping[int, float]
    verdict: str
    unlike: tuple[str, ...]
    interval: tuple[float, float] | None = None
    within: float | None = None
    p: float | None = None

    @property
    def between(self) -> str:
        """The interval in words, `-0.5 to +1.2`; a dash where there is none."""
        return MISSING if self.interval is None else "{:+z.1f} to {:+z.1f}".format(*self.interval)


def differences(rows: Iterable[Row], bases: Mapping[str, Sequence[str]]) -> list[Difference]:
    """Each row of a board compared with the row it builds on, all pairs by one test, largest gain first.

    bases: row -> the rows that build on it; an untrained encoder is the base of trained ones of its own architecture.
    Controls, single clients and the floor are compared like all others.
    """
    by_name = {row.row: row for row in rows}
    named = [(row, base) for base, built in bases.items() for row in built if {row, base} <= set(by_name)]
    named = [pair for pair in named if not _of_another_encoder(by_name[pair[0]], by_name[pair[1]])]
    shared = {pair: by_seed for pair in named if (by_seed := _by_seed(by_name[pair[0]], by_name[pair[1]]))}
    tested = paired({pair: [*values.values()] for pair, values in shared.items() if len(values) >= FEWEST_SEEDS})
    found = []
    for (row, base), by_seed in shared.items():
        same = (row, base, fmean(by_seed.values()), by_seed)
        unlike = _unlike(by_name[row], by_name[base])
        test = tested.get((row, base))
        if test is None:
            found.append(Difference(*same, TOO_FEW, unlike))
        else:
            verdict = NEGLIGIBLY if test.negligible else UNCLEAR
            if by_name[row].idle:
                verdict = HARDLY_ACTS
            elif test.p < LEVEL and abs(test.points) > ROUNDING:
                verdict = MORE if test.points > 0 else LESS
            found.append(Difference(*same, verdict, unlike, (test.low, test.high), test.within, test.p))
    return sorted(found, key=lambda difference: -difference.points)


def compare(row: Row, base: Row, of_board: Fit | None) -> Difference | None:
    """The difference between any two rows by the comparison of all pairs of a board; None where they share no seed.

    of_board: the comparison of all ranked rows, whose interval holds for all pairs at once. A row that is not ranked,
    as a control, is compared by the paired t-test.
    """
    by_seed = _by_seed(row, base)
    if not by_seed:
        return None
    ranked = row.rank is not None and base.rank is not None
    compared = of_board if ranked else fit({row.row: row.headline, base.row: base.headline})
    unlike = _unlike(row, base)
    if compared is None:
        return Difference(row.row, base.row, fmean(by_seed.values()), by_seed, TOO_FEW, unlike)
    points, margin = compared.difference(row.row, base.row), compared.margins[row.row][base.row]
    verdict = UNCLEAR if abs(points) <= margin else MORE if points > 0 else LESS
    verdict = HARDLY_ACTS if row.idle else verdict
    return Difference(row.row, base.row, points, by_seed, verdict, unlike, (points - margin, points + margin))


def _by_seed(row: Row, base: Row) -> dict[int, float]:
    """Seed -> difference, of the seeds that both rows have."""
    return {seed: row.headline[seed] - base.headline[seed] for seed in sorted({*row.headline} & {*base.headline})}


def _of_another_encoder(row: Row, base: Row) -> bool:
    """Whether the base is an untrained encoder of another architecture."""
    return base.method == "untrained" and any(words.startswith("encoder.") for words in _unlike(row, base))


def _unlike(row: Row, base: Row) -> tuple[str, ...]:
    """The settings that differ, except the method's, in words."""
    return tuple(
        f"{key} {value}, not {base_value}"
        for key, value, base_value in unlike_settings(row.settings, base.settings)
        if not key.startswith("method.")
    )
