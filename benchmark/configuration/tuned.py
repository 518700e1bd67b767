"""The tuning rule, the constant that it searches for a row, and the settings that searches by it have chosen."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import leaderboards
from benchmark.configuration.files import SHIPPED, available, facts, lineage, read_yaml
from benchmark.errors import ConfigError

TUNED = Path(leaderboards.__file__).parent / "tuned"
"""Folder of the files SCENARIO/ROW.json with what was chosen; those without `seeds` are older than the rule."""
RATE = "optimizer.lr"


@dataclass(frozen=True)
class Rule:
    """What is the same for every row of a board; `configs/tuning.yaml` has the values and their meaning.

    label_free, labels: PROTOCOL METRIC, of which more is better. chosen_by: the one that chooses, `score` for
    the first, `accuracy` for the second.
    """

    rates: list[float]
    finer: list[float]
    seeds: list[int]
    rounds: int | None
    label_free: str
    labels: str
    chosen_by: str = "score"

    @property
    def trials(self) -> int:
        """Settings that are trained for a row, under each seed."""
        return len(self.rates) + len(self.finer)


@cache
def rule(suite: str = "") -> Rule:
    """The shipped rule, with what it has of its own for a suite."""
    content = read_yaml(SHIPPED / "tuning.yaml")
    return Rule(**content | content.pop("suites").get(suite, {}))


class Constant(NamedTuple):
    """The constant of its own that a row's paper tunes: its key, and values around the paper's as text."""

    key: str
    values: tuple[str, ...]


def constant(method: str) -> Constant | None:
    """The constant that the head of the method's config names; None: it has none.

    Those of an objective are not searched: rows that build on it share them, so that they differ by their method alone.
    """
    tunes = facts("method", method).get("tunes") if method in available("method") else None
    if tunes is None:
        return None
    key, _, values = tunes.partition("=")
    return Constant(key, tuple(values.split(",")))


def chosen(scenario: str, rows: Iterable[str]) -> dict[str, list[str]]:
    """Ancestor of a scenario, the oldest first -> the overrides that a search by the rule has chosen on it for a row.

    rows: names of one row; the first that has a file by the rule counts. A scenario of the user's own has no file.
    """
    rows = list(rows)
    names = (name for name, _ in lineage(scenario) if not name.endswith(".yaml"))
    return {name: words for name in names if (words := next(_found(name, rows), []))}


def _found(scenario: str, rows: Iterable[str]) -> Iterator[list[str]]:
    """The chosen overrides in each file of these rows."""
    for row in rows:
        file = TUNED / scenario / f"{row}.json"
        if not file.is_file():
            continue
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            best = list(map(str, content["best"]))
            if "seeds" in content:  # of older files the scenario has the values
                yield best
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file}: no chosen settings ({error!r}): write it by `tune suite=NAME`") from error
