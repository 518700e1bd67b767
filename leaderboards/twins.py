"""Twin boards: whether rows have the order on natural clients that they have on dealt clients of the same sizes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from leaderboards.moderation import Array
from leaderboards.rank import Row, fitted
from leaderboards.schema import Record
from leaderboards.significance import Fit

FEWEST = 5
"""Rows that two boards share at least: of fewer, Kendall's tau has no interval."""
DRAWN = 2000
"""Pairs of boards from which it is taken what rows in one order would show."""


class Agreement(NamedTuple):
    """How two boards order the rows that both rank.

    tau: Kendall's, of the rows' means. interval: its 95 %, of the rows as a sample of methods. same: the median and the
    lower 5 % point of tau between two boards whose rows have the first one's means, and each its own spreads. alike,
    reversed: pairs of rows that both boards tell apart, in the same order, and, the row first that is better on the
    first board, in opposite orders. places: row -> its places on both, by the means.
    """

    tau: float
    interval: tuple[float, float]
    same: tuple[float, float]
    alike: int
    reversed: tuple[tuple[str, str], ...]
    places: dict[str, tuple[int, int]]


def natural_twins(records: Iterable[Record]) -> dict[str, list[str]]:
    """Scenario of natural clients -> its twins: scenarios of the same data, dealt by `partition.twin`."""
    dealt: dict[str, tuple[object, bool]] = {}
    for record in records:
        settings = record["settings"]
        if settings.get("partition.name") == "folders":
            dealt[record["scenario"]] = settings["data.name"], "partition.twin" in settings
    return {
        scenario: found
        for scenario, (data, is_twin) in sorted(dealt.items())
        if not is_twin and (found := sorted(twin for twin, own in dealt.items() if own == (data, True)))
    }


def kendall(first: Array, second: Array) -> Array:
    """Kendall's tau-a between the last axes of two arrays `[..., R]`, without ties the same as tau-b.

    >>> float(kendall(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])))
    0.3333333333333333
    """
    one, other = np.triu_indices(first.shape[-1], 1)
    signs = [np.sign(values[..., one] - values[..., other]) for values in (first, second)]
    taus: Array = (signs[0] * signs[1]).mean(axis=-1)
    return taus


def tau_interval(tau: float, rows: int) -> tuple[float, float]:
    """95 % interval of Kendall's tau by Fisher's transformation, variance 0.437 / (rows - 4) (Fieller et al. 1957)."""
    if abs(tau) == 1:
        return tau, tau
    middle, half = math.atanh(tau), 1.959964 * math.sqrt(0.437 / (rows - 4))
    return math.tanh(middle - half), math.tanh(middle + half)


def agreement(first: Sequence[Row], second: Sequence[Row]) -> Agreement | None:
    """How two boards order the rows that both rank; None of fewer than `FEWEST`."""
    one, other = fitted(first), fitted(second)
    if one is None or other is None:
        return None
    rows = [row for row in one.effects if row in other.effects]
    if len(rows) < FEWEST:
        return None
    means = [np.array([each.effects[row] for row in rows]) for each in (one, other)]
    errors = [_errors(one, first, rows), _errors(other, second, rows)]
    noise = np.random.default_rng(0).standard_normal((2, DRAWN, len(rows)))
    same = kendall(*(means[0] + np.stack(errors)[:, None] * noise))
    tau = float(kendall(*means))
    told = [(row, low) for row, low in combinations(rows, 2) if one.differ(row, low) and other.differ(row, low)]
    signs = [one.difference(*pair) * other.difference(*pair) for pair in told]
    apart = [pair for pair, sign in zip(told, signs, strict=True) if sign < 0]
    return Agreement(
        tau=tau,
        interval=tau_interval(tau, len(rows)),
        same=(float(np.median(same)), float(np.quantile(same, 0.05))),
        alike=len(told) - len(apart),
        reversed=tuple((a, b) if one.difference(a, b) > 0 else (b, a) for a, b in apart),
        places={row: (_place(means[0], k), _place(means[1], k)) for k, row in enumerate(rows)},
    )


def _errors(fit: Fit, rows: Sequence[Row], names: Sequence[str]) -> Array:
    """Standard errors of the means of the rows of these names."""
    seeds = {row.row: len(row.headline) for row in rows}
    return np.array([fit.spreads[name] / math.sqrt(seeds[name]) for name in names])


def _place(means: Array, row: int) -> int:
    return 1 + int((means > means[row]).sum())


def worst_served(rows: Sequence[Row]) -> tuple[float, tuple[float, float], int] | None:
    """Kendall's tau between the order by the mean client and that by the worst tenth, its interval, how many rows.

    None: fewer than `FEWEST` ranked rows have both.
    """
    keys = ("by-client/v1 accuracy", "by-client/v1 accuracy_worst_tenth")
    having = [row for row in rows if row.rank and all(key in row.cells for key in keys)]
    if len(having) < FEWEST:
        return None
    tau = float(kendall(*(np.array([row.cells[key].mean for row in having]) for key in keys)))
    return tau, tau_interval(tau, len(having)), len(having)


def moved(places: Mapping[str, tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Rows with their places on both boards, those first whose places differ most."""
    return sorted(((row, *both) for row, both in places.items()), key=lambda each: (-abs(each[1] - each[2]), each[1]))
