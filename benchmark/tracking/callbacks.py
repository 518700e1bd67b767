"""What a run writes after each round: its line on disk and in the loggers, lines of its clients, an early record."""

import itertools
import json
import os
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmark.disk import replacing
from benchmark.distributed.collectives import gather, raise_on_all_ranks
from benchmark.errors import ConfigError
from benchmark.execution.base import VisitResult
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.federation.updates import update_norms
from benchmark.tracking.curve import Totals, is_monitored
from benchmark.tracking.logged import named
from benchmark.tracking.loggers import RunLogger
from leaderboards import schema, store
from methods.base import Phase

CLIENTS = "clients.jsonl"
"""File of `ClientLog` in a run's folder."""


class RoundLog(Callback):
    """`rounds.jsonl`, one line a round, and its numbers in the logger, costs summed over the rounds so far.

    Args:
        file: rewritten from the run's history at the start, so that a resumed run has each round once. See `written`.
        logger: W&B's or CSV.
    """

    def __init__(self, file: Path, logger: RunLogger) -> None:
        self.file, self.logger, self.totals = file, logger, Totals()

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Writes the completed rounds; CSV is rewritten whole, W&B is given those that a kill has kept from it."""
        if loop.fabric.global_rank == 0:
            self.totals = Totals()
            with self.file.open("w", encoding="utf-8") as stream:
                stream.writelines(written(loop, line) for line in loop.history)
            for line in loop.history:
                self._log(line)

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Refuses what a callback has added and no file can hold, before it is in the checkpoint: a ConfigError."""
        for key, value in line.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                kind = f"a {type(value).__name__}" if not isinstance(value, dict | list) else "what is no plain value"
                raise ConfigError(
                    f"a callback has put {kind} into the round's line as {key!r}: give a number"
                ) from None

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Appends the line; the round's checkpoint is on disk by now."""
        if loop.fabric.global_rank != 0:
            return
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(written(loop, line))
        self._log(line)

    def _log(self, line: dict[str, Any]) -> None:
        speed = {"images_per_second": line["images"] / max(line["seconds"], 1e-9)}
        self.logger.log_metrics(named({**line, **speed, **self.totals.after(line)}), step=line["round"])


def written(loop: FederatedLoop, line: dict[str, Any]) -> str:
    """A round's line of the file, with the ids of the clients that were `drawn`.

    The draw follows from the seed, so that the history, which each checkpoint holds whole, has no ids: those of 10,000
    clients are 60 kB of the file, which is only appended to. A resumed run of an older version gets them too.
    """
    return json.dumps({**line, "drawn": loop.drawn(line["round"] - 1)}) + "\n"


class ClientLog(Callback):
    """`clients.jsonl`, a line for each visit of a client.

    A line has `round`, `phase`, `client`, its `name` where it has one, `loss` (null without training), `images`,
    `seconds`, and where it trained the `norm` of each entry of its update, see `update_norms`: as it leaves the client,
    after compression, clip and noise of its own, before masks.

    It is what a researcher observes of the simulation, as the notes of a visit are, and nothing of it is sent: under
    secure aggregation the server knows no client's norm, and no epsilon covers this file.

    Args:
        file: appended to before the round's checkpoint is written, so that none of its lines is ever missing; at the
            start, lines of rounds that are not in the checkpoint are removed.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: list[tuple[int, int, dict[str, Any]]] = []  # number of the phase, client, line
        self.phases = 0

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Removes the lines of later rounds than the last completed one, and what a kill has left of a line."""
        if loop.fabric.global_rank == 0 and self.file.exists():
            with self.file.open("rb") as lines, replacing(self.file) as beside, beside.open("wb") as stream:
                stream.writelines(line for line in lines if is_done(line, loop.round))

    def on_phase_start(self, loop: FederatedLoop, phase: Phase, visits: int) -> None:
        """Counts the phase."""
        self.phases += 1

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Keeps the line of a client's visit until the round ends."""
        phase, client = result.visit.phase, result.visit.client
        if phase.where != "clients":
            return
        line = {"round": result.visit.round + 1, "phase": phase.name, "client": client.id}
        line |= {"name": client.name} if client.name else {}
        line |= {"loss": result.loss, "images": result.images, "seconds": result.seconds}
        norms = update_norms(phase, result.visit.message, result.message)
        line |= {"norm": norms} if norms else {}
        self.lines.append((self.phases, client.id, line))

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Appends the lines of all ranks, by phase and client."""
        ranks = gather(loop.fabric, self.lines)
        self.lines, self.phases = [], 0
        with raise_on_all_ranks(loop.fabric):
            if loop.fabric.global_rank == 0:
                with self.file.open("a", encoding="utf-8") as stream:
                    for *_, visit in sorted(itertools.chain(*ranks), key=itemgetter(0, 1)):
                        stream.write(json.dumps(visit) + "\n")
                    stream.flush()
                    os.fsync(stream.fileno())  # else a power cut could leave the checkpoint and not the lines


def is_done(line: bytes, rounds: int) -> bool:
    """Whether a line of `clients.jsonl` is whole, and of one of the first rounds."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["round"]) <= rounds
    except (ValueError, TypeError, KeyError):
        return False


class EarlyRecord(Callback):
    """`partial.json`, a record of the rounds so far without scores: after the monitor, and where time is up.

    Args:
        file: replaced each time. make: returns the record.
    """

    def __init__(self, file: Path, make: Callable[[], schema.Record]) -> None:
        self.file, self.make = file, make

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Writes the record, unless this was the last round, after which the full record is written."""
        if is_monitored(line) and line["round"] < loop.rounds and loop.stop_reason() is None:
            self.on_pause(loop)

    def on_pause(self, loop: FederatedLoop) -> None:
        """Writes the record where a round is done."""
        if loop.fabric.global_rank == 0 and loop.round:
            store.write(self.file, self.make())
