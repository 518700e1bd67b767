"""A client's update: what its training changes, as a reply less what the client was sent."""

from methods import trees
from methods.base import Mean, Message, Phase, Sum, Tree


def trains_clients(phase: Phase) -> bool:
    """Whether it is a phase whose replies are updates."""
    return phase.where == "clients" and phase.work == "train"


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
