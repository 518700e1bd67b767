"""A run: the objects of one experiment, all built, and what is done with them: train, evaluate, record."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric import Fabric
from omegaconf import DictConfig

from benchmark.distributed.collectives import on_rank_zero, raise_on_all_ranks
from benchmark.errors import count
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.monitor import Monitor, RoundProbe
from benchmark.evaluation.protocols import Scores
from benchmark.evaluation.scoring import Scoring
from benchmark.execution.base import Executor
from benchmark.experiment.costs import costs, mean_client
from benchmark.federation.callbacks import Callback
from benchmark.federation.divergence import collapses
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking import plots
from benchmark.tracking.callbacks import CLIENTS, ClientLog, EarlyRecord, RoundLog
from benchmark.tracking.checkout import commit
from benchmark.tracking.clients import by_client, write_served
from benchmark.tracking.loggers import RunLogger, close, open_logger
from benchmark.tracking.progress import Display
from benchmark.tracking.provenance import (
    author_deviations,
    emulated,
    external_classes,
    hardware,
    numerical_deviations,
    origin,
)
from benchmark.tracking.record import BEST, POOLED_STATISTICS, lacks_best_round, record
from datamodules.errors import first
from datamodules.federated import FederatedDataModule
from eval.features import EvalError
from leaderboards import schema, store


class Evaluated(NamedTuple):
    """A record with new scores, the protocols they are of, and those that failed, with reasons."""

    record: schema.Record
    protocols: list[str]
    failed: dict[str, str]


@dataclass
class Run:
    """The objects of a run, built by `experiment.experiment.Experiment.build`.

    scoring: scores of its encoders. external: a line for each class from outside the packages. costs: what a client
    pays, where `train` has counted it.
    """

    config: DictConfig
    name: str
    folder: Path
    display: Display
    fabric: Fabric
    data: FederatedDataModule
    loop: FederatedLoop
    scoring: Scoring
    external: list[str]
    costs: dict[str, Any] = field(default_factory=dict)

    @property
    def evaluator(self) -> Evaluator:
        """Scores single encoders."""
        return self.scoring.evaluator

    def train(self, logger: RunLogger, deadline: float | None, callbacks: Sequence[Callback] = ()) -> None:
        """Runs the remaining rounds with progress, logs, the monitor, and further callbacks, which see its scores.

        Raises:
            OutOfTimeError, DivergedError: see `FederatedLoop.fit`.
        """
        every = self.config.evaluation.every
        monitor: list[Callback] = [Monitor(self.evaluator, every)] if every else []
        if (protocol := self.config.evaluation.best_on_test) is not None:
            monitor.append(RoundProbe(self.evaluator, protocol))
        early = EarlyRecord(self.folder / store.PARTIAL, partial(self.record, {}, 0.0, {}))
        visits = [ClientLog(self.folder / CLIENTS)] if self.config.log_clients else []
        log = RoundLog(self.folder / "rounds.jsonl", logger)
        self.loop.callbacks = [*monitor, *callbacks, *visits, log, early, self.display]
        self.display.begin(self.name)
        if line := emulated(self.config.training.precision, self.fabric.device):
            self.display.print(f"{self.name}: {line}")
        if not self.loop.checkpoint.file.exists() and (self.folder / "rounds.jsonl").exists():
            self.display.print(f"{self.name}: starts over: {self.folder} has rounds, but no checkpoint")
        if not self.loop.checkpoint.file.exists():
            for line in self._described() if self.data.source.own else self.data.notes:
                self.display.print(f"{self.name}: {line}")
        if self.config.costs:
            with self.display.during("costs"):
                self.costs = on_rank_zero(self.fabric, self._counted)
        self.loop.fit(deadline)
        if (reason := self.loop.stop_reason()) is not None:
            self.display.print(f"{self.name}: ends after round {self.loop.round}: {reason}")

    def _counted(self) -> dict[str, Any]:
        """What a client of the mean size pays."""
        found = costs(self.config, *mean_client(self.data))
        return {key: value for key, value in found.items() if key not in ("up", "down")}  # the ledger has the clients'

    def _described(self) -> list[str]:
        """What the data are, in lines, for a user to see whether they are what they were meant to be."""
        source, names = self.data.source, self.data.parts.names
        named = f" ({first(names)})" if names else ""
        clients = f"{count(len(self.data.parts), 'client')}{named}"
        probe = "" if source.probe is None else f"; scored on {source.probe}"
        lines = [f"{source}, {clients}{probe}", *source.notes, *self.data.notes]
        if source.probe is not None:
            lines += [f"{source.probe.name}: {line}" for line in source.probe.notes]
        chosen = source.train.clients is not None or names or "classes" in self.config.data.options
        if source.in_folders and source.labelled and not chosen:
            lines.append("folders are read as classes: if they are clients, set partition.name=folders")
        return lines

    def evaluate(self, protocols: Iterable[str]) -> Evaluated:
        """Scores every exported encoder; `result.json`'s scores of other protocols stay.

        A protocol on a data set that cannot be read is left out, with a line. Raises ConfigError: all are.
        """
        started = time.perf_counter()
        ids = self.scoring.available(protocols)
        file = self.folder / "result.json"
        before = store.read(file) if file.exists() else {}
        encoders, datasets, failed, notes = self.scoring.score(ids, before.get("encoders", {}))
        for line in notes:
            self.display.print(f"{self.name}: {line}")
        seconds = time.perf_counter() - started
        ids = [name for name in ids if name not in failed]
        sha = commit()
        here = origin([sha] if sha else [], hardware(self.fabric.device))
        evaluated = before.get("evaluated", {}) | {name: here | datasets[name] for name in ids}
        result = self.record(encoders, seconds, evaluated)
        if before:  # training is not done again
            kept = ("provenance", "world_size", "deviations", "settings", "costs")
            result |= {key: before[key] for key in kept if key in before}
            changed = [line for line in external_classes(self.config) if line not in result["deviations"]]
            lines = [f"{', '.join(ids)} measured when {line}" for line in changed]
            result["deviations"] = [*result["deviations"], *lines]
        result["deviations"] = list(dict.fromkeys([*result["deviations"], *notes]))
        if lacks_best_round(self.config, result):
            probe = self.config.evaluation.best_on_test
            self.display.print(f"it has no {probe} {BEST}: some of its rounds were not scored by {probe}")
        return Evaluated(result, ids, failed)

    def finish(self, evaluated: Evaluated, logger: RunLogger | None = None) -> None:
        """Draws figures, closes the logger and writes `result.json`; a new record last, so that it is complete.

        Raises EvalError: some protocols could not be measured; all others are saved by then.
        """
        logger, file = logger or open_logger(self.config, self.folder), self.folder / "result.json"
        with raise_on_all_ranks(self.fabric):
            if self.fabric.global_rank == 0:
                if replaces := file.exists():  # a failing figure must not lose new scores
                    store.write(file, evaluated.record)
                clients = by_client([evaluated.record])
                if (named := self.evaluator.images.test.clients) is not None:
                    write_served(self.folder / "by-client.csv", self.scoring.arrays, sorted(set(named.tolist())))
                figures = plots.of_run(self.loop.history, self.data, self.scoring.arrays, self.name, clients)
                close(logger, evaluated.record, plots.save(figures, self.folder / "figures"))
                if not replaces:
                    store.write(file, evaluated.record)
                (self.folder / store.PARTIAL).unlink(missing_ok=True)
        if evaluated.failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in evaluated.failed.items())
            raise EvalError(f"{self.folder} has its record, but without {reasons}")

    def record(
        self, encoders: dict[str, Scores], seconds: float, evaluated: dict[str, dict[str, Any]]
    ) -> schema.Record:
        """The record of the rounds so far with these encoders' scores."""
        # of all the code that the rounds were made by, and of that which evaluates now
        code = [line for environment in self.loop.environments for line in environment.get("external", [])]
        lines = [*dict.fromkeys([*code, *self.external]), *author_deviations(self.config)]
        if self.evaluator.recalibrated:
            lines.append(POOLED_STATISTICS)
        lines += [*numerical_deviations(self.loop.environments), *collapses(self.loop.history)]
        lines += [*self.data.source.notes, *self.data.notes]
        if self.evaluator.images is not self.data.source:
            images = self.evaluator.images
            lines += [f"scored on the labelled images of {images.name}, sha256 {images.sha256}", *images.notes]
        return record(self.config, self.loop, self.data, encoders, seconds, lines, evaluated, self.costs)


def execution_environment(
    executor: Executor, *, fabric: Fabric, compiled: str | None, external: Sequence[str] = ()
) -> dict[str, Any]:
    """By which code, where and how rounds run, as far as another command may do it differently.

    compiled: what torch.compile compiled, in words. external: a line for each class from outside the packages.
    """
    lines = []
    if not executor.bitwise_exact:
        lines.append("clients were visited side by side by recorded steps, which round otherwise")
    if compiled is not None:
        lines.append(f"{compiled} compiled by torch.compile, which rounds otherwise")
    here = {"hardware": hardware(fabric.device), "ranks": fabric.world_size}
    code = {"external": list(external)} if external else {}
    return {"commit": commit(), **here, "numerical_deviations": lines, **code}
