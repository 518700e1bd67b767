"""The committed records, which tests of one process read once and may not change."""

from functools import cache
from pathlib import Path

from leaderboards import store
from leaderboards.schema import Record

RESULTS = Path(__file__).parents[1] / "leaderboards" / "results"


@cache
def records() -> list[Record]:
    """All of them."""
    return store.collect(RESULTS)
