"""One run from config to record. A run folder can always be taken up where it was left."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from lightning.fabric import Fabric
from omegaconf import DictConfig

from benchmark.configuration.compose import load, merge, save
from benchmark.configuration.identity import differences, identity
from benchmark.configuration.naming import folder, title
from benchmark.distributed.collectives import on_rank_zero, raise_on_all_ranks, rank_zero_first
from benchmark.errors import ConfigError
from benchmark.evaluation.drift import drift_unavailable, drifts, revisit, supports_drift
from benchmark.evaluation.evaluator import Evaluator, LocalModels
from benchmark.evaluation.monitor import Monitor
from benchmark.evaluation.protocols import Scores, expanded, transfer_targets
from benchmark.execution.batch_norm import has_batch_norm
from benchmark.execution.compile import compile_networks
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment import data, factory
from benchmark.experiment.lock import hold
from benchmark.federation.client_state import LocalParts
from benchmark.federation.loop import FederatedLoop
from benchmark.rng import Streams, cohort_size
from benchmark.runtime import began, collect_from_here
from benchmark.tracking import plots
from benchmark.tracking.callbacks import EarlyRecord, RoundLog
from benchmark.tracking.loggers import RunLogger, open_logger
from benchmark.tracking.progress import Display
from benchmark.tracking.provenance import commit, foreign, hardware, numerical_deviations, origin
from benchmark.tracking.record import headline, record
from eval.features import EvalError
from eval.protocol import find
from leaderboards import schema, store


class Run:
    """A run folder and the objects that fill it.

    Args:
        config: composed and valid. display: tells a person how far it is.
    """

    def __init__(self, config: DictConfig, display: Display) -> None:
        self.config, self.display = config, display
        self.folder = folder(config)
        self.name = title(config)
        self.kept: dict[str, dict[str, Any]] = {}  # encoder -> what figures can be drawn of

    def execute(self) -> schema.Record:
        """Trains what is left, evaluates, writes and returns the record; a finished run is only read."""
        finished = self.folder / "result.json"
        self.claim()
        if finished.exists():
            result = store.read(finished)
            self.refuse_changed(result)
            then = result["provenance"]["git"]
            other = then is not None and _COMMIT is not None and not _COMMIT.startswith(then)
            self.display.end(f"{self.name}: already done{f' at {then[:7]}' if other else ''}, {finished}")
            every, then = self.config.evaluation.every, load(self.folder / "config.yaml").evaluation.every
            if every != then:
                self.display.say(f"it was monitored every {then} rounds, not {every}: delete it to play it again")
            wanted = expanded(self.config.evaluation.protocols, self.config.data.name, drifts=False)
            if missing := [name for name in wanted if name not in result["scores"]]:
                self.display.say(
                    f"it has no {', '.join(missing)}: python -m benchmark evaluate {self.folder} "
                    f"protocols={','.join(missing)}"
                )
            return result
        with self.prepared() as loop:
            logger, every = open_logger(self.config, self.folder), self.config.evaluation.every
            watch = [Monitor(self.evaluator, every, self.recalibrated)] if every else []
            early = EarlyRecord(self.folder / store.PARTIAL, partial(self.record, {}, 0.0, {}))
            loop.callbacks = [*watch, RoundLog(self.folder / "rounds.jsonl", logger), early, self.display]
            if self.config.minutes is not None:
                loop.deadline = began() + 60 * self.config.minutes
            self.display.begin(self.name)
            with logger.open():
                loop.fit()
                if (why := loop.stop_reason()) is not None:
                    self.display.say(f"{self.name}: ends after round {loop.round}: {why}")
                found = self.evaluate(self.config.evaluation.protocols)
            self.finish(found, logger)
        self.display.end(f"{self.name}: {headline(found.record)}")
        return found.record

    def claim(self) -> None:
        """Refuses a folder that holds a run of another config."""
        file = self.folder / "config.yaml"
        changed = differences(load(file), self.config) if file.exists() else []
        if changed:
            raise ConfigError(
                f"{self.folder} holds a run of another config ({'; '.join(changed[:4])}): "
                "give this one its own name (row=NAME), or delete that folder"
            )

    @contextmanager
    def prepared(self) -> Iterator[FederatedLoop]:
        """Everything built, and the folder held so that no other process writes into it."""
        self.prepare()
        with hold(self.folder, self.fabric):
            with raise_on_all_ranks(self.fabric):
                self.claim()  # once more: somebody else may have come first
                file = self.folder / "config.yaml"
                if self.fabric.global_rank == 0 and not file.exists():  # what it was begun with is what resumes it
                    save(merge(self.config, ["minutes=null"]), file)  # a budget is the command's, not the run's
            yield self.loop

    def prepare(self) -> None:
        """Builds data, method, executor and loop, and refuses what cannot be; nothing is written yet."""
        config = self.config
        protocols = [find(name).id for name in expanded(config.evaluation.protocols, config.data.name, drifts=False)]
        collect_from_here()
        streams = Streams(config.seed)
        self.fabric: Fabric = factory.devices(config, self.display)  # first: nothing is computed yet
        images = rank_zero_first(self.fabric, lambda: data.source(config, self.display.decoding))
        method = factory.method(config, images)
        self.data = factory.data(config, images, method)
        clients = data.clients(config, method, self.data.parts)
        for one in (method, *method.others.values()):
            one.to(self.fabric.device)  # Fabric would wrap nothing, and leave itself on the method
        work = SequentialExecutor(self.fabric, method, self.data, factory.pace(config), streams)
        self.loop = FederatedLoop(
            self.fabric,
            method,
            factory.executor(config, work),
            clients,
            streams,
            rounds=config.federation.rounds,
            participation=config.federation.participation,
            folder=self.folder / "checkpoint",
            config_hash=f"{identity(config)}/{images.sha256[:16]}",
            execution_environment=self.execution_environment,
            account=factory.account(config, method, clients),
        )
        other = cache(partial(data.load_matching, config, images))
        for name in transfer_targets(protocols):
            rank_zero_first(self.fabric, partial(other, name))  # refused now, not after the training
        if any(find(name).requires == "local_models" for name in protocols) and not supports_drift(self.loop):
            raise ConfigError(drift_unavailable(self.loop))
        begun = (self.folder / "checkpoint").exists()  # what an earlier command has played can still be looked at
        if not begun and (why := self.loop.budget_infeasible_reason()) is not None:
            raise ConfigError(f"privacy.epsilon: the first release is too dear: {why}; give more, or more noise")
        self.evaluator = Evaluator(
            method,
            self.data,
            streams,
            other,
            batch_size=config.evaluation.batch_size,
            device=self.fabric.device,
        )
        if config.compile:
            with self.display.during("compiling"):
                visits = self.loop.rounds * cohort_size(len(clients), self.loop.participation)
                verdict = compile_networks(work, clients, visits)
            self.compiled = verdict is not None and verdict.kept
            self.display.say(f"compile: {verdict or 'nothing is trained'}")
        untouched = not method.phases or self.loop.rounds == 0
        normalised = any(has_batch_norm(one) for one in (method, *method.others.values()))
        self.recalibrated = normalised and (untouched or method.batch_norm == "local")
        self.foreign = foreign(config)

    def evaluate(self, wanted: Iterable[str]) -> "Evaluated":
        """Every exported encoder scored; what `result.json` holds of other protocols stays."""
        loop, began = self.loop, time.perf_counter()
        protocols = expanded(wanted, self.config.data.name, drifts(loop))
        file = self.folder / "result.json"
        before = store.read(file) if file.exists() else {}
        visited = None
        if any(find(name).requires == "local_models" for name in protocols):
            with self.display.during("visiting the clients once more"):
                visited = revisit(loop)
        encoders, here, failed = on_rank_zero(
            self.fabric, lambda: self.score(protocols, before.get("encoders", {}), visited)
        )
        seconds = time.perf_counter() - began
        protocols = [name for name in protocols if name not in failed]
        evaluated = before.get("evaluated", {}) | {name: here[name] for name in protocols}
        result = self.record(encoders, seconds, evaluated)
        if before:  # training is not done again
            result |= {key: before[key] for key in ("provenance", "world_size", "deviations", "settings")}
            since = [f"{', '.join(protocols)} measured when {line}" for line in self.changed(result)]
            result["deviations"] = list(dict.fromkeys([*result["deviations"], *since]))
        return Evaluated(result, protocols, failed)

    def record(
        self, encoders: dict[str, Scores], seconds: float, evaluated: dict[str, dict[str, Any]]
    ) -> schema.Record:
        """The record of the rounds so far, with these encoders' scores."""
        return record(self.config, self.loop, self.data, encoders, seconds, self.deviations(), evaluated)

    def changed(self, result: schema.Record) -> list[str]:
        """The classes from outside the packages whose code is not that of a record, each with its hash."""
        return [line for line in foreign(self.config) if line not in result["deviations"]]

    def refuse_changed(self, result: schema.Record) -> None:
        """ConfigError where the record was made by code that has been edited since."""
        try:
            changed = self.changed(result)
        except ConfigError as error:  # a record can be read without what made it
            self.display.say(f"{self.name}: whether its code has changed cannot be told: {error}")
            return
        if changed:
            raise ConfigError(
                f"{self.folder / 'result.json'} was made by other code than today's ({'; '.join(changed)}): "
                "remove the folder, or give the new run a row= of its own"
            )

    def score(
        self, protocols: list[str], before: dict[str, Scores], visited: LocalModels | None
    ) -> tuple[dict[str, Scores], dict[str, dict[str, Any]], dict[str, str]]:
        """Every exported encoder's scores, with those it had before by other protocols; each new protocol's `origin`;
        and which protocols could not be measured, with the reason."""
        exported = self.loop.method.export(self.loop.server, LocalParts(self.loop.memory))
        if not exported:
            raise ConfigError(
                f"{self.config.method['name']} has no encoder to evaluate before a client was visited: "
                "set federation.rounds to at least 1"
            )
        found, failed = dict[str, Scores](), dict[str, str]()
        for name, weights in exported.items():
            with self.display.counting(f"evaluating {name}", len(protocols) + 1) as tell:
                encoder = self.evaluator.encoder(weights, recalibrated=self.recalibrated, kind=name)
                kept = self.kept.setdefault(name, {})
                found[name] = self.evaluator.scores(encoder, protocols, visited, tell, kept, failed)
        encoders = {  # what fails for one encoder is no score of the others' mean; what was measured before stays
            name: before.get(name, {}) | {one: made for one, made in found.get(name, {}).items() if one not in failed}
            for name in before | found
        }
        here = origin([_COMMIT] if _COMMIT else [], hardware(self.fabric.device))
        made = dict.fromkeys(protocols, here)
        for name in transfer_targets(protocols):
            made[f"transfer-{name}/v1"] = here | {"dataset": self.evaluator.other(name).sha256}
        return encoders, made, failed

    def finish(self, found: "Evaluated", logger: RunLogger | None = None) -> None:
        """Figures, the logger's end and `result.json`; a new record is written last, so that no run with one lacks any.

        Raises:
            EvalError: some protocols could not be measured; all others are safe by then.
        """
        logger, file = logger or open_logger(self.config, self.folder), self.folder / "result.json"
        with raise_on_all_ranks(self.fabric):
            if self.fabric.global_rank == 0:
                if again := file.exists():  # new scores are not to be lost by a picture
                    store.write(file, found.record)
                logger.close(found.record, self.draw())
                if not again:
                    store.write(file, found.record)
                (self.folder / store.PARTIAL).unlink(missing_ok=True)
        if found.failed:
            reasons = "; ".join(f"{name}: {why}" for name, why in found.failed.items())
            raise EvalError(f"{self.folder} has its record, but without {reasons}")

    def deviations(self) -> list[str]:
        """What a reader of the number should know about where it comes from."""
        lines = list(self.foreign)
        if self.recalibrated:
            lines.append("BatchNorm statistics of the evaluated encoder were measured on the pooled training images")
        return lines + numerical_deviations(self.loop.environments)

    def execution_environment(self) -> dict[str, Any]:
        """By which code, where and how rounds are played, as far as the next command may do it otherwise."""
        lines = []
        if self.loop.work.rounds_differently:
            lines.append("clients were visited side by side by recorded steps, which round otherwise")
        if self.config.compile:
            what = "networks and views were" if self.compiled else "views were"
            lines.append(f"{what} compiled by torch.compile, which rounds otherwise")
        here = {"hardware": hardware(self.fabric.device), "ranks": self.fabric.world_size}
        return {"commit": _COMMIT, **here, "otherwise": lines}

    def draw(self) -> dict[str, Path]:
        """The run's figures by name: those of its rounds, and those of the protocols that were just run."""
        drawn = plots.of_run(self.loop.history, self.data, self.kept, self.name)
        return plots.save(drawn, self.folder / "figures")


class Evaluated(NamedTuple):
    """A record with new scores in it, the protocols they are of, and those that could not be measured, with reasons."""

    record: schema.Record
    protocols: list[str]
    failed: dict[str, str]


def opened(path: Path, display: Display, overrides: Iterable[str] = ()) -> Run:
    """The run of a folder an earlier command left; overrides may say where and how it happens, not what it is."""
    file = path / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{path} is not a run folder: it has no config.yaml; runs live in runs/<scenario>/<row>/seed<k>"
        )
    before = load(file)
    config = merge(before, overrides)
    changed = differences(before, config)
    changed += [f"{key}: {before[key]} -> {config[key]}" for key in ("scenario", "row") if before[key] != config[key]]
    if changed:
        raise ConfigError(
            f"{path} cannot be resumed or evaluated with a changed config ({'; '.join(changed)}): "
            "leave the override away, or start a run of its own with `run`"
        )
    run = Run(config, display)
    run.folder = path
    return run


_COMMIT = commit()
