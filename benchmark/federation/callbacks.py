"""Hooks of the federated loop, for logs, scores and figures."""

from typing import Any

from benchmark.execution.base import VisitResult
from methods.base import Phase

Loop = Any
"""The `FederatedLoop`, which knows this module."""


class Callback:
    """Hooks of a federated loop; each does nothing unless overridden.

    `line` is the round's line in `rounds.jsonl`, without the clients that were drawn: `loop.drawn(loop.round - 1)`.
    """

    def on_run_start(self, loop: Loop) -> None:
        """Called once, after the last completed round was restored."""

    def on_phase_start(self, loop: Loop, phase: Phase, visits: int) -> None:
        """Called before the clients of a phase are visited; visits: their number on this rank."""

    def on_visit_end(self, loop: Loop, result: VisitResult) -> None:
        """Called after each visit of this rank; copy what you keep of the reply, it may be the model's own tensors."""

    def on_round_trained(self, loop: Loop, line: dict[str, Any]) -> None:
        """Called before the round is saved; may add numbers to its line."""

    def on_round_end(self, loop: Loop, line: dict[str, Any]) -> None:
        """Called after the round's checkpoint is on disk."""

    def on_pause(self, loop: Loop) -> None:
        """Called when the next round would end after the deadline."""
