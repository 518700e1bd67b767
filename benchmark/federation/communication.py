"""Communication cost: bytes per entry, direction, phase and round, counted from the tensors that are sent."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from methods import trees
from methods.base import Client, Mail, Message


def sizes(message: Message) -> dict[str, int]:
    """Bytes of each entry of a message."""
    return {entry: trees.nbytes(tree) for entry, tree in message.items()}


class CommunicationLedger:
    """Bytes and visits of one run.

    `lines` maps (round, phase, "up" | "down", entry) to bytes; `visits` counts the client visits of each round;
    `set_up` has the ids of the clients that were sent the frozen tensors, as phase "setup", before their first visit.

    Args:
        frozen: bytes of the frozen tensors, by architecture.
    """

    def __init__(self, frozen: Mapping[str, int] | None = None) -> None:
        self.frozen, self.set_up = frozen or {}, set[int]()
        self.lines: dict[tuple[int, str, str, str], int] = defaultdict(int)
        self.visits: dict[int, int] = defaultdict(int)

    def record_downlink(self, round: int, phase: str, members: Iterable[Client], mail: Mail) -> None:
        """Adds what the server sends to each member."""
        common = sizes(mail.common)
        for client in members:
            private = sizes(mail.private.get(client.id, {}))
            if (size := self.frozen.get(client.architecture)) and client.id not in self.set_up:
                self.set_up.add(client.id)
                self.lines[round, "setup", "down", "frozen"] += size
            for entry, size in {**common, **private}.items():
                self.lines[round, phase, "down", entry] += size

    def record_uplink(self, round: int, phase: str, entries: Mapping[str, int]) -> None:
        """Adds one client's reply, given as bytes by entry."""
        for entry, size in entries.items():
            self.lines[round, phase, "up", entry] += size

    def record_visits(self, round: int, clients: int) -> None:
        """Adds the clients that took part in a round, once a round."""
        self.visits[round] += clients

    def total(self, direction: str, round: int | None = None) -> dict[str, int]:
        """Bytes by entry of one round, or of the whole run; direction: up | down."""
        totals: dict[str, int] = defaultdict(int)
        for (line_round, _, line_direction, entry), size in self.lines.items():
            if line_direction == direction and round in (None, line_round):
                totals[entry] += size
        return dict(sorted(totals.items()))

    def state(self) -> dict[str, Any]:
        """The ledger as plain lists, for the checkpoint."""
        lines = {"lines": [[*key, size] for key, size in self.lines.items()], "visits": list(self.visits.items())}
        return lines | ({"set_up": sorted(self.set_up)} if self.set_up else {})

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self.lines = defaultdict(int, {tuple(line[:4]): line[4] for line in state["lines"]})
        self.visits = defaultdict(int, dict(state["visits"]))
        self.set_up = set(state.get("set_up", ()))
