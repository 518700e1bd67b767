"""An experiment: a config and its run folder, from which a run is built, resumed, evaluated or only read."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from lightning.fabric import Fabric
from omegaconf import DictConfig

from benchmark import PROGRAM
from benchmark.configuration.compose import as_begun, load, merge, save
from benchmark.configuration.identity import differences, folder, identity, title
from benchmark.configuration.partitions import is_by_names
from benchmark.distributed.collectives import on_rank_zero, raise_on_all_ranks, rank_zero_first
from benchmark.distributed.launch import RankProcesses
from benchmark.errors import ConfigError, exit_code, message, names_full_disk
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.protocols import expanded, transfer_targets
from benchmark.evaluation.scoring import REVISITS, Scoring
from benchmark.execution.compile import compile_networks
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment import data, factory
from benchmark.experiment.building import build_loop
from benchmark.experiment.extension import copy_checkpoint
from benchmark.experiment.initial_weights import fetch_weights
from benchmark.experiment.lock import lock_folder
from benchmark.experiment.run import Run, execution_environment
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.rng import Streams, cohort_size
from benchmark.runtime import enable_garbage_collection
from benchmark.tracking.checkout import commit
from benchmark.tracking.loggers import end_on_error, open_logger
from benchmark.tracking.progress import Display
from benchmark.tracking.provenance import external_classes, images_hash, partition_hash
from benchmark.tracking.record import headline, lacks_best_round
from datamodules.federated import FederatedDataModule
from datamodules.sources import Source
from eval.official import OWN, find
from leaderboards import schema, store
from methods.core.recalibration import has_batch_norm


class Experiment:
    """A config and its run folder; a run can always be resumed from what its folder holds.

    Args:
        config: composed and valid. display: of progress.
        processes: the ranks of the command; None: this process.
        started: when the command began, by `time.monotonic`; the config's `minutes` count from it. None: no deadline.
        path: the run folder, where it is not the config's own.
        start: the folder of a finished run from whose last round this one goes on, see `extension`.
        callbacks: further ones of the training.
    """

    def __init__(
        self,
        config: DictConfig,
        display: Display,
        processes: RankProcesses | None = None,
        started: float | None = None,
        path: Path | None = None,
        start: Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config, self.display, self.processes = config, display, processes or RankProcesses()
        self.folder, self.name, self.start = path or folder(config), title(config), start
        self.callbacks = callbacks
        minutes = config.minutes
        self.deadline = None if minutes is None or started is None else started + 60 * minutes

    def execute(self) -> schema.Record:
        """Trains the remaining rounds, evaluates, and writes and returns the record; a finished run is only read."""
        self.refuse_changed_config()
        if (file := self.folder / "config.yaml").exists():
            self.config = as_begun(self.config, file)
        if (self.folder / "result.json").exists():
            return self._read_finished()
        with self.open() as run:
            logger = open_logger(self.config, self.folder, self.display.print)
            with end_on_error(logger):
                run.train(logger, self.deadline, self.callbacks)
                evaluated = run.evaluate(self.config.evaluation.protocols)
            run.finish(evaluated, logger)
        self.display.end(f"{self.name}: {headline(evaluated.record)}")
        return evaluated.record

    def refuse_changed_config(self) -> None:
        """ConfigError where the folder holds a run of another config."""
        file = self.folder / "config.yaml"
        changed = differences(load(file), self.config) if file.exists() else []
        if changed:
            more = f"; and {len(changed) - 4} more" if len(changed) > 4 else ""
            raise ConfigError(
                f"{self.folder} holds a run of another config ({'; '.join(changed[:4])}{more}): "
                "give this one its own name (row=NAME), or delete that folder"
            )

    def _read_finished(self) -> schema.Record:
        """The record of a finished run; prints what this command asks for and the record lacks."""
        file = self.folder / "result.json"
        try:
            result = store.read(file)
        except schema.RecordError as error:
            raise ConfigError(f"{error}: delete it, and the same command makes it again from the checkpoint") from error
        if result["provenance"]["config"] != identity(self.config):
            raise ConfigError(
                f"{file} is the record of another config than {self.folder / 'config.yaml'}: restore that file, or "
                "delete the folder"
            )
        self._refuse_changed_code(result)
        images = self._refuse_changed_images(result)
        before, now = result["provenance"]["git"], commit()
        differs = before is not None and now is not None and not now.startswith(before)
        self.display.end(f"{self.name}: already done{f' at {before[:7]}' if differs else ''}, {file}")
        every, recorded = self.config.evaluation.every, load(self.folder / "config.yaml").evaluation.every
        if every != recorded:
            self.display.print(f"it was monitored every {recorded} rounds, not {every}: delete it to run it again")
        if lacks_best_round(self.config, result):
            probe = self.config.evaluation.best_on_test
            self.display.print(f"it was not scored by {probe} after every round: delete it to run it again")
        protocols = self._protocols(images)
        if missing := [name for name in protocols if name not in result["scores"]]:
            self.display.print(f"it has no {', '.join(missing)}: {self._advice(missing)}")
        return result

    def _advice(self, missing: Sequence[str]) -> str:
        """The command that measures protocols of a finished run, or why they cannot be measured."""
        try:
            if any(find(name).requires for name in missing):  # an input that the run may not have
                self.build().scoring.check_inputs(missing)
            own = any(map(OWN.fullmatch, self.config.evaluation.protocols))
            trust = " trust=true" if own or external_classes(self.config) else ""
        except Exception as error:
            if exit_code(error) is None:
                raise
            return message(error)
        return f"{PROGRAM} evaluate {shlex.quote(str(self.folder))} protocols={','.join(missing)}{trust}"

    def _refuse_changed_code(self, result: schema.Record) -> None:
        """ConfigError where a class from outside the suite has changed since it made the record."""
        try:
            changed = [line for line in external_classes(self.config) if line not in result["deviations"]]
        except ConfigError as error:  # a record can be read without the code that made it
            self.display.print(f"{self.name}: whether its code has changed cannot be checked: {error}")
            return
        if changed:
            raise ConfigError(
                f"{self.folder / 'result.json'} was made by other code than today's ({'; '.join(changed)}): "
                "remove the folder, or give the new run a row= of its own"
            )

    def _protocols(self, images: Source | None) -> list[str]:
        """Ids of the protocols that the config asks for. images: of the run; None: not known yet."""
        labelled = images is None or (images.probe or images).labelled
        names = expanded(self.config.evaluation.protocols, self.config.data.name, labelled=labelled)
        return [find(name).id for name in names]

    def _refuse_changed_images(self, result: schema.Record) -> Source | None:
        """The data set, None where it cannot be opened; ConfigError where it is not what the record was made with."""
        try:
            images = data.source(merge(self.config, ["data.download=false"]), self.display.decoding)
        except Exception as error:
            if exit_code(error) is None:
                raise
            self.display.print(f"{self.name}: whether its images have changed cannot be checked: {message(error)}")
            return None
        changed = result["provenance"]["dataset"] not in (
            images.sha256,
            images.in_order,
        )  # older records have the latter
        changed |= result["provenance"].get("in_order", images.in_order) != images.in_order
        if not changed and is_by_names(self.config.partition):  # files may have moved
            held, _ = data.partition_data(self.config, images, with_public=False)
            changed = partition_hash(held.parts) != result["provenance"]["partition"]
        if (public := result["provenance"].get("public")) is not None and not changed:
            _, shared = data.partition_data(self.config, images, with_public=True)
            changed = shared is None or images_hash(shared.images, shared.held) != public
        scored = {made.get("dataset") for id, made in result["evaluated"].items() if not transfer_targets([id])}
        if images.probe is not None and scored - {None, images.probe.sha256, images.probe.in_order}:
            self.display.print(f"{self.name}: was scored on other labelled images than today's: evaluate it again")
        if changed:
            raise ConfigError(
                f"{self.folder / 'result.json'} was made with other images, labels or clients than data set "
                f"{images.name} has today: remove the folder, or give the new run a row= of its own"
            )
        return images

    @contextmanager
    def open(self, *, training: bool = True) -> Iterator[Run]:
        """Builds the run, writes its config to its folder, and locks the folder until the context ends.

        training: see `build`.
        """
        run = self.build(training=training)
        with names_full_disk(self.folder), lock_folder(self.folder, run.fabric):
            with raise_on_all_ranks(run.fabric):
                self.refuse_changed_config()  # again: another process may have been first
                file = self.folder / "config.yaml"
                if run.fabric.global_rank == 0 and self.start and not (self.folder / "checkpoint").exists():
                    copy_checkpoint(self.start, self.folder, self.config)
                if run.fabric.global_rank == 0 and not file.exists():  # the time limit is this command's alone
                    save(merge(self.config, ["minutes=null"]), file)
            yield run

    def build(self, *, training: bool = True) -> Run:
        """All objects of the run; an error of the user's where the config cannot be run. Nothing is written
        into the run's folder.

        training: whether it is to be trained: then the data sets that its protocols transfer to have to be there now.
        """
        config = self.config
        self._protocols(None)  # first: an unknown one is reported before images are decoded
        enable_garbage_collection()
        streams = Streams(config.seed)
        fabric = factory.fabric(config, self.processes)  # first: it sets the threads of what follows
        images = rank_zero_first(fabric, lambda: data.source(config, self.display.decoding))
        protocols = self._protocols(images)
        rank_zero_first(fabric, partial(fetch_weights, config))
        method = factory.method(config, images)
        other = cache(partial(data.load_matching, config, images))
        public = rank_zero_first(fabric, partial(other, name)).in_order if (name := data.other_public(config)) else None
        module = factory.data(config, images, method, other)
        clients = data.clients(config, method, module.parts, module.parts.names)
        for architecture in method.architectures.values():
            architecture.to(fabric.device)  # not fabric.setup, which would attach Fabric to the method
        sequential = SequentialExecutor(fabric, method, module, factory.local_training(config), streams)
        executor = factory.executor(config, sequential)
        compiled = self._compile(sequential, clients) if config.compile else None
        external = external_classes(config)
        # names of folders decide a natural partition, and the images' hash does not cover them
        natural = [partition_hash(module.parts)[:16]] if is_by_names(config.partition) else []
        hashes = [images.in_order[:16], *natural, *([public[:16]] if public and method.uses_public_images else [])]
        self._refuse_other_data(fabric, hashes)
        loop = build_loop(
            config,
            executor,
            clients,
            self.folder / "checkpoint",
            config_hash="/".join([identity(config), *hashes]),
            environment=partial(execution_environment, fabric=fabric, compiled=compiled, external=external),
        )
        for name in transfer_targets(protocols) if training else ():
            rank_zero_first(fabric, partial(other, name))  # a missing data set is reported now, not after the training
        self._refuse_impossible(loop, module, protocols)
        scoring = self._scoring(loop, module, other)
        scoring.check_inputs(protocols)
        return Run(config, self.name, self.folder, self.display, fabric, module, loop, scoring, external)

    def _refuse_other_data(self, fabric: Fabric, hashes: list[str]) -> None:
        """ConfigError on all ranks where one has other images or clients than rank 0."""
        reference = on_rank_zero(fabric, lambda: hashes)
        with raise_on_all_ranks(fabric):
            if reference != hashes:
                raise ConfigError(
                    "the ranks have other images or clients: data.class and partition.class must not draw"
                )

    def _scoring(self, loop: FederatedLoop, module: FederatedDataModule, other: Callable[[str], Source]) -> Scoring:
        """What scores the run's encoders. other: name of another data set -> that set."""
        config, method = self.config, loop.method
        size, device = config.evaluation.batch_size, loop.fabric.device
        unmeasured = loop.rounds == 0 or not loop.plan(0)
        uses_batch_norm = any(has_batch_norm(network) for network in method.architectures.values())
        recalibrated = uses_batch_norm and (unmeasured or method.batch_norm == "local")
        evaluator = Evaluator(
            method, module, loop.streams, other, batch_size=size, device=device, recalibrated=recalibrated
        )
        return Scoring(loop, evaluator, config.data.name, config.method["name"], self.display)

    def _refuse_impossible(self, loop: FederatedLoop, module: FederatedDataModule, protocols: Sequence[str]) -> None:
        """ConfigError where the config asks for what the images, the clients or the protocols do not allow."""
        for name in protocols:
            revisit = REVISITS.get(find(name).requires)
            if revisit is not None and (unavailable := revisit.unavailable(loop, module)) is not None:
                raise ConfigError(f"{name}: {unavailable}")
        has_checkpoint = (self.folder / "checkpoint").exists()  # it can still be evaluated
        if not has_checkpoint and (reason := loop.budget_infeasible_reason()) is not None:
            raise ConfigError(
                f"privacy.epsilon: the first noisy release exceeds the privacy budget: {reason}; "
                "raise privacy.epsilon, or add noise"
            )
        if (probe := self.config.evaluation.best_on_test) is not None and (
            probe not in protocols or find(probe).requires or find(probe).headline != "accuracy"
        ):
            raise ConfigError(
                f"evaluation.best_on_test={probe}: give a protocol that is also in evaluation.protocols, and that "
                "scores an accuracy of features, as linear/v1 does"
            )
        if loop.method.objective.labels and not module.source.labelled:
            raise ConfigError(
                f"objective={self.config.objective['name']} trains on labels, and {module.source.name} has no two "
                "classes: choose another objective"
            )

    def _compile(self, reference: SequentialExecutor, clients: data.Clients) -> str:
        """Compiles networks where that pays; returns what is compiled, in words."""
        federation = self.config.federation
        visits = federation.rounds * cohort_size(len(clients), federation.participation)
        with self.display.during("compiling"):
            faster, report = compile_networks(reference, clients, visits)
        self.display.print(f"compile: {report}")
        return "networks and views were" if faster else "views were"
