"""Base class of everything that follows a run: progress, logs, early records, the monitor."""

from typing import TYPE_CHECKING, Any

from benchmark.execution.base import VisitResult
from methods.base import Phase

if TYPE_CHECKING:
    from benchmark.federation.loop import FederatedLoop


class Callback:
    """Hooks of a federated loop; each does nothing unless overridden.

    `row` is the round's line in `rounds.jsonl`.
    """

    def on_run_start(self, loop: "FederatedLoop") -> None:
        """Called once, after the last completed round was restored."""

    def on_phase_start(self, loop: "FederatedLoop", phase: Phase, visits: int) -> None:
        """Called before the clients of a phase are visited; visits: those of this rank."""

    def on_visit_end(self, loop: "FederatedLoop", result: VisitResult) -> None:
        """Called after each visit of this rank, while the reply may be live."""

    def on_round_scored(self, loop: "FederatedLoop", row: dict[str, Any]) -> None:
        """Called before the round is saved; may add scores to its line."""

    def on_round_end(self, loop: "FederatedLoop", row: dict[str, Any]) -> None:
        """Called after the round's checkpoint is on disk."""

    def on_pause(self, loop: "FederatedLoop") -> None:
        """Called when the next round would end after the deadline."""
