"""A run: the objects of one experiment, all built, and what is done with them: train, evaluate, record."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig
from torch import nn

from benchmark.configuration.keys import nearest
from benchmark.distributed.collectives import on_rank_zero, raise_on_all_ranks
from benchmark.errors import ConfigError, count, exit_code, message
from benchmark.evaluation.evaluator import Evaluator, has_projector
from benchmark.evaluation.monitor import Monitor, RoundProbe
from benchmark.evaluation.personal import own_features, owner_of
from benchmark.evaluation.protocols import OPTIONAL, Scores, expanded, transfer_targets
from benchmark.evaluation.revisits import REVISITS
from benchmark.execution.base import Executor
from benchmark.federation.divergence import collapses
from benchmark.federation.loop import Callback, FederatedLoop
from benchmark.tracking import plots
from benchmark.tracking.callbacks import EarlyRecord, RoundLog
from benchmark.tracking.loggers import close, open_logger
from benchmark.tracking.progress import Display
from benchmark.tracking.provenance import (
    author_deviations,
    commit,
    external_classes,
    hardware,
    numerical_deviations,
    origin,
)
from benchmark.tracking.record import BEST, POOLED_STATISTICS, lacks_best_round, record
from datamodules.errors import first
from datamodules.federated import FederatedDataModule
from eval.features import EvalError
from eval.inputs import REASONS
from eval.protocol import find
from leaderboards import schema, store


class Evaluated(NamedTuple):
    """A record with new scores, the protocols they are of, and those that failed, with reasons."""

    record: schema.Record
    protocols: list[str]
    failed: dict[str, str]


@dataclass
class Run:
    """The objects of a run, built by `experiment.experiment.Experiment.build`.

    recalibrated: whether the evaluated encoder's BatchNorm statistics are measured on the pooled training images.
    external: a line for each class from outside the packages.
    arrays: encoder -> protocol -> arrays that figures are drawn from, filled by `evaluate`.
    """

    config: DictConfig
    name: str
    folder: Path
    display: Display
    fabric: Fabric
    data: FederatedDataModule
    loop: FederatedLoop
    evaluator: Evaluator
    recalibrated: bool
    external: list[str]
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)

    def train(self, logger: Logger, deadline: float | None) -> None:
        """Runs the remaining rounds with progress, logs and the monitor.

        Raises:
            OutOfTimeError, DivergedError: see `FederatedLoop.fit`.
        """
        every = self.config.evaluation.every
        monitor: list[Callback] = [Monitor(self.evaluator, every, self.recalibrated)] if every else []
        if (protocol := self.config.evaluation.best_on_test) is not None:
            monitor.append(RoundProbe(self.evaluator, protocol, self.recalibrated))
        early = EarlyRecord(self.folder / store.PARTIAL, partial(self.record, {}, 0.0, {}))
        self.loop.callbacks = [*monitor, RoundLog(self.folder / "rounds.jsonl", logger), early, self.display]
        self.display.begin(self.name)
        if not self.loop.checkpoint.file.exists() and (self.folder / "rounds.jsonl").exists():
            self.display.print(f"{self.name}: starts over: {self.folder} has rounds, but no checkpoint")
        if not self.loop.checkpoint.file.exists():
            for line in self._described() if self.data.source.own else self.data.notes:
                self.display.print(f"{self.name}: {line}")
        self.loop.fit(deadline)
        if (reason := self.loop.stop_reason()) is not None:
            self.display.print(f"{self.name}: ends after round {self.loop.round}: {reason}")

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
        labelled = self.evaluator.images.labelled
        ids = expanded(protocols, self.config.data.name, self.inputs(), labelled=labelled)
        self.check_inputs(ids)
        ids = self._with_targets(ids)
        file = self.folder / "result.json"
        before = store.read(file) if file.exists() else {}
        inputs = self._collective_inputs(ids)
        encoders, origins, failed, notes = on_rank_zero(
            self.fabric, lambda: self._score(ids, before.get("encoders", {}), inputs)
        )
        for line in notes:
            self.display.print(f"{self.name}: {line}")
        seconds = time.perf_counter() - started
        ids = [name for name in ids if name not in failed]
        evaluated = before.get("evaluated", {}) | {name: origins[name] for name in ids}
        result = self.record(encoders, seconds, evaluated)
        if before:  # training is not done again
            result |= {key: before[key] for key in ("provenance", "world_size", "deviations", "settings")}
            changed = [line for line in external_classes(self.config) if line not in result["deviations"]]
            lines = [f"{', '.join(ids)} measured when {line}" for line in changed]
            result["deviations"] = [*result["deviations"], *lines]
        result["deviations"] = list(dict.fromkeys([*result["deviations"], *notes]))
        if lacks_best_round(self.config, result):
            probe = self.config.evaluation.best_on_test
            self.display.print(f"it has no {probe} {BEST}: some of its rounds were not scored by {probe}")
        return Evaluated(result, ids, failed)

    def _with_targets(self, protocols: list[str]) -> list[str]:
        """The protocols whose data sets can be read; prints a line for each other one, or raises it where all are."""
        unreadable = on_rank_zero(self.fabric, lambda: dict(self._unreadable_targets(protocols)))
        lines = {
            name: f"{name} cannot be measured: {unreadable[target]}"
            for name in protocols
            for target in transfer_targets([name])
            if target in unreadable
        }
        if lines and len(lines) == len(protocols):
            raise ConfigError("; ".join(lines.values()))
        for line in lines.values():
            self.display.print(line)
        return [name for name in protocols if name not in lines]

    def _unreadable_targets(self, protocols: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Data sets that protocols transfer to and that cannot be read, with the reason."""
        for target in transfer_targets(protocols):
            try:
                self.evaluator.other(target)
            except Exception as error:
                if exit_code(error) is None:
                    raise
                yield target, message(error)

    def exported_encoder(self, name: str | None = None) -> tuple[str, nn.Module]:
        """The name of an encoder that the method leaves, and a copy of it on the CPU in eval mode, as it is evaluated.

        name: of the encoder; None: the global one, or the only one. Raises ConfigError: the run has none of this name.
        """
        exported = self.loop.export()
        chosen = name or ("global" if "global" in exported or not exported else next(iter(exported)))
        if chosen not in exported or (name is None and chosen != "global" and len(exported) > 1):
            listed = ", ".join(list(exported)[:8]) + (", ..." if len(exported) > 8 else "")
            problem = "it has several encoders" if name is None else f"encoder={name}{nearest(str(name), exported)}"
            raise ConfigError(f"{problem}: choose one of this run's: encoder=NAME of {listed or 'none'}")
        encoder = self.evaluator.encoder(exported[chosen], recalibrated=self.recalibrated, kind=chosen)
        return chosen, deepcopy(encoder).cpu()

    def inputs(self) -> set[str]:
        """Those of the optional inputs of protocols that this run has."""
        return {
            name
            for name, has in {
                **{kind: revisit.has(self.loop, self.data) for kind, revisit in REVISITS.items()},
                "members": self.evaluator.images is self.data.source,
                "projector": has_projector(self.loop.method, self.recalibrated),
                "held_out": self.evaluator.holds_out,
                "test_clients": self.evaluator.images.test.clients is not None,
            }.items()
            if has
        }

    def check_inputs(self, protocols: Iterable[str]) -> None:
        """ConfigError where a protocol requires labels or an optional input that the run has not."""
        lacking = OPTIONAL - REVISITS.keys() - self.inputs()
        images = self.evaluator.images
        for name in protocols:
            if (kind := find(name).requires) in lacking:
                raise ConfigError(f"{name}: {REASONS[kind]}")
            if find(name).uses_labels and not images.labelled:
                raise ConfigError(
                    f"{name} uses labels, and {images.name} has no two classes: put labelled images into its folder "
                    "probe/{train,test}/<class>/, name a labelled data set by data.probe, or choose the protocols "
                    "geometry/v1,label-free/v1 (`run`: evaluation.protocols=[...], `evaluate`: protocols=...)"
                )

    def _collective_inputs(self, protocols: Iterable[str]) -> dict[str, Any]:
        """The inputs of protocols for which clients are visited once more, by all ranks."""
        inputs = dict[str, Any]()
        for protocol in map(find, protocols):
            if (revisit := REVISITS.get(protocol.requires)) is not None:
                with self.display.during(revisit.doing):
                    inputs[protocol.requires] = revisit.observe(self.loop, self.evaluator, protocol.settings)
        return inputs

    def _score(
        self, protocols: list[str], before: dict[str, Scores], inputs: Mapping[str, Any]
    ) -> tuple[dict[str, Scores], dict[str, dict[str, Any]], dict[str, str], list[str]]:
        """Every exported encoder's scores, earlier ones of other protocols included; each new protocol's `origin`;
        the protocols that could not be measured, with the reason; and what a reader has to know, in lines."""
        exported = self.loop.export()
        if not exported:
            raise ConfigError(
                f"{self.config.method['name']} has no encoder to evaluate before a client was visited: "
                "set federation.rounds to at least 1"
            )
        scores, failed, notes = dict[str, Scores](), dict[str, str](), list[str]()
        for name, weights in exported.items():
            with self.display.counting(f"evaluating {name}", len(protocols) + 1) as steps:
                encoder = self.evaluator.encoder(weights, recalibrated=self.recalibrated, kind=name)
                projector = self.evaluator.projector(weights, recalibrated=self.recalibrated, kind=name)
                arrays = self.arrays.setdefault(name, {})
                scores[name] = self.evaluator.scores(
                    encoder,
                    protocols,
                    steps,
                    steps.progress,
                    arrays,
                    failed,
                    notes.append,
                    projector=projector,
                    own_features=own_features(self.evaluator, self.loop, exported, name),
                    members=self.evaluator.members(owner_of(self.loop, name)),
                    **inputs,
                )
        encoders = {  # a protocol that fails for one encoder counts for none; earlier scores stay
            name: before.get(name, {}) | {id: made for id, made in scores.get(name, {}).items() if id not in failed}
            for name in before | scores
        }
        sha = commit()
        here = origin([sha] if sha else [], hardware(self.fabric.device))
        images = self.evaluator.images
        beside = {} if images is self.data.source else {"dataset": images.sha256}
        origins = dict.fromkeys(protocols, here | beside)
        for target in transfer_targets(protocols):
            used = {"dataset": self.evaluator.other(target).sha256}
            origins |= {name: here | used for name in protocols if name.startswith(f"transfer-{target}/")}
        return encoders, origins, failed, list(dict.fromkeys(notes))

    def finish(self, evaluated: Evaluated, logger: Logger | None = None) -> None:
        """Draws figures, closes the logger and writes `result.json`; a new record last, so that it is complete.

        Raises EvalError: some protocols could not be measured; all others are saved by then.
        """
        logger, file = logger or open_logger(self.config, self.folder), self.folder / "result.json"
        with raise_on_all_ranks(self.fabric):
            if self.fabric.global_rank == 0:
                if replaces := file.exists():  # a failing figure must not lose new scores
                    store.write(file, evaluated.record)
                figures = plots.of_run(self.loop.history, self.data, self.arrays, self.name)
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
        if self.recalibrated:
            lines.append(POOLED_STATISTICS)
        lines += [*numerical_deviations(self.loop.environments), *collapses(self.loop.history)]
        lines += [*self.data.source.notes, *self.data.notes]
        if self.evaluator.images is not self.data.source:
            images = self.evaluator.images
            lines += [f"scored on the labelled images of {images.name}, sha256 {images.sha256}", *images.notes]
        return record(self.config, self.loop, self.data, encoders, seconds, lines, evaluated)


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
