"""Which rows of a board differ: a two-way fit of rows and seeds, and Tukey's comparison of all pairs at 5 %.

Under one seed all rows share the partition, the initial encoder and the views, so a seed is a block:

    value[row, seed] = effect[row] + effect[seed] + error

With s the standard deviation of the error on df degrees of freedom, two of R rows differ if

    |effect[i] - effect[j]| > q s sqrt(v[i, j] / 2),

q: the upper 5 % point of the studentized range of R means (Tukey 1953); v[i, j] s^2: the variance of the difference,
2 s^2 / n where both rows have the same n seeds (Kramer 1956 where seeds are missing). On a board whose rows are all
equal, this calls any two of them different with a probability of 5 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""The probability of a false statement about a board of equal rows."""
FEWEST_SEEDS = 3
"""A row with fewer seeds is compared with no other."""
SIMULATED = 2000
"""Boards of equal rows from which the critical values of the test of spreads are taken."""
DIGITS = 9
"""Decimals of all that a fit gives: processors differ after them, and halves have to be rounded alike on a page."""
ROUNDING = 10.0**-DIGITS
"""Differences below this are rounding, also where the errors are zero."""

Design = tuple[tuple[int, ...], ...]
"""The seeds of each row."""


@dataclass(frozen=True)
class Fit:
    """The rows of a board, compared pair by pair.

    effects: row -> its mean as the fit estimates it; with all seeds present, the row's mean. spread: s, on `df` degrees
    of freedom. residuals: row -> what is left of each of its values. margins: row -> row -> the difference beyond which
    the two differ; infinite for rows that no seeds connect.
    """

    effects: dict[str, float]
    spread: float
    df: int
    residuals: dict[str, list[float]]
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
    def smallest_margin(self) -> float:
        """The smallest difference that tells two rows apart."""
        return min(min(margin for other, margin in line.items() if other != row) for row, line in self.margins.items())

    @cached_property
    def uneven(self) -> tuple[str, ...]:
        """The rows with more spread than the others, if a test at 5 % finds that spreads differ.

        Two statistics are tested at half of that each: Levene's, to which many rows add, and the largest row's share in
        the absolute residuals, which a single row moves. With three seeds the table of Levene's statistic is far off (a
        row's residuals sum to zero), so both are compared with those of simulated boards of equal rows. Named are the
        rows whose share is beyond its critical value, or else the row with the largest, or the rows that share it:
        residuals of two rows may mirror each other, and then nothing tells which of them varies. Of two rows alone
        nothing can be found.
        """
        if self.spread < ROUNDING or len(self.effects) == 2:
            return ()
        most_statistic, share_limit = _limits(self.design)
        sizes = np.abs(np.concatenate([self.residuals[row] for row in self.effects]))[:, None]
        statistic, share = _levene(sizes, self.design)
        if statistic[0] <= most_statistic and share.max() <= share_limit:
            return ()
        lowest = min(share_limit, float(share.max()) - ROUNDING)
        return tuple(row for row, value in zip(self.effects, share[:, 0], strict=True) if value > lowest)


def fit(samples: Mapping[str, Mapping[int, float]]) -> Fit | None:
    """Compare rows; samples: row -> seed -> value.

    Rows with fewer than `FEWEST_SEEDS` values are left out. None: fewer than two rows are left, or no degree of freedom
    for the error.
    """
    samples = {row: sample for row, sample in samples.items() if len(sample) >= FEWEST_SEEDS}
    design = tuple(tuple(sorted(sample)) for sample in samples.values())
    solver = _solver(design) if len(samples) > 1 else None
    if solver is None:
        return None
    values = np.array([sample[seed] for sample in samples.values() for seed in sorted(sample)])
    effects = dict(zip(samples, np.round(solver.effects @ values, DIGITS).tolist(), strict=True))
    errors = np.round(solver.residuals @ values, DIGITS)
    spread = round(float(np.sqrt(errors @ errors / solver.df)), DIGITS)
    margins = np.round(solver.margins * max(spread, ROUNDING), DIGITS)
    scaled = np.where(np.isinf(solver.margins), np.inf, margins).tolist()
    parts = np.split(errors, np.cumsum([len(seeds) for seeds in design])[:-1])
    return Fit(
        effects=effects,
        spread=spread,
        df=solver.df,
        residuals={row: part.tolist() for row, part in zip(samples, parts, strict=True)},
        margins={row: dict(zip(samples, line, strict=True)) for row, line in zip(samples, scaled, strict=True)},
        design=design,
    )


class _Solver(NamedTuple):
    """What depends on the design alone: values -> effects and residuals; margins for s = 1."""

    effects: NDArray[np.float64]
    residuals: NDArray[np.float64]
    margins: NDArray[np.float64]
    df: int


@lru_cache(maxsize=128)
def _solver(design: Design) -> _Solver | None:
    """Least squares of rows and seeds. None: no degree of freedom is left for the error."""
    from scipy.sparse.csgraph import connected_components
    from scipy.stats import studentized_range

    rows, seeds = len(design), sorted({seed for sample in design for seed in sample})
    at = [(row, rows + seeds.index(seed)) for row, sample in enumerate(design) for seed in sample]
    model = np.zeros((len(at), rows + len(seeds)))
    for value, columns in enumerate(at):
        model[value, columns] = 1
    count, block = connected_components(model.T @ model)  # rows that share seeds, directly or through other rows
    df = len(at) - (rows + len(seeds) - count)
    if df < 1:
        return None
    inverse = np.linalg.pinv(model)
    means = [inverse[rows:][block[rows:] == block[row]].mean(axis=0) for row in range(rows)]
    effects = inverse[:rows] + means  # a row's effect at the mean of all seeds: with no seed missing, its mean
    covariance = effects @ effects.T
    variances = np.add.outer(np.diag(covariance), np.diag(covariance)) - 2 * covariance
    q = float(studentized_range.ppf(1 - LEVEL, rows, df))
    margins = q * np.sqrt(np.maximum(variances, 0) / 2)
    margins[np.not_equal.outer(block[:rows], block[:rows])] = np.inf
    return _Solver(effects, np.eye(len(at)) - model @ inverse, margins, df)


@lru_cache(maxsize=128)
def _limits(design: Design) -> tuple[float, float]:
    """Critical values of Levene's statistic, and of the largest row's share in the absolute residuals.

    Both at half of `LEVEL`, from `SIMULATED` boards of equal rows with this one's seeds; the same at every call.
    """
    solver = _solver(design)
    assert solver is not None
    noise = np.random.default_rng(0).standard_normal((len(solver.residuals), SIMULATED))
    statistic, share = _levene(np.abs(solver.residuals @ noise), design)
    at = 1 - LEVEL / 2
    return float(np.quantile(statistic, at)), float(np.quantile(share.max(axis=0), at))


def _levene(sizes: NDArray[np.float64], design: Design) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Levene's W of each board, and each row's mean absolute residual over that of its board.

    sizes: (values, boards), absolute residuals. The share is (rows, boards).
    """
    counts = np.array([len(seeds) for seeds in design])[:, None]
    first = np.concatenate([[0], np.cumsum(counts[:-1, 0])])
    means, mean = np.add.reduceat(sizes, first) / counts, sizes.mean(axis=0)
    between = (counts * (means - mean) ** 2).sum(axis=0) / (len(design) - 1)
    within = ((sizes - np.repeat(means, counts[:, 0], axis=0)) ** 2).sum(axis=0) / (len(sizes) - len(design))
    with np.errstate(divide="ignore"):  # residuals of one size: infinitely clear
        return between / within, means / mean
