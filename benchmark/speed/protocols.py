"""Seconds of every protocol beside training's: of a run like `cifar10-micro`, and on 50,000 cached features of 512.

Seconds are a processor's, on one thread: what other processes do hardly changes them.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.evaluation.monitor import measure
from benchmark.experiment.experiment import Experiment
from benchmark.speed import evaluation
from benchmark.speed.timing import ON_CPU, Line, Log, spread
from benchmark.tracking.progress import Display
from eval.protocol import PROTOCOLS, Subject, evaluate

LIKE = ("cifar10-micro", "fedavg", "data.name=synthetic", "data.image_size=32", "data.options.examples=60000")
"""Synthetic images of the number and size of CIFAR-10's; a fifth of them are the test split."""
MEASURED = ("all",)
FEATURES = [each.id for each in PROTOCOLS.values() if not (each.requires or each.long or each.replaced_by)]
"""Protocols that need cached features alone."""


class Clock:
    """A display of `Scoring` that adds up the processor seconds between one step's name and the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.step, self.start = "", 0.0

    def __call__(self, step: str = "") -> None:
        """Begins a step; without a name the last one only ends."""
        now = time.process_time()
        if self.step:
            self.seconds[self.step] += now - self.start
        self.step, self.start = step, now

    def print(self, line: str) -> None:
        """Shows nothing."""

    def progress(self, fraction: float) -> None:
        """Shows nothing."""

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Times one activity."""
        self(activity)
        yield
        self()

    @contextmanager
    def counting(self, activity: str, total: int) -> Iterator["Clock"]:
        """Is given the name of each step as it begins."""
        yield self
        self()


def protocols(repetitions: int, log: Log) -> list[Line]:
    """The monitor's share of training, and seconds of training and of each protocol, the longest first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*_of_a_run(repetitions, log), *_of_features(log)]
    finally:
        torch.set_num_threads(threads)


def _of_a_run(repetitions: int, log: Log) -> list[Line]:
    """Of a run of one round, whose time is multiplied; the rounds of the scenario are alike."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = compose(*LIKE[:2], [*LIKE[2:], *ON_CPU, f"output={folder}", "devices=1"])
        rounds, every = config.federation.rounds, config.evaluation.every
        run = Experiment(config, Display(Console(quiet=True))).build()
        run.loop.rounds = 1
        with clock.during("training"):
            run.loop.fit()
        round_seconds = clock.seconds.pop("training")
        encoder = run.evaluator.encoder(run.loop.export()["global"])
        monitor = [_taken(lambda: measure(run.evaluator, encoder)) / every for _ in range(repetitions)]
        log(f"a round takes {round_seconds:.3g} s")
        scoring = replace(run.scoring, display=clock)
        scoring.score(scoring.available(MEASURED), {})
    return [
        Line(
            f"the monitor every {every} rounds, of training",
            spread(100 * each / round_seconds for each in monitor),
            "%",
        ),
        Line(f"training (from 1 of {rounds} rounds)", spread([rounds * round_seconds]), "s"),
        *_lines(clock.seconds, "{}"),
    ]


def _of_features(log: Log) -> list[Line]:
    """Of features alone, each as if it were the only protocol."""
    features = evaluation.make_features(evaluation.TRAIN, evaluation.TEST)
    log(f"{evaluation.TRAIN} x {evaluation.WIDTH} features")
    taken = {}
    for name in FEATURES:
        fresh = Subject(features=replace(features))
        taken[name] = _taken(lambda: evaluate(fresh, [name]))  # noqa: B023
    return _lines(taken, f"{evaluation.TRAIN:,} x {evaluation.WIDTH}: {{}}")


def _taken(call: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def _lines(seconds: Mapping[str, float], what: str) -> list[Line]:
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [Line(what.format(name), spread([value]), "s") for name, value in ordered]
