"""Which rows of a board differ: all pairs compared at once at 5 %, whatever the rows' spreads.

Under one seed most rows share the partition, the initial encoder and the draws of views (a board's page names those
with another partition), so a seed is taken as a block:

    value[row, seed] = effect[row] + effect[seed] + error

The error's variance is the row's own. It is estimated from what the fit leaves of the row, and `moderation` draws the
estimates of all rows towards a common value. Two rows differ if

    |effect[i] - effect[j]| > c sqrt(v[i, j]),

v[i, j]: the variance of the difference, (variance[i] + variance[j]) / n where both have the same n seeds; c: the upper
4 % point of the largest of these ratios over all pairs, on simulated boards of equal rows whose variances are drawn
from the fitted prior and which are fitted and moderated in the same way. Of two rows alone this is the paired t-test.
On a board whose rows are all equal, any two are called different with a probability of at most 5 %, also where spreads
are as unequal as those of the boards look (`error_rates`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import isfinite
from statistics import median
from typing import NamedTuple

import numpy as np

from leaderboards.moderation import Array, Moderated, moderated

LEVEL = 0.05
"""The probability of a false statement about a board of equal rows."""
OF_PRIOR = 0.01
"""The part of it that is left to the prior, which is an estimate too."""
FEWEST_SEEDS = 3
"""A row with fewer seeds is compared with no other."""
SIMULATED = 4000
"""Boards of equal rows from which a critical value is taken; its standard error is 1 to 2 %."""
WEIGHTED, BACKFITTED = 3, 8
"""How often rows are weighted anew, and of boards with missing seeds, how often rows and seeds are fitted in turn."""
DIGITS = 9
"""Decimals of all that a fit gives: processors differ after them, and halves have to be rounded alike on a page."""
ROUNDING = 10.0**-DIGITS
"""Differences below this are rounding, also where the errors are zero."""

Design = tuple[tuple[int, ...], ...]
"""The seeds of each row."""


@dataclass(frozen=True)
class Fit:
    """The rows of a board, compared pair by pair.

    effects: row -> its mean as the fit estimates it; with all seeds present, the row's mean. spreads: row -> the
    standard deviation of its error, moderated with `prior_df` degrees of freedom. margins: row -> row -> the difference
    beyond which the two differ; infinite for rows that no seeds connect.
    """

    effects: dict[str, float]
    spreads: dict[str, float]
    prior_df: float
    margins: dict[str, dict[str, float]]
    design: Design

    def difference(self, row: str, base: str) -> float:
        """Estimated mean of a row minus that of another."""
        return self.effects[row] - self.effects[base]

    def differ(self, row: str, base: str) -> bool:
        """Whether two rows differ."""
        return abs(self.difference(row, base)) > self.margins[row][base]

    def better(self, row: str) -> tuple[str, ...]:
        """The rows that are better than this one."""
        return tuple(other for other in self.effects if self.difference(other, row) > 0 and self.differ(other, row))

    def worse(self, row: str) -> tuple[str, ...]:
        """The rows that are worse than this one."""
        return tuple(other for other in self.effects if self.difference(other, row) < 0 and self.differ(other, row))

    @property
    def margin_range(self) -> tuple[float, float, float]:
        """The smallest, the median and the largest difference that tells two rows apart which seeds connect."""
        pairs = (self.margins[row][other] for row, other in combinations(self.effects, 2))
        finite = [margin for margin in pairs if isfinite(margin)]
        return min(finite), median(finite), max(finite)


def fit(samples: Mapping[str, Mapping[int, float]]) -> Fit | None:
    """Compare rows; samples: row -> seed -> value.

    Rows with fewer than `FEWEST_SEEDS` values are left out. None: fewer than two rows are left, or no degree of freedom
    for the error.
    """
    samples = {row: sample for row, sample in samples.items() if len(sample) >= FEWEST_SEEDS}
    design = tuple(tuple(sorted(sample)) for sample in samples.values())
    solver = solved(design) if len(samples) > 1 else None
    if solver is None:
        return None
    values = np.array([sample[seed] for sample in samples.values() for seed in sorted(sample)])[:, None]
    found = variances(design, values)
    deviations = np.maximum(np.sqrt(solver.weights.T @ found.variances), ROUNDING)[:, 0]
    critical = critical_value(design, float(found.prior_df[0]))
    margins = np.zeros((len(samples), len(samples)))
    margins[np.triu_indices(len(samples), 1)] = np.where(solver.connected, critical * deviations, np.inf)
    lines = np.round(margins + margins.T, DIGITS).tolist()
    return Fit(
        effects=dict(zip(samples, np.round(solver.effects @ values, DIGITS)[:, 0].tolist(), strict=True)),
        spreads=dict(zip(samples, np.round(np.sqrt(found.variances[:, 0]), DIGITS).tolist(), strict=True)),
        prior_df=float(found.prior_df[0]),
        margins={row: dict(zip(samples, line, strict=True)) for row, line in zip(samples, lines, strict=True)},
        design=design,
    )


class Solver(NamedTuple):
    """What depends on the design alone, for R rows, N values and P pairs of rows.

    effects: (R, N), values -> effects. residuals: (N, N), values -> errors. of_row: (R, N), 1 where a value is a row's
    and others have its seed. of_seed: (seeds, N), 1 where it is a seed's. complete: whether all rows have all seeds.
    df: (R,), degrees of freedom of each row's errors. pairs: (P, N), values -> differences. weights: (R, P), of each
    row's variance in that of a difference. connected: (P,), whether seeds connect the two rows.
    """

    effects: Array
    residuals: Array
    of_row: Array
    of_seed: Array
    complete: bool
    df: Array
    pairs: Array
    weights: Array
    connected: np.ndarray


@lru_cache(maxsize=128)
def solved(design: Design) -> Solver | None:
    """Least squares of rows and seeds. None: no degree of freedom is left for the error."""
    from scipy.sparse.csgraph import connected_components

    rows, seeds = len(design), sorted({seed for sample in design for seed in sample})
    at = [(row, rows + seeds.index(seed)) for row, sample in enumerate(design) for seed in sample]
    model = np.zeros((len(at), rows + len(seeds)))
    for value, columns in enumerate(at):
        model[value, columns] = 1
    count, block = connected_components(model.T @ model)  # rows that share seeds, directly or through other rows
    if len(at) - (rows + len(seeds) - count) < 1:
        return None
    inverse = np.linalg.pinv(model)
    means = [inverse[rows:][block[rows:] == block[row]].mean(axis=0) for row in range(rows)]
    effects = inverse[:rows] + means  # a row's effect at the mean of all seeds: with no seed missing, its mean
    residuals, shared = np.eye(len(at)) - model @ inverse, model[:, rows:] @ (model[:, rows:].sum(axis=0) > 1)
    of_row = model[:, :rows].T * shared
    first, second = np.triu_indices(rows, 1)
    pairs = effects[first] - effects[second]
    return Solver(
        effects=effects,
        residuals=residuals,
        of_row=of_row,
        of_seed=model[:, rows:].T,
        complete=len(at) == rows * len(seeds),
        df=of_row @ np.diag(residuals),
        pairs=pairs,
        weights=of_row @ (pairs**2).T,
        connected=block[first] == block[second],
    )


def variances(design: Design, values: Array) -> Moderated:
    """The rows' moderated variances; values: (N, boards).

    Seeds are fitted anew with less weight on rows that vary more than the median, so that such a row neither hides in
    the seeds' effects nor adds to what is left of others.
    """
    solver = solved(design)
    assert solver is not None
    of_row, of_seed = solver.of_row, solver.of_seed
    counts = np.maximum(of_row.sum(axis=1), 1)[:, None]
    errors, df = solver.residuals @ values, np.broadcast_to(solver.df[:, None], (len(design), values.shape[1]))
    for _ in range(WEIGHTED):
        found = moderated(of_row @ errors**2 / np.maximum(df, ROUNDING), df)
        least = np.median(found.variances, axis=0) + ROUNDING**2  # no row alone sets the seeds' effects
        weights = of_row.T @ (1 / np.maximum(found.variances, least))
        shares = weights / np.maximum(of_seed.T @ (of_seed @ weights), np.finfo(float).tiny)
        for _ in range(1 if solver.complete else BACKFITTED):  # rows and seeds in turn, to what least squares gives
            errors = errors - of_seed.T @ (of_seed @ (shares * errors))
            errors = errors - of_row.T @ (of_row @ errors / counts)
        df = of_row @ (1 - shares) * (counts - 1) / counts
    return moderated(of_row @ errors**2 / np.maximum(df, ROUNDING), df)


def largest(design: Design, values: Array) -> tuple[Array, Array]:
    """Of each board, the largest ratio of a difference and its deviation, and d0; values: (N, boards)."""
    solver = solved(design)
    assert solver is not None
    found, pairs = variances(design, values), solver.pairs[solver.connected]
    of_pairs = solver.weights.T[solver.connected] @ found.variances
    return np.sqrt(((pairs @ values) ** 2 / np.maximum(of_pairs, ROUNDING**2)).max(axis=0)), found.prior_df


def critical_value(design: Design, prior_df: float) -> float:
    """The upper 4 % point of `largest` on boards of equal rows with these seeds; of two rows Student's 5 % point.

    The rows' variances are drawn from a scaled inverse chi-squared distribution with `prior_df` degrees of freedom.
    """
    return _critical_value(tuple(sorted(design)), prior_df)  # the same in any order of the rows


@lru_cache(maxsize=256)
def _critical_value(design: Design, prior_df: float) -> float:
    from scipy.stats import t

    solver = solved(design)
    assert solver is not None
    if len(design) == 2:
        return float(t.ppf(1 - LEVEL / 2, solver.df.sum()))
    draw, found = np.random.default_rng(0), list[Array]()
    for _ in range(SIMULATED // 500):
        noise, rows = draw.standard_normal((len(solver.residuals), 500)), draw.random((len(design), 500))
        found.append(largest(design, noise * (solver.of_row.T @ spreads_drawn(rows, prior_df)))[0])
    return float(np.quantile(np.concatenate(found), 1 - LEVEL + OF_PRIOR))


def spreads_drawn(uniform: Array, prior_df: float) -> Array:
    """Standard deviations at these quantiles of the prior, whose s0 is 1."""
    from scipy.stats import chi2

    return np.ones_like(uniform) if np.isinf(prior_df) else np.sqrt(prior_df / chi2.ppf(uniform, prior_df))
