"""A round's replies, watched by a server that plays it once more with clients of its own; nothing of it is kept."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from benchmark.distributed.collectives import run_and_gather
from benchmark.errors import DivergedError
from benchmark.evaluation.drift import Watch, refuse
from benchmark.execution.base import VisitResult
from benchmark.execution.sequential import SequentialExecutor
from benchmark.federation.loop import FederatedLoop
from benchmark.federation.participation import Participation
from benchmark.federation.scheduling import VisitCosts
from benchmark.federation.uplink import Uplink
from benchmark.rng import Streams
from datamodules.federated import FederatedDataModule
from eval.features import EvalError
from eval.shares import ObservedReplies, folded
from methods import trees
from methods.base import Cat, Client, MethodError, Phase, Tree

Replies = Mapping[int, Mapping[str, Tensor]]
"""Client, or class of the server's own clients -> entry -> vector."""


def replies_unavailable(loop: FederatedLoop, data: FederatedDataModule) -> str | None:
    """Why nothing can be read from the replies of single clients, in one line; None: it can."""
    if not any(_shown(loop, phase) for phase in _client_phases(loop)):
        return f"the server sees no reply of a single client of {type(loop.method).__name__}"
    if loop.method.others:
        return "clients have several architectures, and the server would need clients of each"
    trained, tested = (np.bincount(split.labels) for split in (data.source.train, data.source.test))
    if len(tested) < len(trained) or (tested[: len(trained)][trained > 0] < 2).any() or len(tested) < 2:
        return "the server makes a client of the test images of each class, and needs two of each"
    return None


def _client_phases(loop: FederatedLoop) -> list[Phase]:
    """The phases of the last round that clients work in, and what comes between them."""
    plan = loop.plan(max((loop.round or loop.rounds) - 1, 0))
    last = max((index for index, phase in enumerate(plan) if phase.where == "clients"), default=-1)
    return plan[: last + 1]


def _shown(loop: FederatedLoop, phase: Phase) -> list[str]:
    """Entries of a phase's replies that the server sees client by client."""
    return [entry for entry in phase.uplink if phase.where == "clients" and not loop.uplink.masks(phase, entry)]


def as_vector(tree: Tree, start: Tree, *, is_rows: bool) -> Tensor:
    """An entry as a vector on the CPU, see `folded`: by how much it differs from `start`, as the client was sent it.

    is_rows: whether it is rows, in no order and of a number of the client's own: then their mean product.
    """
    starts, parts = dict(trees.leaves(start)), []
    for path, leaf in trees.leaves(tree):
        if leaf.is_floating_point():
            value = leaf.detach()
            if is_rows:
                rows = value.flatten(1) if value.ndim > 1 else value[:, None]
                value = rows.T @ rows / max(1, len(rows))
            elif path in starts and starts[path].shape == leaf.shape:
                value = value - starts[path]
            parts.append(value.flatten().float().cpu())
    return folded(torch.cat(parts)) if parts else torch.zeros(0)


def observe_replies(loop: FederatedLoop, data: FederatedDataModule) -> Callable[[], ObservedReplies]:
    """The last round's replies, made once more from the final model, and those of clients that hold the test images of
    one class each, made from the same model with other random numbers.

    There are as many of the server's own clients at once as the run has: they have the ids of its clients, and the
    server state of a method that keeps something by client is theirs. The run's state is not changed. Every rank has to
    call this; any may call what it returns.

    Raises:
        ConfigError: see `replies_unavailable`, or no round is done.
        EvalError: by the function: no client replies, no entry has one size, or a client of the server's diverges.
    """
    refuse(loop, "shares/v1", replies_unavailable(loop, data))
    references: dict[int, Mapping[str, Tensor]] = {}
    classes, size = np.flatnonzero(np.bincount(data.source.test.labels) > 1).tolist(), len(loop.clients)
    try:
        for first in range(0, len(classes), size):
            references |= _reference_replies(loop, data, classes[first : first + size])
        with loop.scratch_copy() as scratch:
            replies = _replies(scratch, _client_phases(loop))
    except (DivergedError, MethodError) as error:
        return partial(_failed, str(error))
    return cache(partial(_observed, data, references, replies))


def _failed(reason: str) -> ObservedReplies:
    raise EvalError(f"shares: {reason}")


def _reference_replies(loop: FederatedLoop, data: FederatedDataModule, classes: list[int]) -> Replies:
    """Replies of clients that hold the test images of one class each, by class."""
    labels = data.source.test.labels
    ids = [loop.clients[index].id for index in range(len(classes))]
    rows = [np.flatnonzero(labels == label) for label in classes]
    by_id = dict(zip(ids, rows, strict=True))
    parts = [by_id.get(client, rows[0]) for client in range(max(ids) + 1)]
    images, plan = data.of_clients(replace(data.source, train=data.source.test), parts), _client_phases(loop)
    later = {phase.name for phase in plan}  # what clients are left with in the first round alone is needed in the last
    first = [phase for phase in loop.plan(0) if phase.where == "clients" and phase.name not in later]
    resident, streams = loop.executor.reference, Streams(loop.streams.seed_for("references"))
    assert isinstance(resident, SequentialExecutor)
    executor = SequentialExecutor(loop.fabric, loop.method, images, resident.training, streams, resident)
    with loop.scratch_copy() as own:
        own.streams, own.executor, own.costs = streams, executor, VisitCosts(executor.images)
        own.clients = [Client(client, len(by_id[client])) for client in ids]
        own.participation, own.late, own.uplink = Participation(), frozenset(), Uplink()
        own.client_state.index = {}  # its clients are new ones
        replies = _replies(own, plan, first)
    return {label: replies[client] for label, client in zip(classes, ids, strict=True)}


def _replies(scratch: FederatedLoop, plan: Sequence[Phase], first: Sequence[Phase] = ()) -> Replies:
    """The replies of the last round's phases, made once more from the final model, as vectors before they are masked.

    first: phases of the first round that come before them, of which only what they leave with the clients counts.
    """
    found: dict[int, dict[str, Tensor]] = {}

    def see(loop: FederatedLoop, result: VisitResult) -> None:
        visit, phase = result.visit, result.visit.phase
        for entry in _shown(loop, phase):
            if entry in result.message:
                is_rows, start = isinstance(phase.uplink[entry], Cat), visit.message.get(entry, {})
                seen = as_vector(result.message[entry], start, is_rows=is_rows)
                found.setdefault(visit.client.id, {})[entry] = seen

    if first:
        server = scratch.server
        scratch.run_round(0, first)
        scratch.server = server
    scratch.callbacks = [Watch(see)]
    scratch.run_round(scratch.round - 1, plan)
    return ChainMap(*run_and_gather(scratch.fabric, lambda: found))


def _observed(data: FederatedDataModule, references: Replies, replies: Replies) -> ObservedReplies:
    """Replies by entry, of the clients that sent all, beside their class shares. Raises EvalError: see above."""
    every = {entry for reply in replies.values() for entry in reply}
    clients = [client for client in sorted(replies) if set(replies[client]) == every]
    everyone = [*references.values(), *(replies[client] for client in clients)]
    sizes = {entry: {len(each.get(entry, ())) for each in everyone} for entry in sorted(every)}
    # an entry of fewer numbers than classes, such as a weight, is no mix that could be told from another
    common = [entry for entry, found in sizes.items() if len(found) == 1 and min(found) >= len(references)]
    if not clients or not common:
        raise EvalError("shares: no client replies, or no entry has the same size for all clients")

    def class_shares(rows: np.ndarray) -> Tensor:
        counts = np.bincount(data.source.train.labels[rows], minlength=max(references) + 1)
        return torch.from_numpy(counts[sorted(references)] / counts.sum())

    def vectors(seen: Replies, order: list[int]) -> dict[str, Tensor]:
        return {entry: torch.stack([seen[key][entry] for key in order]) for entry in common}

    return ObservedReplies(
        replies=vectors(replies, clients),
        references=vectors(references, sorted(references)),
        shares=torch.stack([class_shares(data.parts[client]) for client in clients]),
        overall=class_shares(data.parts.indices),
    )
