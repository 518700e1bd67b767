"""What a run writes after each round: its line on disk and in the loggers, and the record of an unfinished run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.loggers import RunLogger
from benchmark.tracking.record import MONITORED, is_monitored
from leaderboards import schema, store


class RoundLog(Callback):
    """`rounds.jsonl`, one line a round, and the same numbers in the logger under train/ eval/ comm/ sys/.

    Args:
        file: rewritten from the run's history at the start, so that a resumed run has each round once. See `written`.
        logger: W&B's or CSV.
    """

    def __init__(self, file: Path, logger: RunLogger) -> None:
        self.file, self.logger = file, logger

    def on_run_start(self, loop: FederatedLoop) -> None:
        """Writes the completed rounds; CSV is rewritten whole, W&B is given those that a kill has kept from it."""
        if loop.fabric.global_rank == 0:
            with self.file.open("w", encoding="utf-8") as stream:
                stream.writelines(written(loop, line) for line in loop.history)
            for line in loop.history:
                self._log(line)

    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Appends the line; the round's checkpoint is on disk by now."""
        if loop.fabric.global_rank != 0:
            return
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(written(loop, line))
        self._log(line)

    def _log(self, line: dict[str, Any]) -> None:
        scalars = {
            "train/loss": line["loss"],
            "train/server_loss": line.get("server_loss"),
            **{f"comm/{way}": sum(line[way].values()) for way in ("bytes_up", "bytes_down")},
            "privacy/epsilon": max(line["epsilon"].values()) if "epsilon" in line else None,
            "sys/images_per_second": line["images"] / max(line["seconds"], 1e-9),
            **{f"sys/{name}": line[name] for name in ("seconds", "client_seconds")},
            **{f"eval/{name}": line.get(name) for name in MONITORED},
        }
        numbers = {key: value for key, value in scalars.items() if value is not None}
        self.logger.log_metrics(numbers, step=line["round"])


def written(loop: FederatedLoop, line: dict[str, Any]) -> str:
    """A round's line of the file, with the ids of the clients that were `drawn`.

    The draw follows from the seed, so that the history, which each checkpoint holds whole, has no ids: those of 10,000
    clients are 60 kB of the file, which is only appended to. A resumed run of an older version gets them too.
    """
    return json.dumps({**line, "drawn": loop.drawn(line["round"] - 1)}) + "\n"


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
