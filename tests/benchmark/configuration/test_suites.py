"""Suites: which rows a command line changes."""

import pytest

from benchmark.configuration.compose import compose
from benchmark.configuration.suites import suite
from benchmark.errors import ConfigError


def test_an_override_that_some_rows_have_no_use_for_changes_the_others_only():
    lists = {"scenarios": ["digits"], "methods": ["fedavg", "fedavg objective=byol"], "seeds": [0]}
    simclr, byol = suite("digits", lists, ["heads.predictor=48"])
    assert (simclr.row, simclr.heads.predictor) == ("fedavg", compose("digits", "fedavg").heads.predictor)
    assert (byol.row, byol.heads.predictor) == ("fedavg-byol+heads.predictor=48", 48)
    with pytest.raises(ConfigError, match=r"heads\.predictor: simclr has no predictor, so it would change nothing"):
        suite("digits", lists | {"methods": ["fedavg", "fedprox"]}, ["heads.predictor=48"])
