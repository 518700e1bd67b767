"""How long what is left of a run will take, from what its folder and its neighbours' tell of the time they took."""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmark.campaign.jobs import DONE, PAUSED, SESSIONS, Job, State, rows, sessions
from benchmark.configuration.compose import load
from benchmark.distributed.launch import cohort
from benchmark.errors import ConfigError
from benchmark.rng import cohort_size
from leaderboards import schema, store

IMAGES = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion_mnist": 60_000,
    "svhn": 73_257,
    "tiny-imagenet": 100_000,
    "imagenet-100": 126_689,
}
"""Training images of the papers' data sets, for runs of which no round was played yet."""

START = 5.0
"""Seconds from a command to its first round, where none has been timed."""


@dataclass(frozen=True)
class Seen:
    """What one session tells. rounds, images, seconds: of its rounds. together: runs that shared the machine.

    start: seconds beside rounds and scoring, None of a session that was cut short; evaluation: of scoring, if any.
    """

    config: DictConfig
    folder: Path
    machine: str
    ranks: int
    together: int
    rounds: int
    images: int
    seconds: float
    start: float | None
    evaluation: float | None

    @property
    def alone(self) -> float:
        """Seconds its rounds would take on one device."""
        return self.seconds * self.ranks


class Estimates:
    """Expected seconds of a campaign's pieces on this machine.

    Args:
        pieces: of the campaign, whose folders are read. machine: what is counted, all of it where none is known of it.
        speed: images/s to go by where nothing has been measured. others: sessions of other runs, see `neighbours`.
    """

    def __init__(
        self, pieces: Iterable[Job], machine: str, speed: float | None = None, others: Sequence[Seen] = ()
    ) -> None:
        every = [*(one for piece in pieces for one in seen(piece.folder, piece.config)), *others]
        self.here = [one for one in every if one.machine == machine]
        self.seen = self.here or every
        self.speed = speed

    def seconds(self, piece: Job, state: State) -> float | None:
        """Of what is left of a piece; None where nothing is known."""
        left = piece.rounds - state.rounds
        each = self.round(piece) if left else 0.0
        return None if each is None else self.start(piece) + left * each + self.evaluation(piece)

    def round(self, piece: Job) -> float | None:
        """Seconds of one round on one device: the run's own, its row's, its method's here; else by images/s."""
        here = [one for one in self.seen if one.rounds and one.config.scenario == piece.config.scenario]
        alike: Sequence[Callable[[Seen], Any]] = (
            lambda one: one.folder == piece.folder,
            lambda one: one.config.row == piece.config.row,
            lambda one: one.config.method["name"] == piece.config.method["name"],
        )
        for same in alike:
            if found := [one for one in here if same(one)]:
                return sum(one.alone for one in found) / sum(one.rounds for one in found)
        images, speed = self._images(piece, here), self._speed(piece)
        return images / speed if images and speed else None

    def start(self, piece: Job) -> float:
        """Seconds of a session that are neither rounds nor scoring."""
        return self._median(piece, lambda one: one.start, START)

    def evaluation(self, piece: Job) -> float:
        """Seconds of scoring; 0 where none was timed."""
        return self._median(piece, lambda one: one.evaluation, 0.0)

    def devices(self, piece: Job, pieces: int, free: int, every: int) -> int:
        """How many devices a piece is to get, the next of some.

        One each while there are enough pieces: runs side by side exchange nothing. What is free beyond that goes to the
        last ones as ranks. Where both were measured here and one run on all devices was faster, it gets all.
        """
        most = min(every, cohort(piece.config))
        alone, apart = self.rate(piece, most, 1), self.rate(piece, 1, every)
        if most > 1 and alone is not None and apart is not None and alone > apart:
            return most
        return min(most, max(1, free // pieces))

    def rate(self, piece: Job, ranks: int, together: int) -> float | None:
        """Images/s of this machine while `together` runs of a piece's row are played on it, each on so many ranks.

        None: never measured.
        """
        own = (piece.config.scenario, piece.config.row)
        same = [one for one in self.here if (one.config.scenario, one.config.row) == own and one.seconds]
        found = [one for one in same if (one.ranks, one.together) == (ranks, together)]
        return together * sum(one.images for one in found) / sum(one.seconds for one in found) if found else None

    def _images(self, piece: Job, here: Sequence[Seen]) -> float | None:
        if here:
            return sum(one.images for one in here) / sum(one.rounds for one in here)
        config = piece.config
        clients = int(config.partition.get("clients", 10))
        share = cohort_size(clients, config.federation.participation) / clients * config.partition.get("share", 1.0)
        if config.training.steps is not None:
            return clients * share * config.training.steps * config.training.batch_size
        held = IMAGES.get(config.data.name)
        return held * share * config.training.epochs if held else None

    def _speed(self, piece: Job) -> float | None:
        encoder = piece.config.encoder["class"]
        found = [one for one in self.seen if one.config.encoder["class"] == encoder and one.seconds]
        return sum(one.images for one in found) / sum(one.alone for one in found) if found else self.speed

    def _median(self, piece: Job, value: Callable[[Seen], float | None], default: float) -> float:
        for group in ([one for one in self.seen if one.config.scenario == piece.config.scenario], self.seen):
            if known := [found for one in group if (found := value(one)) is not None]:
                return statistics.median(known)
        return default


def neighbours(output: Path, pieces: Iterable[Job]) -> list[Seen]:
    """The sessions of the other runs in a folder of runs."""
    own = {piece.folder for piece in pieces}
    found = []
    for file in output.rglob(SESSIONS) if output.is_dir() else []:
        if file.parent not in own:
            with contextlib.suppress(ConfigError):  # what cannot be read tells nothing
                found += seen(file.parent, load(file.parent / "config.yaml"))
    return found


def seen(place: Path, config: DictConfig) -> list[Seen]:
    """A run folder's sessions, with the rounds each played."""
    lines, record, scored, found = rows(place), place / "result.json", None, []
    if record.exists():
        with contextlib.suppress(schema.RecordError):  # `look` says so
            scored = store.read(record)["seconds"]["evaluation"]
    for one in sessions(place):
        own = lines[one["from"] : one["to"]]
        seconds, images = math.fsum(row["seconds"] for row in own), sum(row["images"] for row in own)
        evaluation = scored if one["end"] == DONE else None
        start = max(0.0, one["seconds"] - seconds - (evaluation or 0.0)) if one["end"] in (DONE, PAUSED) else None
        found.append(
            Seen(
                config,
                place,
                one["machine"],
                one["ranks"],
                one["together"],
                len(own),
                images,
                seconds,
                start,
                evaluation,
            )
        )
    return found
