"""Min-Local: every client trains alone. The lower bound of the field; Shi et al.: FLESD (2021), Table 1.

Nothing travels. What is evaluated is each client's own encoder; the literature reports the worst of them.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from methods.base import FederatedMethod, Phase, Tree


class Local(FederatedMethod):
    """No exchange: networks stay with their client from visit to visit, all starting at the same initial weights."""

    travels = ()
    phases: ClassVar[tuple[Phase, ...]] = (Phase("fit"),)

    @property
    def stays(self) -> tuple[str, ...]:  # type: ignore[override]
        """All trained parts of the objective."""
        return self.objective.travels

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """Every client's own networks, read one at a time; one that has not trained yet has none."""
        return _ByName(clients)


class _ByName(Mapping[str, Tree]):
    """Clients by the names of their encoders; nothing is read before it is asked for."""

    def __init__(self, clients: Mapping[int, Tree]) -> None:
        self.clients = clients
        self.ids = {f"client{client}": client for client in clients}

    def __getitem__(self, name: str) -> Tree:
        return self.clients[self.ids[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)
