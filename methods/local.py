"""Min-Local: every client trains alone. The lower bound of the field; Shi et al.: FLESD (2021), Table 1.

No weights are exchanged. Each client's own encoder is evaluated; the literature reports the worst of them.
"""

from typing import ClassVar

from methods.base import FederatedMethod, Phase


class Local(FederatedMethod):
    """Training without exchange: networks stay with their client; all clients start from the same initial weights."""

    travels = ()
    phases: ClassVar[tuple[Phase, ...]] = (Phase("fit"),)

    @property
    def stays(self) -> tuple[str, ...]:  # type: ignore[override]
        """All trained parts of the objective."""
        return self.objective.travels
