"""Moderated variances: against limma's formulas worked out by other means, and simulated draws of the prior."""

import numpy as np
import pytest
from scipy import optimize, special

from leaderboards.moderation import PRIORS, moderated


def test_by_another_solution_of_smyths_equations():
    """d0 from trigamma(d0 / 2) = the excess variance of log s^2 by bisection, instead of Newton's method."""
    variances, df = np.array([0.1, 0.4, 0.5, 1.0, 3.0, 9.0]), np.array([2.0, 2, 2, 4, 4, 4])
    logs = np.log(variances) - special.digamma(df / 2) + np.log(df / 2)
    excess = logs.var(ddof=1) * (1 + np.sqrt(2 / 5)) - special.polygamma(1, df / 2).mean()
    exact = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-3, 1e3)
    found = moderated(variances[:, None], df[:, None])
    (prior,) = found.prior_df
    assert prior == max(value for value in PRIORS if value <= exact)
    scale = np.exp(logs.mean() + special.digamma(prior / 2) - np.log(prior / 2))
    assert found.scale == pytest.approx(scale)
    assert found.variances[:, 0] == pytest.approx((prior * scale + df * variances) / (prior + df))


def test_variances_of_one_common_value_are_pooled_and_very_unlike_ones_stay_as_they_are():
    df = np.array([4.0, 4, 2])
    alike = moderated(np.array([[1.0], [1.1], [0.9]]), df[:, None])
    assert np.isinf(alike.prior_df).all()
    assert alike.variances[:, 0] == pytest.approx([(4 + 4.4 + 1.8) / 10] * 3)
    unlike = moderated(np.array([[1e-4], [1.0], [1e4]]), df[:, None])
    assert unlike.prior_df == PRIORS[0]
    assert unlike.variances[2, 0] > 5e3


def test_the_prior_of_many_rows_is_found_and_never_far_above_its_true_degrees_of_freedom():
    draw = np.random.default_rng(0)
    true = 4 / draw.chisquare(4, (200, 300))
    found = moderated(true * draw.chisquare(4, true.shape) / 4, np.full(true.shape, 4.0))
    assert 2.5 <= np.median(found.prior_df) <= 4  # rounded down, at a standard error below
    assert np.mean(found.prior_df > 5) < 0.02
    errors = [np.mean((np.log(v) - np.log(true)) ** 2) for v in (found.variances, found.variances * 0 + found.scale)]
    assert errors[0] < errors[1]


def test_a_row_without_a_degree_of_freedom_has_the_priors_variance_and_each_board_is_its_own():
    variances = np.array([[1.0, 4.0], [0.2, 40.0], [7.0, 0.1], [99.0, 99.0]])
    found = moderated(variances, np.tile([[2.0], [2], [2], [0]], 2))
    assert found.variances[3] == pytest.approx(found.scale)
    for board in range(2):
        alone = moderated(variances[:3, [board]], np.full((3, 1), 2.0))
        assert found.variances[:3, [board]] == pytest.approx(alone.variances)
