"""What rows add to the rows they build on: a board's declared pairs, tested together seed by seed.

Two rows under one seed share much, so a pair is tested by its differences under the seeds that both rows have: by their
mean over its standard error, whose variance is moderated towards that of the other pairs (`moderation`). The
distribution of this ratio where nothing is added is simulated, with variances drawn from the fitted prior. Fewer than
three pairs have no prior: each is then Student's paired t-test. Holm's step-down keeps the probability of any false
statement on the board at 5 %.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from leaderboards.moderation import FEWEST, Array, moderated
from leaderboards.significance import DIGITS, LEVEL, ROUNDING, SIMULATED, spreads_drawn

Pair = tuple[str, str]
"""A row, and the one that it builds on."""
NEGLIGIBLE = 0.5
"""Points: a change below it is called negligible, a margin set before any of the pairs was tested."""


class Paired(NamedTuple):
    """What a row adds, in points.

    points: the mean difference. low, high: its 95 % interval. p: of no difference, after Holm. within: the smallest
    margin for which two one-sided tests at 5 % exclude a larger change either way. negligible: whether they exclude
    `NEGLIGIBLE`, after Holm.
    """

    points: float
    low: float
    high: float
    p: float
    within: float
    negligible: bool


def paired(differences: Mapping[Pair, Sequence[float]]) -> dict[Pair, Paired]:
    """Pair -> what it shows; differences: of three seeds or more a pair, in points."""
    if not differences:
        return {}
    counts = tuple(map(len, differences.values()))
    means = np.array([np.mean(values) for values in differences.values()])
    variances = np.array([np.var(values, ddof=1) for values in differences.values()])[:, None]
    prior_df = None
    if len(counts) >= FEWEST:
        variances, (prior_df,), _ = moderated(variances, np.array(counts)[:, None] - 1.0)
    errors = np.maximum(np.sqrt(variances[:, 0] / counts), ROUNDING)
    null = _Null(counts, prior_df)
    both, ninety = (errors * null.bound(level) for level in (LEVEL, 2 * LEVEL))
    p = _holm(null.two_sided(means / errors))
    beyond = _holm(null.one_sided((NEGLIGIBLE - np.abs(means)) / errors))
    columns = (means, means - both, means + both, p, np.abs(means) + ninety)
    numbers = zip(*(np.round(column, DIGITS).tolist() for column in columns), (beyond < LEVEL).tolist(), strict=True)
    return {pair: Paired._make(line) for pair, line in zip(differences, numbers, strict=True)}


class _Null:
    """The ratio of a mean difference and its standard error where nothing is added, pair by pair.

    counts: seeds of each pair. prior_df: of the moderation; None without any, as Student's t.
    """

    def __init__(self, counts: tuple[int, ...], prior_df: float | None):
        from scipy.stats import t

        self._counts = counts
        self._exact = {n: t(n - 1) for n in counts} if prior_df is None else None
        self._sizes = {} if prior_df is None else _simulated(counts, float(prior_df))

    def bound(self, level: float) -> Array:
        """What the ratio's size exceeds with this probability, of each pair."""
        if self._exact:
            by_count = {n: null.ppf(1 - level / 2) for n, null in self._exact.items()}
        else:
            by_count = {n: np.quantile(sizes, 1 - level) for n, sizes in self._sizes.items()}
        return np.array([by_count[n] for n in self._counts])

    def two_sided(self, ratios: Array) -> Array:
        """The probability of a ratio at least as far from 0, of each pair."""
        return np.array([2 * self._beyond(n, abs(ratio)) for n, ratio in zip(self._counts, ratios, strict=True)])

    def one_sided(self, ratios: Array) -> Array:
        """The probability of a larger ratio, of each pair."""
        sizes = [self._beyond(n, abs(ratio)) for n, ratio in zip(self._counts, ratios, strict=True)]
        return np.where(ratios < 0, 1 - np.array(sizes), sizes)

    def _beyond(self, n: int, size: float) -> float:
        """The probability of a larger ratio than `size`, which is not negative."""
        if self._exact:
            return float(self._exact[n].sf(size))
        sizes = self._sizes[n]
        return float(1 + len(sizes) - np.searchsorted(sizes, size)) / (1 + len(sizes)) / 2


@lru_cache(maxsize=256)
def _simulated(counts: tuple[int, ...], prior_df: float) -> dict[int, Array]:
    """Seeds -> the sorted sizes of the ratios of pairs with so many, on `SIMULATED` boards where nothing is added."""
    draw, number = np.random.default_rng(0), np.array(counts)[:, None]
    spreads = spreads_drawn(draw.random((len(counts), SIMULATED)), prior_df)
    means = draw.standard_normal(spreads.shape) * spreads / np.sqrt(number)
    variances = spreads**2 * draw.chisquare(number - 1, spreads.shape) / (number - 1)
    sizes = np.abs(means) / np.sqrt(
        moderated(variances, np.broadcast_to(number - 1.0, spreads.shape)).variances / number
    )
    return {n: np.sort(sizes[number[:, 0] == n], axis=None) for n in {*counts}}


def _holm(p: Array) -> Array:
    """Holm's adjusted p-values (1979)."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted
