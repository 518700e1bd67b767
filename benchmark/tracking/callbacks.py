"""What a run writes after each round: its line on disk and in the loggers, and the record of an unfinished run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.logged import named
from benchmark.tracking.loggers import RunLogger
from benchmark.tracking.record import Totals, is_monitored
from leaderboards import schema, store


class RoundLog(Callback):
    """`rounds.jsonl`, one line a round, and its numbers in the logger, costs summed over the rounds so far.

    Args:
        file: rewritten from the run's history at the start, so that a resumed run has each round once.
        logger: W&B's or CSV.
    """

    def __init__(self, file: Path, logger: RunLogger) -> None:
        self.file, self.logger, self.totals = file, logger, Totals()

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Writes the completed rounds; CSV is rewritten whole, W&B is given those that a kill has kept from it."""
        if loop.fabric.global_rank == 0:
            self.file.write_text("".join(json.dumps(line) + "\n" for line in loop.history), encoding="utf-8")
            self.totals = Totals()
            for line in loop.history:
                self._log(line)

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Appends the line; the round's checkpoint is on disk by now."""
        if loop.fabric.global_rank != 0:
            return
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        self._log(line)

    def _log(self, line: dict[str, Any]) -> None:
        speed = {"images_per_second": line["images"] / max(line["seconds"], 1e-9)}
        self.logger.log_metrics(named({**line, **speed, **self.totals.after(line)}), step=line["round"])


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
