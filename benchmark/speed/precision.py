"""Memory layout, bf16 and torch.compile: the same round, each way."""

import math
import os
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmark.execution.compile import compile_networks
from benchmark.execution.sequential import SequentialExecutor
from benchmark.federation.loop import FederatedLoop
from benchmark.speed.overhead import RESNET, prepared
from benchmark.speed.timing import Line, Say, interleaved, ratio, seconds, spread

TITLE = "Layout, precision and compilation"
NETWORKS = {
    "convnet, batch 64": ("training.batch_size=64",),
    "resnet18, batch 32": (
        *RESNET, "training.batch_size=32", "training.steps=2", "federation.participation=0.04",
    ),
}  # fmt: skip
PLAIN, LAST, HALF, COMPILED = "fp32", "fp32, channels last", "bf16, channels last", "fp32, compiled"
WAYS = {
    PLAIN: ("training.channels_last=false",),
    LAST: ("training.channels_last=true",),
    HALF: ("training.channels_last=true", "training.precision=bf16-mixed"),
    COMPILED: ("training.channels_last=false",),
}


def measure(repetitions: int, say: Say) -> list[Line]:
    """Speeds over plain fp32; what compiling costs, and when it pays."""
    lines = []
    for name, overrides in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            ways = {way: prepared(Path(folder) / way, *overrides, *own) for way, own in WAYS.items()}
            work = ways[COMPILED].work
            assert isinstance(work, SequentialExecutor)
            with patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=f"{folder}/compiled"):  # as on a machine that has none
                verdict = compile_networks(work, ways[COMPILED].clients, visits=1)
            assert verdict is not None
            say(f"{name}: {verdict}")
            work.method.objective.compile()  # whatever the verdict: a row tells what it would have been
            for loop in ways.values():
                loop.start()
                loop.run_round(0)  # warms up, and compiles what is left to be
            figures = interleaved({way: partial(played, one) for way, one in ways.items()}, repetitions, say)
        lines += [
            Line(f"{name}: {way}, speed over {PLAIN}", ratio(figures, PLAIN, way)) for way in WAYS if way != PLAIN
        ]
        lines.append(Line(f"{name}: to compile the networks", spread([verdict.seconds]), "s"))
        if not math.isinf(verdict.break_even):
            lines.append(Line(f"{name}: steps after which that has paid", spread([verdict.break_even]), ""))
    return lines


def played(loop: FederatedLoop) -> float:
    """Seconds of a round."""
    return seconds(lambda: loop.run_round(0))
