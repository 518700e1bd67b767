"""What searches have chosen for rows, and how far a choice without a label is from one by labels.

A file is `tuned/SCENARIO/ROW.json`; `tune suite=NAME` writes it. Files of before the tuning rule have one `seed`, no
probe, and a grid of their own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path

from pydantic.dataclasses import dataclass

from leaderboards.store import read_table

FOLDERS = ("tuned", "searched")
"""In the leaderboards' folder: of choices that rows have, and of those that a search made and no row has."""


@dataclass(frozen=True)
class Trial:
    """One setting, `key=value` of what was searched, and the means over seeds; None: it diverged, or was not measured.

    score: label-free, more is better. accuracy: percent, of a probe within a slice of the training labels.
    """

    point: tuple[str, ...]
    score: float | None
    accuracy: float | None = None


@dataclass(frozen=True)
class Choice:
    """A row's search.

    best: the point with the best score, or the best accuracy where `chosen_by` says so. seeds: of a search by the rule,
    others have one seed. constant: KEY=DEFAULT of what was searched beside the rate, which a point without it has.
    """

    scenario: str
    row: str
    best: tuple[str, ...]
    tried: tuple[Trial, ...]
    seed: int | None = None
    seeds: tuple[int, ...] = field(default=())
    constant: str | None = None
    chosen_by: str = "score"

    @property
    def scored(self) -> list[Trial]:
        """Trials that both criteria have measured."""
        return [trial for trial in self.tried if None not in (trial.score, trial.accuracy)]

    @property
    def label_free(self) -> Trial:
        """The trial that the label-free score chooses."""
        return max((trial for trial in self.tried if trial.score is not None), key=lambda trial: trial.score or 0.0)

    @property
    def regret(self) -> float | None:
        """Points of the probe by which its best trial is ahead of the label-free choice; None without a probe."""
        accuracies = [trial.accuracy for trial in self.scored if trial.accuracy is not None]
        return None if self.label_free.accuracy is None else max(accuracies) - self.label_free.accuracy

    @property
    def at_the_edge(self) -> bool:
        """Whether a chosen value is the smallest or largest of those tried, so that a better one may lie beyond."""
        tried: dict[str, set[float]] = {}
        default = () if self.constant is None else (self.constant,)
        for point in (default, *(trial.point for trial in self.tried)):
            for word in point:
                tried.setdefault(word.partition("=")[0], set()).add(float(word.partition("=")[2]))
        chosen = dict(word.split("=") for word in (*default, *self.best))
        compared = [key for key in chosen if len(tried[key]) > 1]
        return any(float(chosen[key]) in (min(tried[key]), max(tried[key])) for key in compared)


def collect(folder: Path) -> list[Choice]:
    """The choices in a folder's files, by scenario and row. Raises RecordError: a file holds none."""
    files = sorted(folder.glob("*/*.json"))
    return [read_table(file, Choice, "choice of a row's settings", "tune suite=NAME") for file in files]


def agreement(trials: Iterable[Trial]) -> float | None:
    """Spearman's rank correlation of the two criteria; None of fewer than three trials, or of equal ones."""
    pairs = [(trial.score, trial.accuracy) for trial in trials if None not in (trial.score, trial.accuracy)]
    if len(pairs) < 3 or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
        return None
    from scipy.stats import spearmanr

    found = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return None if math.isnan(found) else found


def by_scenario(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """The choices that were made by the rule, by scenario."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.seeds:
            found.setdefault(choice.scenario, []).append(choice)
    return found
