"""The privacy sheet: what leaves a client under a method, asked of the method itself.

One client plays the rounds that differ, through the loop of any run, but does no work in them: it is sent what the
server sends, looks at two images where a phase observes, and replies. Entries, shapes and bytes are those of a run; the
numbers mean nothing.
"""

import math
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import DictConfig
from torch import Tensor

from benchmark.configuration.compose import compose
from benchmark.configuration.files import CONFIGS
from benchmark.distributed.launch import RankLayout
from benchmark.execution.base import VisitResult
from benchmark.execution.observations import gather_batches
from benchmark.execution.sequential import PerArchitectureExecutor, SequentialExecutor
from benchmark.experiment import data as holdings
from benchmark.experiment import factory
from benchmark.federation.accountant import DELTA, epsilon
from benchmark.federation.communication import sizes
from benchmark.federation.loop import FederatedLoop
from benchmark.rng import Streams
from datamodules.federated import FederatedDataModule
from datamodules.sources import Source, Split
from leaderboards.pages.privacy import Entry, Method, Sheet
from methods import trees
from methods.base import Cat, Each, FederatedMethod, MethodError, Phase, Sum, Tree, Visit, set_learning_rate
from methods.types import Reduction

ENCODER, CLASS = "ResNet-18", "methods.networks.resnet18"
IMAGES = 5_000
"""Of a client, and as many public ones: a tenth of CIFAR-10."""

WEIGHTS = {"examples": "by their images", "batches": "by their batches", "clients": "all alike"}
"""Of a mean over clients, by its `by`."""


class Idle(SequentialExecutor):
    """Visits without work, whose replies are of the right shape.

    What the images of an observe phase give is that of two of them, over and over; queues count as full.
    """

    def _train(self, visit: Visit) -> tuple[Tensor, int]:
        """One step along a gradient of ones, so that a reply finds something moved; and full queues."""
        method, objective = self.method, self.method.objective
        optimizer = method.hook("configure_optimizers", visit.phase)()
        visit.batches, visit.steps, visit.lr_sum = 1, 1, set_learning_rate(optimizer, 1.0)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        method.on_before_optimizer_step(optimizer)
        optimizer.step()
        for name in objective.queues:
            getattr(objective, f"{name}_filled").fill_(len(getattr(objective, name)))
        return torch.zeros(()), 0

    @torch.no_grad()
    def _observe(self, actor: Any, visit: Visit) -> None:
        """One batch of two images, its rows repeated for all images and passes."""
        phase, few = visit.phase, 2
        batch = next(self._batches(actor, visit, few, epochs=1, shuffled=False))
        with self.fabric.autocast():
            seen = gather_batches({}, actor.hook("observe", phase)(batch), phase.gather)
        looks = len(self.data.held_by(self._holder(visit))) * (phase.epochs or 1)
        visit.observed = {entry: _repeated(tree, phase.gather[entry], looks / few) for entry, tree in seen.items()}


def _repeated(tree: Tree, how: Sum | Cat, times: float) -> Tree:
    """Rows over and over, a part of them for what is left of `times`; a sum stays what it is."""
    if isinstance(how, Sum):
        return tree

    def repeat(leaf: Tensor) -> Tensor:
        rows = round(len(leaf) * times)
        return leaf.repeat(math.ceil(times), *(1,) * (leaf.dim() - 1))[: min(rows, how.last or rows)]

    return trees.map(repeat, tree)


class Listener:
    """Writes down what the client replies, by round, and what it has kept last.

    Args:
        method: knows which of its numbers are running statistics, and what protects an entry.
        delta: at which what a release costs is told.
    """

    def __init__(self, method: FederatedMethod, delta: float) -> None:
        self.method, self.delta = method, delta
        self.told: dict[int, list[Entry]] = {}
        self.kept: Tree = {}

    def on_visit_end(self, loop: FederatedLoop, done: VisitResult) -> None:
        """Every entry of a client's reply; what the server's own seats reply leaves nobody."""
        phase, round = done.visit.phase, done.visit.round
        if phase.where == "server":
            return
        self.kept = done.kept
        if missing := sorted(set(phase.uplink) - set(done.message)):
            raise MethodError(
                f"phase {phase.name!r} declares {', '.join(missing)}, but a client that was asked in round {round + 1} "
                "did not send it: the privacy sheet cannot say what it is"
            )
        statistics = {path for path, _ in trees.leaves(self.method.statistics())}
        for entry, size in sizes(done.message).items():
            what = shape(done.message[entry], statistics) + (", of public images" if phase.data == "public" else "")
            words = (*combined(phase.uplink[entry]), self.protection(entry, done.visit))
            self.told.setdefault(round, []).append(Entry(phase.name, entry, what, size, *words))

    def protection(self, entry: str, visit: Visit) -> str | None:
        """What the method says of an entry, and what its release with noise costs a client."""
        said = [words] if (words := self.method.guards().get(entry)) else []
        if multiplier := self.method.noise(visit.phase, visit.client).get(entry):
            cost = epsilon(((multiplier, 1),), self.delta)
            said.append(f"a release costs epsilon {cost:.3g} at delta {self.delta:g}")
        return "; ".join(said) or None


def sheet(methods: Iterable[Method]) -> Sheet:
    """What was asked of methods, with what is common to them."""
    return Sheet(ENCODER, IMAGES, tuple(methods))


def asked(name: str, overrides: Sequence[str] = ()) -> Method:
    """What leaves a client under a shipped method, or one by the path of its config."""
    scenario = scenarios().get(Path(name).stem, "reference")
    own = [] if any(word.startswith("encoder") for word in overrides) else [f"encoder.class={CLASS}"]
    config = compose(scenario, name, [*own, *overrides])
    entries: Sequence[Entry] = ()
    kept: Tree = {}
    if config.partition.clients > 1:  # else it holds all images and has nobody to send anything to
        entries, kept = listened(config)
    names = (*kept.get("stays", {}), *kept.get("memory", {}), *(["running statistics"] if "statistics" in kept else []))
    return Method(config.row, scenario, config.objective.name, tuple(entries), names, trees.nbytes(kept))


def listened(config: DictConfig) -> tuple[list[Entry], Tree]:
    """Each entry that leaves a client, with its rounds in words; and what stays with it."""
    config.accelerator = "cpu"
    images = noise_images()
    method = factory.method(config, images)
    everyone = np.arange(IMAGES)
    data = FederatedDataModule(
        images,
        [everyone],
        factory.recipe(config, images),
        public=everyone,
        channels_last=config.training.channels_last,
    )
    fabric, streams = factory.fabric(config, RankLayout(1, 1, True)), Streams(config.seed)
    work = Idle(fabric, method, data, factory.pace(config), streams)
    listener = Listener(method, config.privacy.get("delta", DELTA))
    with tempfile.TemporaryDirectory() as folder:
        loop = FederatedLoop(
            fabric,
            method,
            PerArchitectureExecutor(work) if method.others else work,
            holdings.Clients(data.parts),
            streams,
            rounds=config.federation.rounds,
            participation=1.0,
            folder=Path(folder),
            config_hash="",
        )
        loop.callbacks = [listener]
        loop.start()
        plans = [[phase for _, phase in loop.plan(round)] for round in range(loop.rounds)]
        stands_for = representatives(plans)
        for round in sorted(set(stands_for)):
            loop.run_round(round)
    rounds: dict[Entry, list[int]] = {}
    for round, played in enumerate(stands_for):
        for entry in listener.told.get(played, ()):
            rounds.setdefault(entry, []).append(round)
    return [replace(entry, **when(entry, found, plans)) for entry, found in rounds.items()], listener.kept


def representatives(plans: Sequence[Sequence[Phase]]) -> list[int]:
    """For each round the one that is played for it: the first of its plan, but never round 0 for a later one.

    A client that comes back may send what it did not send at first.
    """
    outlines = [
        [
            (phase.name, phase.data, phase.where, *((entry, *combined(how)) for entry, how in phase.uplink.items()))
            for phase in plan
        ]
        for plan in plans
    ]
    return [0, *(1 + outlines[1:].index(outline) for outline in outlines[1:])][: len(plans)]


def combined(how: Reduction) -> tuple[str, bool]:
    """What the server makes of the clients' replies, and whether it has to see each by itself for it."""
    if isinstance(how, Sum):
        return "sum", False
    if isinstance(how, Cat):
        return "all rows together", True
    if isinstance(how, Each):
        return "one by one", True
    own = callable(how.by)  # a weight that is found by looking at the reply
    words = "weighed by what is in it" if own else WEIGHTS[str(how.by)]
    return f"mean over clients, {words}", own


def shape(tree: Tree, statistics: Collection[tuple]) -> str:
    """An entry's content in words: the dimensions of a tensor or two, or the parts of networks and their numbers.

    statistics: paths of BatchNorm's running statistics.
    """
    leaves = list(trees.leaves(tree))
    if all(len(path) == 1 for path, _ in leaves):
        several = len(leaves) > 1
        return ", ".join((f"{path[0]} " if several else "") + dimensions(leaf) for path, leaf in leaves)
    total = sum(leaf.numel() for _, leaf in leaves)
    running = sum(leaf.numel() for path, leaf in leaves if path in statistics)
    among = f", {running:,} of them running statistics" if 0 < running < total else ""
    kind = "running statistics" if running == total else "numbers"
    return f"{', '.join(tree)}: {total:,} {kind}{among}"


def dimensions(leaf: Tensor) -> str:
    """512 x 512; 512 numbers; 1 number."""
    if leaf.dim() < 2:
        return f"{leaf.numel():,} number{'s' if leaf.numel() != 1 else ''}"
    return " x ".join(f"{size:,}" for size in leaf.shape)


def when(entry: Entry, rounds: Sequence[int], plans: Sequence[Sequence[Phase]]) -> dict[str, Any]:
    """In which rounds, and who, in words; and whether it comes more than once."""
    first, last, total = rounds[0], rounds[-1], len(plans)
    if len(rounds) == total:
        words = "every round"
    elif len(rounds) == 1:
        words = f"once, in round {first + 1}"
    elif len(rounds) < last - first + 1:
        words = f"in {len(rounds)} of {total} rounds"
    else:
        words = f"from round {first + 1} on" if last + 1 == total else f"in rounds {first + 1} to {last + 1}"
    cohorts = [phase.cohort for round in rounds for phase in plans[round] if phase.name == entry.phase]
    if "all" in cohorts:
        words += ", by all clients" if set(cohorts) == {"all"} else ", in the first by all clients"
    return {"when": words, "recurs": len(rounds) > 1 or total == 1}


def scenarios() -> dict[str, str]:
    """Method -> the scenario whose networks it is counted with; any other: `reference`."""
    found: dict[str, str] = yaml.safe_load((CONFIGS / "sheet.yaml").read_text())
    return found


def noise_images() -> Source:
    """As many colour images of 32 x 32 as a client holds; nobody looks at more than two."""
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
    split = Split(pixels, np.arange(IMAGES) % 10)
    return Source("noise", split, split, tuple(map(str, range(10))), "")
