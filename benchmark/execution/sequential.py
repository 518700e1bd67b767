"""One phase for a block of clients. An executor visits them; whichever it is, the results are the same.

`SequentialExecutor` is the reference: one resident model, one client after another. Before a visit the model is reset to its
pristine state, so that nothing of the previous client is left in targets, queues, heads or BatchNorm.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.execution.base import LocalTrainingConfig, PendingVisit, PhaseInputs, VisitResult
from benchmark.execution.flat_parameters import FlatParameters
from benchmark.execution.observations import gather_batches
from benchmark.rng import Streams, isolated
from datamodules.federated import FederatedDataModule, number_of_batches
from methods import trees
from methods.base import Client, FederatedMethod, Message, Phase, Tree, Visit, set_learning_rate


class SequentialExecutor:
    """Clients one after another on one resident model.

    Args:
        fabric: device, precision and backward.
        method: the resident model; its present state is the pristine one.
        data: batches by client.
        pace: the scenario's local work.
        streams: generators of the run.
    """

    rounds_differently = False  # it is what others are held to

    def __init__(
        self,
        fabric: Fabric,
        method: FederatedMethod,
        data: FederatedDataModule,
        pace: LocalTrainingConfig,
        streams: Streams,
    ) -> None:
        self.fabric, self.method, self.data, self.pace, self.streams = fabric, method, data, pace, streams
        # a CPU is shared with others, so its own time is what counts; a GPU's can only be seen from outside
        self.clock = time.process_time if fabric.device.type == "cpu" else time.perf_counter
        self.resident = FlatParameters(method)

    def run(self, given: PhaseInputs, block: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits every client of the block; a message is to be used before the next one is asked for."""
        for client in block:
            yield self.finish(self.begin(given, client))

    def images(self, phase: Phase, client: Client) -> int:
        """How many images a visit will see: what it costs, before it was measured."""
        examples, epochs = client.examples, phase.epochs
        if phase.data == "public":
            examples = len(self.data.held_by(None))
        if phase.work == "train" and epochs is None and self.pace.steps is not None:
            return self.pace.steps * min(phase.batch_size or self.pace.batch_size, examples)
        return {"train": epochs or self.pace.epochs, "observe": epochs or 1, "none": 0}[phase.work] * examples

    def begin(self, given: PhaseInputs, client: Client) -> PendingVisit:
        """A visit up to the end of its work, which on a GPU is asked for but not waited for."""
        began, method, phase = self.clock(), self.method, given.phase
        actor: Any = given.actor
        kept = given.memory.get(client.id, {})
        key: dict[str, Any] = {"round": given.round, "phase": phase.name, "client": client.id}
        stream, message = self.streams.generator("method", **key), dict(given.inbox[client.id])
        visit = Visit(given.round, given.rounds, phase, client, message, kept.get("memory", {}), stream)
        with isolated(self.streams.number("global", **key), self.fabric.device):
            loads = method.is_default("receive", phase) and method.is_default("init_client", phase)
            self.resident.reset(coming=visit.message.get("weights") if loads and actor is method else None)
            method.zero_grad(set_to_none=True)
            method.train(phase.work == "train")
            if "memory" not in kept:
                visit.memory = actor.hook("init_client", phase)(visit)
            actor.start_visit(visit, trees.overlay(kept.get("stays", {}), kept.get("statistics", {})))
            summed, images = None, 0
            if phase.work == "train":
                summed, images = self._train(visit)
            elif phase.work == "observe":
                self._observe(actor, visit)
        return PendingVisit(actor, visit, kept, summed, images, self.clock() - began)

    def finish(self, begun: PendingVisit) -> VisitResult:
        """The visit's reply and what stays with the client."""
        began = self.clock()
        method, actor, visit, kept = self.method, begun.actor, begun.visit, begun.kept
        number = self.streams.number("reply", round=visit.round, phase=visit.phase.name, client=visit.client.id)
        with isolated(number, self.fabric.device), torch.no_grad():
            message, remembered = actor.hook("reply", visit.phase)(visit)
        staying: Tree = {"memory": remembered} if remembered else {}
        if actor is not method:  # it only measures: what stays is not what it has loaded
            staying |= {name: kept[name] for name in ("stays", "statistics") if name in kept}
        elif visit.phase.where == "clients":
            if method.staying:
                staying["stays"] = {name: method.tensors(name) for name in method.staying}
            if method.batch_norm == "local" and method.travelling:
                staying["statistics"] = method.statistics()
        loss = None if begun.summed is None else float(begun.summed) / max(1, visit.steps)
        return VisitResult(visit, message, staying, loss, begun.images, begun.seconds + self.clock() - began)

    def _train(self, visit: Visit) -> tuple[Tensor, int]:
        """The local steps of a visit; returns the sum of losses and the images seen. No step waits for the device."""
        method, phase, pace = self.method, visit.phase, self.pace
        optimizer = method.hook("configure_optimizers", phase)()
        size = phase.batch_size or pace.batch_size
        holder = self._holder(visit)
        held = self.data.held_by(holder)
        examples = len(held)
        visit.batches = number_of_batches(examples, min(size, examples))
        steps = pace.steps if phase.epochs is None else None
        total = steps if steps is not None else (phase.epochs or pace.epochs) * visit.batches
        take, summed = self._stepper(visit, optimizer)
        images = 0
        epochs = self.streams.generator("epoch", round=visit.round, phase=phase.name, client=visit.client.id)
        look: Any = partial(self.data.look, self.fabric.device, held=held, pool=self.data.pool(holder), batch_size=size)
        for batch in self._batches(method, visit, size, epochs=phase.epochs or pace.epochs, steps=steps, shuffled=True):
            if visit.steps % visit.batches == 0 and phase.where == "clients":
                with self.fabric.autocast():
                    method.start_epoch(look, epochs)
            within = visit.steps / max(1, total) if pace.rate_per_step else 0.0
            # the schedule is the clients'; what the server trains in a round begins anew each time
            factor = method.schedule((visit.round + within) / visit.rounds) if phase.where == "clients" else 1.0
            visit.lr_sum += set_learning_rate(optimizer, factor)
            take(batch)
            visit.steps += 1
            images += len(batch.index)
        return summed.clone(), images

    def _stepper(self, visit: Visit, optimizer: torch.optim.Optimizer) -> tuple[Callable[[Any], None], Tensor]:
        """One local step as a function of its batch, and the sum its losses go to."""
        summed = torch.zeros((), device=self.fabric.device)
        return self._step(visit, optimizer, summed), summed

    def _step(self, visit: Visit, optimizer: torch.optim.Optimizer, summed: Tensor) -> Callable[[Any], None]:
        """The step as the method has it, by Lightning's hooks."""
        method = self.method
        step, finish = method.hook("training_step", visit.phase), method.hook("on_train_batch_end", visit.phase)

        def take(batch: Any) -> None:
            with self.fabric.autocast():
                outputs = step(batch, visit.steps)
            self.fabric.backward(outputs["loss"])
            method.on_before_optimizer_step(optimizer)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            finish(outputs, batch, visit.steps)
            summed.add_(outputs["loss"].detach())

        return take

    @torch.no_grad()
    def _observe(self, actor: Any, visit: Visit) -> None:
        """Passes without gradient; what the batches give is gathered as the phase declares."""
        observe = actor.hook("observe", visit.phase)
        gathered: Message = {}
        size = visit.phase.batch_size or self.pace.batch_size
        measuring = actor is not self.method
        if measuring:  # each batch counts alike in BatchNorm's statistics, so none may be short
            examples = len(self.data.held_by(self._holder(visit)))
            size = -(-examples // -(-examples // size))
        shuffled = visit.phase.shuffled
        for batch in self._batches(actor, visit, size, epochs=visit.phase.epochs or 1, shuffled=shuffled):
            with self.fabric.autocast():
                gathered = gather_batches(gathered, observe(batch), visit.phase.gather)
        visit.observed = gathered

    def _holder(self, visit: Visit) -> int | None:
        """Whose images a visit works on: the client's own, or the public ones (None)."""
        return visit.client.id if visit.phase.data == "private" else None

    def _batches(
        self, actor: Any, visit: Visit, size: int, *, epochs: int, steps: int | None = None, shuffled: bool
    ) -> Iterator[Any]:
        method, phase = self.method, visit.phase
        key: dict[str, Any] = {"round": visit.round, "phase": phase.name, "client": visit.client.id}
        draw, draws = actor.hook("draw", phase), self.streams.generator("draws", **key)
        for batch in self.data.batches(
            self._holder(visit),
            method.views(phase),
            size,
            epochs=epochs,
            steps=steps,
            order=self.streams.generator("order", **key) if shuffled else None,
            views=self.streams.generator("views", **key),
            device=self.fabric.device,
            labels=method.objective.labels,
        ):
            yield batch._replace(draws=draw(batch, draws))


class PerArchitectureExecutor:
    """Clients of several architectures one after another, each on the resident model of its kind.

    Args:
        reference: of the clients that run the common architecture; its method has the other ones.
    """

    rounds_differently = False

    def __init__(self, reference: SequentialExecutor) -> None:
        own = (reference.data, reference.pace, reference.streams)
        self.images = reference.images
        others = reference.method.others.items()
        self.of = {"default": reference} | {kind: type(reference)(reference.fabric, one, *own) for kind, one in others}

    def run(self, given: PhaseInputs, block: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits every client of the block; a message is to be used before the next one is asked for."""
        assert given.actor is self.of["default"].method  # what measures BatchNorm refuses several encoders
        for client in block:
            work = self.of[client.kind]
            yield work.finish(work.begin(replace(given, actor=work.method), client))
