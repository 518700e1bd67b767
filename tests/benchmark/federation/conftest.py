"""Fixtures of the tests of the federation."""

import pytest

from benchmark.federation import accountant


@pytest.fixture
def few_orders(monkeypatch):
    """Whole orders of the Renyi divergences alone: a looser bound, in a fiftieth of the time under sampling."""
    monkeypatch.setattr(accountant, "ORDERS", list(range(2, 65)))
    accountant.epsilon.cache_clear()
    yield
    accountant.epsilon.cache_clear()
