"""What the monitor costs: one look against the round it looks at, on `cifar10-mini` with synthetic images."""

import tempfile
from typing import Any

import torch
from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.evaluation.monitor import Monitor
from benchmark.experiment.run import Run
from benchmark.speed.timing import Line, Say, Spread, ratio, seconds, spread
from benchmark.tracking.progress import Display

TITLE = "The monitor"
LOOK, ROUND = "a look", "a round"


class Timed(Monitor):
    """A monitor that notes its own seconds, and the round's."""

    figures: dict[str, list[float]]

    def on_round_scored(self, loop: Any, row: dict[str, Any]) -> None:
        """As the monitor's."""
        self.figures[LOOK].append(seconds(lambda: super(Timed, self).on_round_scored(loop, row)))
        self.figures[ROUND].append(row["seconds"])


def measure(repetitions: int, say: Say) -> list[Line]:
    """A look in every round after the first, which warms up; and its share where it is taken as often as is shipped."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            "data.name=synthetic",
            "data.image_size=32",
            "data.options={examples: 62500, classes: 10}",
            "logger=csv",
        ]
        overrides += [f"federation.rounds={repetitions + 1}", f"output={folder}", "accelerator=cpu", "devices=1"]
        config = compose("cifar10-mini", "fedavg", overrides)
        say(f"{repetitions + 1} rounds, {torch.get_num_threads()} threads")
        with Display(Console(quiet=True)) as display:
            run = Run(config, display)
            with run.prepared() as loop:
                monitor = Timed(run.evaluator, 1, run.recalibrated)
                monitor.figures = {LOOK: [], ROUND: []}
                loop.callbacks = [monitor]
                loop.fit()
    figures = {name: values[1:] for name, values in monitor.figures.items()}
    share = ratio(figures, LOOK, ROUND)
    every = config.evaluation.every
    shipped = Spread(share.median / every, share.low / every, share.high / every, share.repetitions)
    return [
        Line(f"a look every {every} rounds, as shipped: of the rounds' time", shipped, "x", "<= 0.05"),
        Line("a look / its round", share),
        *(Line(name, spread(values), "s") for name, values in figures.items()),
    ]
