"""Divergence: a loss, a reply or a client's state that is not finite ends the run, whose last round is safe.

Collapse, a loss of 0 or features that are all alike, ends no run: it is remarked on.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.errors import DivergedError
from benchmark.execution.base import VisitResult
from methods import trees
from methods.base import Phase, Replies

DIVERGENCE_HINT = "look at optimizer.lr (0, or too large) and training.clip_norm"

ZERO_LOSS = 5e-5
"""Size of a mean loss below which it is printed as 0.0000: there is nothing left to learn from."""
ONE_DIMENSION = 1.01
"""Effective rank of the monitored features below which they all point one way."""


def collapse(line: Mapping[str, Any]) -> str | None:
    """What is a sign of collapse in a round's line in `rounds.jsonl`, else None."""
    if line.get("effective_rank", ONE_DIMENSION) < ONE_DIMENSION:
        return "features are all alike"
    if line["loss"] is not None and abs(line["loss"]) < ZERO_LOSS:
        return "loss of 0"
    return None


def collapses(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each sign of collapse in a run's rounds: in how many, and which was the first."""
    found: dict[str, list[int]] = {}
    for line in history:
        if (sign := collapse(line)) is not None:
            found.setdefault(sign, []).append(line["round"])
    return [
        f"collapsed? {sign} in {len(rounds):,} of {len(history):,} rounds, first in round {rounds[0]}"
        for sign, rounds in found.items()
    ]


def check_replies(replies: Replies, round: int, phase: Phase) -> None:
    """Refuses combined replies that are not finite."""
    for entry in replies:
        if not trees.finite(replies[entry]):
            raise DivergedError(
                f"what the clients replied as {entry!r} is not finite in round {round + 1}, phase {phase.name!r}; "
                f"{last_good_round(round)}: {DIVERGENCE_HINT}"
            )


def check_visit(result: VisitResult) -> None:
    """Refuses a visit whose loss, or what stays with its client, is not finite."""
    visit = result.visit
    where = f"in round {visit.round + 1}, phase {visit.phase.name!r}; {last_good_round(visit.round)}"
    if result.loss is not None and not math.isfinite(result.loss):
        raise DivergedError(
            f"the loss of {visit.client} became {result.loss} {where}: lower optimizer.lr or set training.clip_norm"
        )
    if not trees.finite(result.client_state):
        raise DivergedError(f"what {visit.client} keeps is not finite {where}: {DIVERGENCE_HINT}")


def last_good_round(round: int) -> str:
    """Names the last saved round, where round `round` (from 0) has failed."""
    return f"round {round} is safe" if round else "no round is done yet"
