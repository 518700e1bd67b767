"""A client's update: what its training changes, as a reply less what the client was sent."""

import torch

from methods import trees
from methods.base import Cat, Each, FederatedMethod, Mean, Message, MethodError, Phase, Sum, Tree


def trains_clients(phase: Phase) -> bool:
    """Whether it is a phase whose replies are updates."""
    return phase.where == "clients" and phase.learns


def combined_entries(phase: Phase) -> list[str]:
    """The entries of updates that are averaged or summed."""
    if not trains_clients(phase):
        return []
    return [entry for entry, how in phase.uplink.items() if isinstance(how, Mean | Sum)]


def start_of(sent: Message, replied: Message, entry: str) -> Tree:
    """What an entry's training started from, in its shape: the leaves that the client was sent, and 0 elsewhere."""
    reply = replied[entry]
    given, start = dict(trees.leaves(sent.get(entry, {}))), trees.zeros_like(reply)
    for path, _ in trees.leaves(reply):
        if path in given:
            trees.put(start, path, given[path])
    return start


@torch.no_grad()
def update_norms(phase: Phase, sent: Message, replied: Message) -> dict[str, float]:
    """Norm by entry of what a client's training has changed: its reply less what it was sent; of other phases none.

    An entry that the client was not sent is an update itself. Rows that are concatenated are no update, nor are whole
    numbers, such as counts.
    """
    norms = {}
    for entry in (entry for entry, how in phase.uplink.items() if trains_clients(phase) and not isinstance(how, Cat)):
        given, squares = dict(trees.leaves(sent.get(entry, {}))), []
        for path, leaf in trees.leaves(replied.get(entry, {})):
            if leaf.is_floating_point():
                changed = leaf - given[path] if path in given and given[path].shape == leaf.shape else leaf
                squares.append(changed.double().square().sum())
        if squares:
            norms[entry] = float(torch.stack(squares).sum().sqrt())
    return norms


def refuse_whole_numbers(entry: str, tree: Tree, key: str) -> None:
    """MethodError where an entry has whole numbers. key: the setting that they do not go with."""
    if not all(leaf.is_floating_point() for _, leaf in trees.leaves(tree)):
        raise MethodError(f"{key}: {entry!r} has whole numbers: send floats")


def refuse_single(method: FederatedMethod, rounds: int, key: str) -> None:
    """MethodError where a method's updates are not averaged or summed alike. key: the setting that asks for it."""
    name, covered = type(method).__name__, False
    for phase in (phase for round in range(max(1, rounds)) for phase in method.plan(round)):
        if not trains_clients(phase):
            continue
        for entry, how in phase.uplink.items():
            if isinstance(how, Each) or (isinstance(how, Mean) and how.single):
                kind = "reads every client's" if isinstance(how, Each) else "weighs each client's"
                raise MethodError(
                    f"{key} protects what is averaged alike or summed, but {name}'s server {kind} {entry!r} by itself: "
                    "leave it out"
                )
            covered = covered or isinstance(how, Mean | Sum)
    if not covered:
        raise MethodError(
            f"{key} protects updates that are averaged or summed, and no phase in which {name}'s clients train sends "
            "any: leave it out"
        )
