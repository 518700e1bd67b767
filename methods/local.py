"""Min-Local: every client trains alone. The lower bound of the field; Shi et al.: FLESD (2021), Table 1.

Nothing travels. What is evaluated is each client's own encoder; the literature reports the worst of them.
"""

from collections.abc import Mapping
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

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> dict[str, Tree]:
        """Every client's own networks; one that has not trained yet has none."""
        return {f"client{client}": clients[client] for client in clients}
