"""Throughput of local training: networks, batches, precisions, and ways to run a step, beside a bare loop."""

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmark.speed.gpu.cells import Cell, Setting
from benchmark.speed.gpu.checks import refuse_unrecorded, unrecorded_reason
from benchmark.speed.overhead import LAST, RESNET, BareLoop, build_loop

NETWORKS = {"resnet18": RESNET[:2], "convnet": ()}
BATCHES = (64, 256, 16)
PRECISIONS = ("bf16-mixed", "32-true", "tf32")
EAGER, COMPILED, BARE = "one by one", "compiled", "bare loop"
LANES = (1, 4, 2, 8)
CLIENTS, STEPS, REPETITIONS = 8, 20, 3
LONG = 5.0
"""Seconds after which a point is not measured again."""


class Point(NamedTuple):
    """One place of the ladder."""

    network: str
    batch: int
    precision: str
    way: str

    @property
    def name(self) -> str:
        """The cell's name."""
        return ", ".join((self.network, f"batch {self.batch}", self.precision, self.way))


def recorded(lanes: int) -> str:
    """The way of steps that are recorded and replayed on some lanes."""
    return f"recorded, {lanes} lane{'s' if lanes > 1 else ''}"


def points(tiny: bool) -> Iterator[Point]:
    """All points, the most telling first: TF32, batch 16, the slowest ones and other numbers of lanes come later.

    Compiled ones are last, because compiling takes a minute each.
    """
    if tiny:
        for precision, way in product(("bf16-mixed", "32-true"), (BARE, EAGER, recorded(2))):
            yield Point("convnet", 8, precision, way)
        return
    ways = (BARE, EAGER, *map(recorded, LANES))

    def rank(point: Point) -> tuple[bool, ...]:
        slow = point.batch == 256 and point.precision == "32-true"
        further = point.way in map(recorded, LANES[2:])
        return point.way == COMPILED, further, slow, point.precision == "tf32", point.batch == 16

    every = [Point(*place) for place in product(NETWORKS, BATCHES, PRECISIONS, (*ways, COMPILED))]
    yield from sorted(every, key=rank)


def ladder(setting: Setting) -> Iterator[Cell]:
    """A cell for each point."""
    for point in points(setting.tiny):
        yield Cell(point.name, partial(_throughput, point, setting))


def _throughput(point: Point, setting: Setting) -> dict[str, Any]:
    """Images a second, milliseconds a step, the memory taken of the device, MiB, and what ran, in words."""
    clients, steps = (2, 2) if setting.tiny else (CLIENTS, STEPS)
    examples = clients * 2 * point.batch * 5 // 4  # a fifth is the test split
    words = [
        f"accelerator={setting.accelerator}", LAST, *NETWORKS[point.network], f"training.batch_size={point.batch}",
        f"training.steps={steps}", f"partition.clients={clients}", "federation.participation=1",
        f"training.precision={point.precision}", f"data.options={{examples: {examples}, classes: 2}}",
        *_executor(point.way),
    ]  # fmt: skip
    if setting.tiny:
        words.append("encoder={class: methods.networks.convnet, widths: [4, 8, 8, 8]}")
    setting.clear_memory()
    if point.way == COMPILED:
        torch.compiler.reset()  # the compiler keeps a few shapes and precisions, then stops compiling
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(Path(folder), *words)
        loop.restore()
        round_of = BareLoop(loop).run_round if point.way == BARE else loop.run_round
        setting.timed(partial(round_of, 0))  # the first visit of each lane records its steps
        refuse_unrecorded(unrecorded_reason(loop, setting))
        rounds = list[float]()
        while len(rounds) < REPETITIONS and sum(rounds) < LONG:
            rounds.append(setting.timed(partial(round_of, 0)))
        fastest = min(rounds)
        ran = ", ".join(loop.execution_environment(loop.executor)["numerical_deviations"])
    return {
        "images_per_second": clients * steps * point.batch / fastest,
        "ms_per_step": 1000 * fastest / (clients * steps),
        "memory_mib": setting.reserved_memory(),
        "ran": ran or "as the reference",
    }


def _executor(way: str) -> tuple[str, ...]:
    """Overrides of a way."""
    if way == COMPILED:
        return "executor=sequential", "compile=true"
    if way in (EAGER, BARE):
        return ("executor=sequential",)
    return "executor=parallel", f"lanes={way.split()[1]}"
