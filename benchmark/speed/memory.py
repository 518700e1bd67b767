"""Resident memory of a run by part: what each import, the built run and its rounds add, in fresh processes.

A library counts what those before it have not imported. A round's memory is its peak: of clients without work, what
weights, replies and float64 sums need; what those with steps need more are views, activations, gradients and momentum.
"""

import gc
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmark import runtime
from benchmark.speed import timing
from benchmark.speed.timing import ON_CPU, Line, Log, spread

SCENARIO = Path(__file__).with_name("peer") / "scenario.yaml"
IMPORTS: Mapping[str, tuple[str, ...]] = {
    "Python": (),
    "import torch": ("torch",),
    "import torchvision, with torch's compiler": ("torchvision",),
    "import lightning, with torchmetrics and matplotlib": ("lightning",),
    "import the suite": ("benchmark.experiment.experiment", "benchmark.tracking.progress"),
}
BUILT, ROUNDS, LATER = "built", "rounds", "import scikit-learn, where a protocol needs it"
IDLE = "method.class=benchmark.speed.overhead.Idle"

SHORT = ("heads.projector=[512,128]", "training.batch_size=32", "training.steps=2", "federation.rounds=1",
         "federation.participation=0.04")  # fmt: skip
WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "peers' workload, batch 64": ("training.batch_size=64",),
    "ResNet-18, 32 pixels, batch 32": ("encoder={class: methods.networks.resnet18}", *SHORT),
    "ViT-S, 32 pixels in patches of 8, batch 32": (
        "encoder={class: methods.networks.vit_small, patch_size: 8}", *SHORT,
    ),
}  # fmt: skip


def memory(_: int, log: Log) -> list[Line]:
    """MiB of each import, then of each workload: of its parts, and of the command with one and two ranks.

    A workload is measured once, whatever the repetitions, while no other process on the machine has torch loaded: pages
    that are shared with one count by halves.
    """
    lines, imports = list[Line](), list[dict[str, float]]()
    for name, overrides in WORKLOADS.items():
        log(name)
        words = ("accelerator=cpu", "threads=1", "training.channels_last=true", *overrides)
        work, idle = _parts(*words), _parts(IDLE, *words)
        imports.append(idle)  # its memory holds few freed blocks, which later imports would use
        sizes = {
            "network, flat buffers, data": work[BUILT],
            "a round without work": idle[ROUNDS],
            "its steps": work[ROUNDS] - idle[ROUNDS],
            "the command, 1 rank (PSS)": _whole("devices=1", *words),
            "the command, 2 ranks (PSS)": _whole("devices=2", *words),
        }
        lines += [Line(f"{name}: {part}", spread([size]), "MiB") for part, size in sizes.items()]
    return [*(Line(part, spread(run[part] for run in imports), "MiB") for part in (*IMPORTS, LATER)), *lines]


def _parts(*overrides: str) -> dict[str, float]:
    """See `added`, in a process of its own."""
    process = timing.run_process([sys.executable, "-m", "benchmark.speed.memory", *overrides])
    parts: dict[str, float] = json.loads(process.output.splitlines()[-1])
    return parts


def _whole(*overrides: str) -> float:
    """Peak of the proportional set sizes of the command and its ranks, MiB."""
    with timing.run_command(SCENARIO, *ON_CPU[1:], *overrides) as (command, _):
        return timing.run_process(command).peak_mib


def added(*overrides: str) -> dict[str, float]:
    """Part -> MiB by which it raises this process's memory, which is as the command's: a run of the peers' scenario."""
    gc.disable()
    runtime.spin_briefly()
    runtime.keep_freed_memory()
    parts, before = dict[str, float](), 0.0

    def grown(part: str, now: float) -> None:
        nonlocal before
        parts[part], before = now - before, now

    for part, modules in IMPORTS.items():
        for module in modules:
            importlib.import_module(module)
        grown(part, _mib("VmRSS"))
    from benchmark.speed.overhead import build_loop

    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(Path(folder), *overrides)
        grown(BUILT, _mib("VmRSS"))
        loop.fit()
        grown(ROUNDS, _mib("VmHWM"))
    before = _mib("VmRSS")  # the peak has passed
    for module in ("sklearn.cluster", "sklearn.manifold", "scipy.stats"):
        importlib.import_module(module)
    grown(LATER, _mib("VmRSS"))
    return parts


def _mib(field: str) -> float:
    """Of this process, as the kernel counts: "VmRSS", its resident memory, or "VmHWM", the peak of that."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    return float(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    print(json.dumps(added(*sys.argv[1:])))  # noqa: T201
