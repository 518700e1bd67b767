"""A round's replies, watched by a server that plays it once more with clients of its own; nothing of it is kept."""

from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.distributed.collectives import run_and_gather
from benchmark.errors import ConfigError
from benchmark.execution.base import LocalTrainingConfig, VisitResult
from benchmark.execution.sequential import SequentialExecutor
from benchmark.federation.attendance import Attendance
from benchmark.federation.loop import Callback, FederatedLoop
from benchmark.federation.scheduling import VisitCosts
from benchmark.federation.uplink import Uplink
from datamodules.federated import FederatedDataModule
from eval.features import EvalError
from eval.shares import ObservedReplies, folded
from methods import trees
from methods.base import Cat, Client, Message, Phase, Tree

Replies = Mapping[int, Mapping[str, Tensor]]
"""Client id -> entry -> vector."""


def replies_unavailable(loop: FederatedLoop, data: FederatedDataModule) -> str | None:
    """Why nothing can be read from the replies of single clients, in one line; None: it can."""
    if not shown_entries(loop):
        return f"shares/v1: the server sees no reply of a single client of {type(loop.method).__name__}"
    if loop.method.others:
        return "shares/v1: clients of several architectures send replies that cannot be compared"
    if (classes := len(known_classes(data))) < 2:
        return "shares/v1: the server makes a client of the test images of each class, and fewer than two have any"
    if _first_phases(loop) and classes > len(loop.clients):
        return f"shares/v1: it takes a client for each of {classes} classes, and the run has {len(loop.clients)}"
    return None


def shown_entries(loop: FederatedLoop) -> list[str]:
    """Entries of the last round's replies that the server sees client by client."""
    phases = [phase for _, phase in loop.plan(max(loop.rounds - 1, 0)) if phase.where == "clients"]
    return [entry for phase in phases for entry in _shown(loop, phase)]


def _shown(loop: FederatedLoop, phase: Phase) -> list[str]:
    return [entry for entry in phase.uplink if not loop.uplink.masks(phase, entry)]


def _first_phases(loop: FederatedLoop) -> list[tuple[Any, Phase]]:
    """Phases of clients in the first round that the last one has not: what they leave with a client is needed later."""
    later = {phase.name for _, phase in loop.plan(max(loop.rounds - 1, 0))}
    return [(actor, phase) for actor, phase in loop.plan(0) if phase.where == "clients" and phase.name not in later]


def known_classes(data: FederatedDataModule) -> dict[int, np.ndarray]:
    """Class -> rows of its test images, where there are two at least."""
    labels = data.source.test.labels
    rows = {label: np.flatnonzero(labels == label) for label in range(len(data.source.classes))}
    return {label: own for label, own in rows.items() if len(own) > 1}


def as_vector(tree: Tree, start: Tree, *, is_rows: bool) -> Tensor:
    """An entry as a vector on the CPU, see `folded`: by how much it differs from `start`, as the client was sent it.

    is_rows: whether it is rows, in no order and of a number of the client's own: then their mean product.
    """
    starts, parts = dict(trees.leaves(start)), []
    for path, leaf in trees.leaves(tree):
        if leaf.is_floating_point():
            value = leaf.detach().float()
            if is_rows:
                rows = value.view(len(value), -1)
                value = rows.T @ rows / max(1, len(rows))
            elif path in starts and starts[path].shape == leaf.shape:
                value = value - starts[path]
            parts.append(value.flatten())
    return folded(torch.cat(parts)).cpu() if parts else torch.zeros(0)


class _Collector(Callback):
    """Replies as vectors, before they are masked."""

    def __init__(self) -> None:
        self.replies: dict[int, dict[str, Tensor]] = {}

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Adds what the server sees of a visit."""
        visit, phase = result.visit, result.visit.phase
        for entry in _shown(loop, phase) if phase.where == "clients" else ():
            if entry in result.message:
                is_rows, start = isinstance(phase.uplink[entry], Cat), visit.message.get(entry, {})
                seen = as_vector(result.message[entry], start, is_rows=is_rows)
                self.replies.setdefault(visit.client.id, {})[entry] = seen


def observe_replies(
    loop: FederatedLoop, data: FederatedDataModule, training: LocalTrainingConfig
) -> Callable[[], ObservedReplies]:
    """The last round's replies, made once more from the final model, and those of clients that hold the test images of
    one class each, made from the same model.

    The run's state is not changed. Every rank has to call this; any may call what it returns.

    Raises:
        ConfigError: see `replies_unavailable`, or no round is done.
        EvalError: by the function: no client replies, or replies have no entry of one size.
    """
    if (reason := replies_unavailable(loop, data)) is not None or not loop.round:
        raise ConfigError(reason or "shares/v1: no round is done: set federation.rounds to at least 1")
    known = known_classes(data)
    own = data.of_clients(replace(data.source, train=data.source.test), list(known.values()))
    executor = SequentialExecutor(loop.fabric, loop.method, own, training, loop.streams)
    pure = loop.scratch_copy([])
    pure.client_state.index = {}  # its clients are new ones
    pure.clients = [Client(client, len(rows)) for client, rows in enumerate(known.values())]
    pure.attendance, pure.late, pure.uplink = Attendance(), frozenset(), Uplink()
    pure.executor, pure.costs = executor, VisitCosts(executor.images)
    inbox: dict[int, Message] = defaultdict(dict)
    for actor, phase in _first_phases(loop):
        pure.run_phase(actor, phase, 0, pure.clients, inbox)
    pure.server = loop.server
    references, replies = _replies(pure), _replies(loop.scratch_copy([]))
    return cache(partial(_observed, data, list(known), shown_entries(loop), references, replies))


def _replies(scratch: FederatedLoop) -> Replies:
    """The replies of the last round, made once more from the final model."""
    collector = _Collector()
    scratch.callbacks = [collector]
    try:
        scratch.run_round(scratch.round - 1)
    finally:
        scratch.client_state.clear()
    return ChainMap(*run_and_gather(scratch.fabric, lambda: collector.replies))


def _observed(
    data: FederatedDataModule, known: list[int], entries: list[str], references: Replies, replies: Replies
) -> ObservedReplies:
    """Replies by entry, beside the class shares of their clients. Raises EvalError: see `observe_replies`."""
    clients, everyone = sorted(replies), [*references.values(), *replies.values()]
    sizes = {entry: {len(each.get(entry, ())) for each in everyone} for entry in entries}
    common = [entry for entry in entries if len(sizes[entry]) == 1 and sizes[entry] != {0}]
    if not clients or not common:
        raise EvalError("shares: no client replies, or no entry has the same size for all clients")

    def class_shares(rows: np.ndarray) -> Tensor:
        counts = np.bincount(data.source.train.labels[rows], minlength=len(data.source.classes))
        return torch.from_numpy(counts[known] / counts.sum())

    def vectors(seen: Replies) -> dict[str, Tensor]:
        return {entry: torch.stack([seen[client][entry] for client in sorted(seen)]) for entry in common}

    return ObservedReplies(
        replies=vectors(replies),
        references=vectors(references),
        shares=torch.stack([class_shares(data.parts[client]) for client in clients]),
        overall=class_shares(data.parts.indices),
    )
