"""Min-Local: every client trains alone. The lower bound of the field; Shi et al.: FLESD (2021), Table 1.

No weights are exchanged. Each client's own encoder is evaluated; the literature reports the worst of them.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from methods.base import FederatedMethod, Phase, Tree


class Local(FederatedMethod):
    """Training without exchange: networks stay with their client; all clients start from the same initial weights."""

    travels = ()
    phases: ClassVar[tuple[Phase, ...]] = (Phase("fit"),)

    @property
    def stays(self) -> tuple[str, ...]:  # type: ignore[override]
        """All trained parts of the objective."""
        return self.objective.travels

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """The networks of every client that has trained, read one at a time."""
        return _ByName(clients)


class _ByName(Mapping[str, Tree]):
    """Lazy mapping: encoder name -> a client's networks, read on access."""

    def __init__(self, clients: Mapping[int, Tree]) -> None:
        self.clients = clients
        self.ids = {f"client{client}": client for client in clients}

    def __getitem__(self, name: str) -> Tree:
        return self.clients[self.ids[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)
