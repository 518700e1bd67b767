"""The reference executor: one resident model visits one client after another.

Before a visit the model is reset to its pristine state, but for the weights that are loaded next, so that nothing of
the previous client is left in targets, queues, heads or BatchNorm. Other executors give this one's results.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.execution.base import LocalTrainingConfig, PendingVisit, PhaseInputs, VisitResult
from benchmark.execution.flat_parameters import FlatParameters
from benchmark.execution.observations import gather_batches
from benchmark.rng import Streams, isolated
from datamodules.federated import FederatedDataModule
from methods import trees
from methods.base import Client, FederatedMethod, Message, MethodError, Phase, Tree, Visit, set_learning_rate
from methods.core.activity import SHARE, gradient_share


class SequentialExecutor:
    """Visits clients one after another on one resident model; clients of another architecture on that of theirs.

    Args:
        fabric: device, precision and backward.
        method: the resident model, with those of other architectures in `others`; visits start from their state now.
        data: batches by client.
        training: length, batch size and schedule of local training.
        streams: random generators of the run.
        resident: an executor of the same model, with which its place in memory and its pristine state are shared; None:
            there is no other.
    """

    bitwise_exact = True  # this is the reference
    others: dict[str, "SequentialExecutor"]
    flat_parameters: FlatParameters

    def __init__(
        self,
        fabric: Fabric,
        method: FederatedMethod,
        data: FederatedDataModule,
        training: LocalTrainingConfig,
        streams: Streams,
        resident: "SequentialExecutor | None" = None,
    ) -> None:
        self.fabric, self.method, self.data, self.training, self.streams = fabric, method, data, training, streams
        # a CPU is shared with other processes, so CPU time counts; a GPU can only be timed from outside
        self.clock = time.process_time if fabric.device.type == "cpu" else time.perf_counter
        shared = (data, training, streams)
        others = {} if resident is None else resident.others
        self.others = {k: type(self)(fabric, other, *shared, others.get(k)) for k, other in method.others.items()}
        self.flat_parameters = FlatParameters(method) if resident is None else resident.flat_parameters
        self.total_loss = torch.zeros((), device=fabric.device)  # one address, to which recorded steps add

    @property
    def reference(self) -> "SequentialExecutor":
        """This executor."""
        return self

    def run(self, inputs: PhaseInputs, clients: Sequence[Client]) -> Iterator[VisitResult]:
        """Visits the clients in order; use a reply before requesting the next one, whose visit may overwrite it."""
        for client in clients:
            executor = self.others.get(client.architecture, self)  # a server worker may have one of its own
            yield executor.finish(executor.begin(inputs, client))

    def images(self, phase: Phase, client: Client) -> int:
        """Number of images a visit will see: its estimated cost until a visit has been timed."""
        examples, epochs = client.examples, phase.epochs
        if phase.data == "public":
            examples = len(self.data.held_by(None))
        elif phase.work == "train" and epochs is None:
            epochs = self._epochs(client.id)
        if phase.work == "train" and phase.epochs is None and self.training.steps is not None:
            return self.training.steps * min(phase.batch_size or self.training.batch_size, examples)
        return {"train": epochs or self.training.epochs, "observe": epochs or 1, "none": 0}[phase.work] * examples

    def begin(self, inputs: PhaseInputs, client: Client) -> PendingVisit:
        """Starts a visit and does its local work; on a GPU the work is only queued."""
        started, method, phase = self.clock(), self.method, inputs.phase
        client_state = inputs.client_state.get(client.id, {})
        key: dict[str, Any] = {"round": inputs.round, "phase": phase.name, "client": client.id}
        stream, message = self.streams.generator("method", **key), dict(inputs.inbox[client.id])
        memory = client_state.get("memory", {})
        is_first, is_probed = not client_state, client.id == inputs.probed and phase.where == "clients"
        visit = Visit(inputs.round, inputs.rounds, phase, client, message, memory, stream, is_first, probed=is_probed)
        with isolated(self.streams.seed_for("global", **key), self.fabric.device):
            default_start = method.is_default("receive", phase) and method.is_default("init_client", phase)
            weights = visit.message.get("weights") if default_start else None
            self.flat_parameters.reset(overwritten_by=weights)
            method.zero_grad(set_to_none=True)
            method.train(phase.work == "train")
            if "memory" not in client_state:
                visit.memory = method.hook("init_client", phase)(visit)
            stayed = trees.overlay(client_state.get("stays", {}), client_state.get("statistics", {}))
            method.start_visit(visit, {} if phase.measures else stayed)
            total_loss, images = None, 0
            if phase.work == "train":
                total_loss, images = self._train(visit)
            elif phase.work == "observe":
                self._observe(visit)
        return PendingVisit(visit, client_state, total_loss, images, self.clock() - started)

    def finish(self, pending: PendingVisit) -> VisitResult:
        """The visit's reply, and what stays with the client."""
        started = self.clock()
        method, visit = self.method, pending.visit
        seed = self.streams.seed_for("reply", round=visit.round, phase=visit.phase.name, client=visit.client.id)
        with isolated(seed, self.fabric.device), torch.no_grad():
            message, memory = method.hook("reply", visit.phase)(visit)
        client_state: Tree = {"memory": memory} if memory else {}
        if visit.phase.measures:  # the client keeps its old parts, not those of the model
            client_state = {**pending.client_state, **client_state}
        elif visit.phase.where == "clients":
            if method.staying:
                client_state["stays"] = {name: method.tensors(name) for name in method.staying}
            if method.batch_norm == "local" and method.travelling:
                client_state["statistics"] = method.statistics()
        loss = self._read_measurements(visit, pending.total_loss)
        seconds = pending.seconds + self.clock() - started
        return VisitResult(visit, message, client_state, loss, pending.images, seconds)

    def _read_measurements(self, visit: Visit, total_loss: Tensor | None) -> float | None:
        """The mean loss, None without training; notes that are tensors become numbers. Waits for the device once."""
        notes = {name: value for name, value in visit.notes.items() if isinstance(value, Tensor)}
        tensors = [*notes.values(), *([total_loss] if total_loss is not None else [])]
        if not tensors:
            return None
        numbers = torch.stack([x.detach().to(self.fabric.device, torch.float64) for x in tensors]).tolist()
        for (name, tensor), number in zip(notes.items(), numbers, strict=False):
            visit.notes[name] = number if tensor.is_floating_point() else int(number)
        return None if total_loss is None else numbers[-1] / max(1, visit.steps)

    def _train(self, visit: Visit) -> tuple[Tensor | None, int]:
        """Runs the local steps without waiting for the device; returns the sum of losses, None without any, and the
        images that were trained on."""
        method, phase, training = self.method, visit.phase, self.training
        optimizer = method.hook("configure_optimizers", phase)()
        size = phase.batch_size or training.batch_size
        holder = self._holder(visit)
        held = self.data.held_by(holder)
        visit.batches = self.data.batches_per_epoch(holder, size, drop_last=phase.drop_last)
        visit.counted = self.data.batches_per_epoch(holder, size, drop_last=phase.drop_last, smallest=1)
        check_skip(phase, visit.batches)
        steps = training.steps if phase.epochs is None else None
        epochs = phase.epochs or self._epochs(holder)
        total = steps if steps is not None else epochs * visit.batches
        self.total_loss.zero_()
        take_step, images = self._local_step(visit, optimizer), 0
        shown = 1 + method.views(phase).count("other")  # that view has as many other images
        epoch_stream = self.streams.generator("epoch", round=visit.round, phase=phase.name, client=visit.client.id)
        plain_batches: Any = partial(
            self.data.plain_batches, self.fabric.device, held=held, pool=self.data.pool(holder), batch_size=size
        )
        batches, first = self._batches(visit, size, epochs=epochs, steps=steps, shuffled=True), None
        for index, batch in enumerate(batches):
            if index == 0 and visit.probed:
                first = batch
            if index % visit.batches == 0 and phase.where == "clients":
                with self.fabric.autocast():
                    method.start_epoch(plain_batches, epoch_stream)
            if phase.where == "clients":
                method.objective.start_step((visit.round + index / max(1, total)) / visit.rounds)
            if phase.skip is None or index % visit.batches < phase.skip:
                self._pass(visit, batch)
                continue
            progress = index / max(1, total) if training.rate_per_step else 0.0
            # the schedule is for clients; training on the server keeps the full learning rate
            factor = method.schedule((visit.round + progress) / visit.rounds) if phase.where == "clients" else 1.0
            visit.lr_sum += set_learning_rate(optimizer, factor)
            take_step(batch)
            visit.steps += 1
            images += shown * len(batch.index)
        if first is not None and SHARE in method.own_activity:
            self._probe(visit, first)
        return self.total_loss.clone() if phase.learns else None, images

    def _probe(self, visit: Visit, batch: Any) -> None:
        """Notes what the method adds to the objective's gradient after training, on a batch; nothing else changes."""
        with self.fabric.autocast():
            visit.notes[SHARE] = gradient_share(self.method, batch)

    def _epochs(self, holder: int | None) -> int:
        """Epochs over a client's images, or over the public ones; more for few batches, under `max_epochs`."""
        training = self.training
        if training.max_epochs is None:
            return training.epochs
        batches = self.data.batches_per_epoch(holder, training.batch_size, smallest=1)
        wanted = training.epochs * (self.data.largest // training.batch_size + 1)  # FedU2's code
        return max(1, min(wanted // batches, training.max_epochs))

    def _local_step(self, visit: Visit, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
        """A local step by Lightning's hooks, as a function of its batch; it adds its loss to `total_loss`."""
        method = self.method
        step, finish = method.hook("training_step", visit.phase), method.hook("on_train_batch_end", visit.phase)

        def take_step(batch: Any) -> None:
            with self.fabric.autocast():
                outputs = step(batch, visit.steps)
            self.fabric.backward(outputs["loss"])
            method.on_before_optimizer_step(optimizer)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            finish(outputs, batch, visit.steps)
            self.total_loss.add_(outputs["loss"].detach())

        return take_step

    @torch.no_grad()
    def _pass(self, visit: Visit, batch: Any) -> None:
        """A local step without the optimiser's, and so without gradient."""
        method = self.method
        with self.fabric.autocast():
            outputs = method.hook("training_step", visit.phase)(batch, visit.steps)
        method.hook("on_train_batch_end", visit.phase)(outputs, batch, visit.steps)

    @torch.no_grad()
    def _observe(self, visit: Visit) -> None:
        """Passes without gradient; the batches' messages are combined as the phase declares."""
        observe = self.method.hook("observe", visit.phase)
        observed: Message = {}
        size = visit.phase.batch_size or self.training.batch_size
        if visit.phase.measures:  # batches weigh equally in BatchNorm's statistics, so they have almost equal sizes
            examples = len(self.data.held_by(self._holder(visit)))
            size = -(-examples // -(-examples // size))
        shuffled = visit.phase.shuffled
        for batch in self._batches(visit, size, epochs=visit.phase.epochs or 1, shuffled=shuffled):
            with self.fabric.autocast():
                observed = gather_batches(observed, observe(batch), visit.phase.gather)
        visit.observed = observed

    def _holder(self, visit: Visit) -> int | None:
        """The client whose images a visit works on, None for the public images."""
        return visit.client.id if visit.phase.data == "private" else None

    def _batches(
        self, visit: Visit, size: int, *, epochs: int, steps: int | None = None, shuffled: bool
    ) -> Iterator[Any]:
        method, phase = self.method, visit.phase
        key: dict[str, Any] = {"round": visit.round, "phase": phase.name, "client": visit.client.id}
        draw, draws = method.hook("draw", phase), self.streams.generator("draws", **key)
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
            drop_last=phase.drop_last,
        ):
            yield batch._replace(draws=trees.to(draw(batch, draws), dtype=self.data.dtype))


def check_skip(phase: Phase, batches: int) -> None:
    """Raises MethodError for a phase that would make no step in an epoch of so many batches."""
    if phase.skip is not None and phase.skip >= batches:
        raise MethodError(
            f"phase {phase.name!r} makes no step with the first {phase.skip} batches of an epoch, but an epoch has "
            f"{batches}: give it more images, or smaller batches"
        )
