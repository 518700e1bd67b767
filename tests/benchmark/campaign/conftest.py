"""Fixtures of the tests of campaigns."""

import signal

import pytest

from benchmark.campaign.jobs import load_jobs
from tests.benchmark.campaign.campaign_helpers import write_campaign


@pytest.fixture(autouse=True)
def _restore_sigterm():
    """Restores the handler of SIGTERM, which `main` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def four(tmp_path):
    """Four jobs: two methods, two seeds."""
    return load_jobs([write_campaign(tmp_path)], [f"output={tmp_path}/runs"])
