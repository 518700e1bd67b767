"""What a client pays in a round: operations, memory, bytes and what it keeps, counted without training.

A client of the mean size takes part in the rounds that differ, as for the privacy sheet. Of each phase one step is
counted for each size of its batches (`execution.counting`), and taken as often as a visit makes it. So the count takes
seconds, touches nothing of a run and depends on nothing but its config and the sizes of its clients.

Noise, masks and compression on a reply are left out, and so are the suite's own measurements, such as the share of the
gradient at one client a round.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.schema import CompressionConfig, PrivacyConfig
from benchmark.execution.base import PendingVisit, VisitResult
from benchmark.execution.counting import Count, Work, count, operations, tensors_of
from benchmark.experiment import factory
from benchmark.experiment.dry import CLASSES, IMAGES, SHAPE, DryRunExecutor, dry_loop
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from datamodules.federated import FederatedDataModule
from methods import trees
from methods.base import FederatedMethod, Objective, Phase, Visit


@dataclass(frozen=True)
class VisitCost:
    """What one visit of a client takes.

    flops: operations. memory: bytes at most at once. weights: bytes of networks, of queues, and of what was received or
    kept for the visit; gradients, optimizer, activations: as named, the latter of the largest step.
    """

    flops: int
    memory: int
    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0


class RoundCost(NamedTuple):
    """What a round takes: its phases, and the bytes of its messages."""

    phases: Mapping[str, VisitCost]
    up: int
    down: int


class CountingExecutor(DryRunExecutor):
    """Counts the work of a visit, which it then only pretends to do.

    visits: round -> phase -> its cost, of the clients' phases.
    """

    visits: dict[int, dict[str, VisitCost]]

    def finish(self, pending: PendingVisit) -> VisitResult:
        """The reply, whose own operations count too."""
        visit = pending.visit
        result, flops = operations(lambda: super(CountingExecutor, self).finish(pending))
        if visit.phase.where == "clients":
            of_round = self.visits.setdefault(visit.round, {})
            found = of_round.pop(visit.phase.name, None) or self._cost(visit, {})
            of_round[visit.phase.name] = VisitCost(**{**asdict(found), "flops": found.flops + flops})
        return result

    def _train(self, visit: Visit) -> Any:
        if visit.phase.where == "server":
            return super()._train(visit)
        work = self._steps(visit)
        result = super()._train(visit)
        self._note(visit, work, sum(trees.nbytes(dict(state)) for state in self.optimizer.state.values()))
        return result

    def _observe(self, visit: Visit) -> None:
        if visit.phase.where == "clients":
            size = visit.phase.batch_size or self.training.batch_size
            held, epochs = len(self.data.held_by(self._holder(visit))), visit.phase.epochs or 1
            batches = Counter({min(size, held): epochs * (held // min(size, held))})
            batches[held % min(size, held)] += epochs
            self._note(visit, {("observe", each): times for each, times in batches.items() if each and times})
        super()._observe(visit)

    def _steps(self, visit: Visit) -> dict[tuple[str, int], int]:
        """(kind of work, its images) -> how often a training visit does it; as `SequentialExecutor._train` does."""
        phase, training, holder = visit.phase, self.training, self._holder(visit)
        held = len(self.data.held_by(holder))
        size = min(phase.batch_size or training.batch_size, held)
        batches = self.data.batches_per_epoch(holder, size, drop_last=phase.drop_last)
        steps = training.steps if phase.epochs is None else None
        total = steps if steps is not None else (phase.epochs or self._epochs(holder)) * batches
        prepares = type(self.method.objective).start_epoch is not Objective.start_epoch  # there is work before an epoch
        work: Counter[tuple[str, int]] = Counter()
        for index in range(total):
            place = index % batches
            kind = "pass" if phase.skip is None or place < phase.skip else "step"
            work[kind, min(size, held - place * size)] += 1
            if place == 0 and prepares:
                work["epoch", held] += 1
        return dict(work)

    def _note(self, visit: Visit, work: Mapping[tuple[str, int], int], optimizer: int = 0) -> None:
        self.visits.setdefault(visit.round, {})[visit.phase.name] = self._cost(visit, work, optimizer)

    def _cost(self, visit: Visit, work: Mapping[tuple[str, int], int], optimizer: int = 0) -> VisitCost:
        counts = {each: self._count(visit, *each) for each in work}
        weights = {each.data_ptr(): each.nbytes for each in tensors_of(self.method)}
        weights |= {leaf.data_ptr(): leaf.nbytes for _, leaf in trees.leaves(visit.memory)}
        held = sum(weights.values())
        largest = max(counts.values(), key=lambda each: each.peak, default=Count(0, 0, 0, 0))
        flops = sum(counts[each].flops * times for each, times in work.items())
        memory = held + optimizer + largest.peak
        return VisitCost(flops, memory, held, largest.gradients, optimizer, largest.activations)

    def _count(self, visit: Visit, kind: str, size: int) -> Count:
        """One step, one pass without gradient, one batch of an observation, or the work before an epoch."""
        if kind == "epoch":
            return self._count_epoch(visit)
        shuffled = kind != "observe" or visit.phase.shuffled
        batch = next(self._batches(visit, size, epochs=1, steps=1, shuffled=shuffled))
        return count(self.method, WORK[kind](visit.phase, self.fabric), batch)

    def _count_epoch(self, visit: Visit) -> Count:
        """The method's work before each epoch."""
        stream = self.streams.generator("epoch", round=visit.round, phase=visit.phase.name, client=visit.client.id)
        holder = self._holder(visit)
        held, size = self.data.held_by(holder), visit.phase.batch_size or self.training.batch_size
        full, rest = divmod(len(held), size)
        one_of_each = held[: min(full, 1) * size + rest]  # of the batches in memory, which pass one by one
        batches = [*self.data.plain_batches("cpu", held=one_of_each, pool=self.data.pool(holder), batch_size=size)]

        def work(method: FederatedMethod, given: Any) -> None:
            method.start_epoch(lambda: iter([*given[:1] * full, *given[min(full, 1) :]]), stream)

        return count(self.method, work, batches)


def _step(phase: Phase, fabric: Fabric) -> Work:
    def step(method: FederatedMethod, batch: Any) -> None:
        with fabric.autocast():
            outputs = method.hook("training_step", phase)(batch, 0)
        outputs["loss"].backward()

    return step


def _pass(phase: Phase, fabric: Fabric) -> Work:
    @torch.no_grad()
    def forward(method: FederatedMethod, batch: Any) -> None:
        with fabric.autocast():
            method.hook("training_step", phase)(batch, 0)

    return forward


def _observation(phase: Phase, fabric: Fabric) -> Work:
    @torch.no_grad()
    def observe(method: FederatedMethod, batch: Any) -> Any:
        with fabric.autocast():
            return method.hook("observe", phase)(batch)

    return observe


WORK = {"step": _step, "pass": _pass, "observe": _observation}
"""Kind of work on a batch -> what does it."""


class _Kept(Callback):
    """The bytes that stay with the client after a round."""

    nbytes = 0

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Notes them."""
        if result.visit.phase.where == "clients":
            self.nbytes = trees.nbytes(result.client_state)


def mean_client(data: FederatedDataModule) -> tuple[int, tuple[int, ...], int, int | None]:
    """Arguments of `costs` for the data of a run: images of the mean client, their shape, classes, public images."""
    source, public = data.source, None if data.public is None else len(data.public)
    images = round(data.examples / len(data.parts))
    return images, source.train.images.shape[1:], len(source.classes), public


def costs(
    config: DictConfig,
    images: int = IMAGES,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    public: int | None = None,
) -> dict[str, Any]:
    """What a client of so many images pays: `summary`, and the bytes that it keeps; empty without rounds.

    shape, classes, public: see `dry_loop`.
    """
    config = OmegaConf.merge(config, {"privacy": PrivacyConfig(), "compression": CompressionConfig()})  # type: ignore
    factory.quieten_lightning()
    precision: Any = "32-true" if config.training.precision == "tf32" else config.training.precision
    plain = Fabric(accelerator="cpu", devices=1, precision=precision, plugins=[LightningEnvironment()])
    size: dict[str, Any] = {"images": images, "shape": shape, "classes": classes, "public": public}
    with dry_loop(config, CountingExecutor, **size, fabric=plain) as loop:
        executor, kept = loop.executor, _Kept()
        assert isinstance(executor, CountingExecutor)
        executor.visits, loop.callbacks = {}, [kept]
        plans = [loop.plan(round) for round in range(loop.rounds)]

        def of(round: int) -> RoundCost:
            if round not in executor.visits:
                executor.visits[round] = {}
                loop.run_round(round)
            up, down = (sum(loop.ledger.total(way, round).values()) for way in ("up", "down"))
            return RoundCost(executor.visits[round], up, down)

        rounds = [found for alike in groups(plans) for found in filled(alike, of)]
    return summary(rounds, images) | {"kept": kept.nbytes} if rounds else {}


def groups(plans: Sequence[Sequence[Phase]]) -> Iterator[list[int]]:
    """Rounds of one plan; the first is by itself, as a client that returns may have work that it had not at first."""
    outlines: list[list[Phase]] = []
    places: dict[int, list[int]] = {}
    for round, plan in enumerate(plans):
        if round == 0 or list(plan) not in outlines[1:]:
            outlines.append(list(plan))
        place = 0 if round == 0 else 1 + outlines[1:].index(list(plan))
        places.setdefault(place, []).append(round)
    yield from places.values()


def filled(rounds: Sequence[int], of: Any) -> list[Any]:
    """`of(round)` of each round in order; those between two rounds with the same result are taken to have it too.

    >>> filled([1, 2, 3, 4], lambda round: round > 2)
    [False, False, True, True]
    """
    first, last = of(rounds[0]), of(rounds[-1])
    if first == last or len(rounds) < 3:
        return [first] * (len(rounds) - 1) + [last]
    middle = len(rounds) // 2
    return filled(rounds[: middle + 1], of)[:-1] + filled(rounds[middle:], of)


def summary(costs: Sequence[RoundCost], images: int) -> dict[str, Any]:
    """The fields of a record from the cost of every round; further `up` and `down`, the mean bytes of a round."""
    rounds = [each.phases for each in costs]
    visits = [cost for phases in rounds for cost in phases.values()]
    highest = max(visits, key=lambda cost: cost.memory, default=VisitCost(0, 0, 0))
    each = [sum(cost.flops for cost in phases.values()) for phases in rounds]
    names = dict.fromkeys(name for phases in rounds for name in phases)
    of_phase = {name: [phases[name] for phases in rounds if name in phases] for name in names}
    return {
        "flops": fmean(each),
        "flops_max": max(each),
        "memory": highest.memory,
        "parts": {key: value for key, value in asdict(highest).items() if key not in ("flops", "memory")},
        "phases": {
            name: {"flops": fmean(cost.flops for cost in found), "memory": max(cost.memory for cost in found)}
            for name, found in of_phase.items()
        },
        "images": images,
        "up": fmean(each.up for each in costs),
        "down": fmean(each.down for each in costs),
    }
