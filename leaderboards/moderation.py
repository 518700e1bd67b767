"""Variances estimated from a few seeds each, moderated towards a common value by empirical Bayes (Smyth 2004, limma).

The true variances of a board's rows are taken as draws from a scaled inverse chi-squared distribution, s0^2 d0 /
chi2(d0). A variance estimated as s^2 on d degrees of freedom becomes (d0 s0^2 + d s^2) / (d0 + d), on d0 + d degrees of
freedom. d0 and s0^2 are those whose log variances have the mean and the variance of the estimates' (Smyth's moments).
d0 is uncertain where rows are few, and too large a d0 makes statements too bold, so the variance of the log estimates
is taken at one standard error above its value.
"""

from typing import NamedTuple

import numpy as np
import scipy  # a subpackage is imported where it is first used
from numpy.typing import NDArray

Array = NDArray[np.float64]

PRIORS = np.array([0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 48, np.inf])
"""The degrees of freedom d0 that are told apart; others are rounded down. Infinite: one variance for all."""
FEWEST = 3
"""With fewer variances nothing is known of their distribution: one for all."""
SMALLEST = 1e-5
"""The least that a variance is taken as, as a part of the median: its logarithm stays finite. Also the least of df, and
the most that trigamma(d0 / 2) is where d0 is infinite."""


class Moderated(NamedTuple):
    """variances: (rows, boards). prior_df, scale: d0 and s0^2 of each board, the pooled variance where d0 is
    infinite."""

    variances: Array
    prior_df: Array
    scale: Array


def moderated(variances: Array, df: Array) -> Moderated:
    """Variances estimated on `df` degrees of freedom, moderated on each board by itself; both: (rows, boards).

    A row without any degree of freedom gets s0^2.
    """
    known = np.asarray((df > SMALLEST).all(axis=1))
    pooled = (df * variances).sum(axis=0) / df.sum(axis=0)
    if known.sum() < FEWEST:
        return Moderated(np.broadcast_to(pooled, variances.shape), np.full(variances.shape[1], np.inf), pooled)
    half, middle, most = df[known] / 2, np.median(variances[known], axis=0), variances[known].max(axis=0)
    least = np.maximum(SMALLEST * np.maximum(middle, SMALLEST * most), np.finfo(float).tiny)
    logs = np.log(np.maximum(variances[known], least)) - scipy.special.digamma(half) + np.log(half)
    upper = logs.var(axis=0, ddof=1) * (1 + np.sqrt(2 / (known.sum() - 1)))
    wanted = upper - scipy.special.polygamma(1, half).mean(axis=0)  # trigamma(d0 / 2), which falls with d0
    steps = np.append(scipy.special.polygamma(1, PRIORS[:-1] / 2), SMALLEST)
    prior_df = PRIORS[np.maximum(len(PRIORS) - np.searchsorted(steps[::-1], wanted) - 1, 0)]
    one = np.isinf(prior_df)
    finite = np.where(one, 1.0, prior_df)  # its results are not used where d0 is infinite
    scale = np.exp(logs.mean(axis=0) + scipy.special.digamma(finite / 2) - np.log(finite / 2))
    posterior = (finite * scale + np.where(known[:, None], df * variances, 0)) / (
        finite + np.where(known[:, None], df, 0)
    )
    return Moderated(np.where(one, pooled, posterior), prior_df, np.where(one, pooled, scale))
