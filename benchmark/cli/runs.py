"""The commands that train, evaluate or export: run, resume, pretrain, evaluate, export, tune."""

import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from benchmark.cli.campaign import SEARCH_KEYS, budget_of, search
from benchmark.cli.reports import boards, show
from benchmark.cli.session import Session
from benchmark.configuration.compose import compose, merge, parse
from benchmark.configuration.identity import folder
from benchmark.configuration.words import config_of_run, exactly, is_true, scenario_and_method, split, take_keys
from benchmark.errors import ConfigError, OutOfTimeError, exit_code, message
from benchmark.runtime import LOCKED_BY_PARENT

if TYPE_CHECKING:
    from benchmark.campaign.devices import Machine
    from benchmark.campaign.jobs import Job
    from benchmark.experiment.run import Run
    from benchmark.tracking.progress import Display


RUN = (
    "SCENARIO METHOD | SCENARIO methods=A,B | suite=NAME [methods=A,B], each [seeds=0,1,2] [key=value ...]; "
    "several runs: [jobs=N]"
)
RESUME = "RUN_DIR [federation.rounds=N] [trust=true]"
PRETRAIN = "SCENARIO OBJECTIVE [into=FILE] [key=value ...]"
EVALUATE = "RUN_DIR [protocols=ID,ID | all | papers] [data.root=IMAGES] [trust=true]"
EXPORT = "RUN_DIR FILE [format=torch|safetensors|onnx|peft] [encoder=NAME] [trust=true]"
TUNE = (
    "SCENARIO METHOD [key=value,value] [key=value ...] [compare=true] | "
    "suite=NAME [methods=A,B] [minutes=M] [devices=N] [plan=true] [retry=true] [into=FOLDER]"
)


@dataclass
class Outcome:
    """What a command's runs have come to: their records, names of those that stopped, the exit code if one has."""

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    code: int = ConfigError.exit_code

    def show(self, display: "Display") -> None:
        """Shows the boards so far above the bars of a terminal."""
        if display.live:
            display.bars.boards = boards(self.records)


def run(words: list[str], session: Session) -> None:
    """Train and evaluate one run, several methods or seeds, or a suite of runs."""
    given, words = take_keys(words, "jobs")
    configs, several = configs_of(words)
    if not several and given.get("jobs", "auto") not in (1, "auto"):
        raise ConfigError(f"jobs={given['jobs']} is for several runs: give suite=NAME, methods=A,B or seeds=0,1 too")
    if several and (own := os.environ.get(LOCKED_BY_PARENT)):  # started for one of the runs
        alone = [config for config in configs if str(folder(config).resolve()) == own]
        configs, several = alone or configs, not alone
    outcome, machine = Outcome(), None
    if several:
        from benchmark.campaign.suite import find_suite_machine

        machine = find_suite_machine(given.get("jobs", "auto"), configs)
    try:
        if machine is None:
            _one_by_one(configs, outcome, session, several=several)
        else:
            _side_by_side(configs, words, machine, outcome, session)
    except OutOfTimeError:
        if outcome.records:
            show(outcome.records, session.console)
        raise
    if several:
        show(outcome.records, session.console)
    if outcome.stopped:
        names = ", ".join(outcome.stopped)
        error = ConfigError(f"{len(outcome.stopped)} of {len(configs)} runs stopped: {names}; see above for why")
        error.exit_code = outcome.code
        raise error


def _one_by_one(configs: Sequence[DictConfig], outcome: Outcome, session: Session, *, several: bool) -> None:
    """Does runs in this process and its ranks; of several, those that an error of the user's stops are passed over."""
    from benchmark.experiment.experiment import Experiment  # after what a misspelt word needs, before ranks are forked

    processes = session.launch(configs)
    with session.display(len(configs)) as display:
        for config in configs:
            experiment = Experiment(config, display, processes, session.started)
            if not (experiment.folder / "result.json").exists():  # a finished run is read at once
                outcome.show(display)
            try:
                outcome.records.append(experiment.execute())
            except OutOfTimeError as error:
                raise OutOfTimeError(f"{experiment.name}: {error}") from error
            except Exception as error:
                if not several or exit_code(error) is None:
                    raise
                outcome.stopped.append(experiment.name)
                display.end(f"{experiment.name}: stopped: {message(error)}")
        if not several:
            display.print(f"record, scores of every round and figures: {experiment.folder}")


def _side_by_side(
    configs: Sequence[DictConfig], words: Sequence[str], machine: "Machine", outcome: Outcome, session: Session
) -> None:
    """Does several runs as `_one_by_one`, but each in a process and on a device of its own.

    words: of the command, without `jobs`. Raises OutOfTimeError: `minutes` are up.
    """
    import torch

    from benchmark.campaign.estimates import Estimates
    from benchmark.campaign.suite import SuiteScheduler, suite_jobs
    from leaderboards import store

    torch.set_num_threads(1)  # forks are to come: see `preload`
    placement = ["devices=1", "threads=1"]
    if finished := [merge(config, placement) for config in configs if (folder(config) / "result.json").exists()]:
        _one_by_one(finished, outcome, session, several=True)
    jobs = [job for job in suite_jobs(configs, words) if job.name not in outcome.stopped]

    def one(job: "Job", arguments: list[str]) -> int:
        config = merge(job.config, arguments[1 + len(job.words) :])
        return session.main(["run"], command=lambda _, own: _one_by_one([config], Outcome(), own, several=False))

    def collect() -> None:
        outcome.records = [store.read(file) for job in jobs if (file := job.folder / "result.json").exists()]

    def on_end() -> None:
        if display.live:
            collect()
            outcome.show(display)

    minutes, display = configs[0].minutes, session.display(len(jobs))
    budget, estimates = budget_of(session, {"minutes": minutes or math.inf}), partial(Estimates, jobs, machine.name)
    scheduler = SuiteScheduler(jobs, [], machine, display, estimates, budget, on_end=on_end, forked=one)
    with display:
        on_end()
        scheduler.run()
    collect()
    outcome.code = 1 if scheduler.crashed else outcome.code
    left = [job for job in jobs if not (job.folder / "result.json").exists()]
    late = [job for job in left if job.name not in scheduler.failed]
    if minutes is not None and late:
        raise OutOfTimeError(f"{len(jobs) - len(left)} of {len(configs)} runs are done")
    for job in late:
        display.print(f"{job.name}: stopped: {job.folder} is being used by another process: wait for it, or stop it")
    outcome.stopped += [job.name for job in left]


def configs_of(words: list[str]) -> tuple[list[DictConfig], bool]:
    """The configs that the words of `run` ask for, and whether they are a suite's, several methods' or seeds'."""
    from benchmark.configuration.suites import listed, row_line, suite
    from benchmark.configuration.suites import seeds as seeds_of

    names, overrides = split(words)
    given, rest = take_keys(overrides, "suite", "scenarios", "methods", "seeds")
    name, seeds, methods = given.get("suite"), given.get("seeds"), given.get("methods")
    several = any(each is not None for each in (name, seeds, methods))
    if several and "seed" in (options := parse(rest)):
        remedy = f"give seeds={options['seed']}" if seeds is None else "leave it out"
        raise ConfigError(f"seed={options['seed']}: these are runs of several seeds: {remedy}")
    if name is not None:
        if names:
            clash = f"give either SCENARIO METHOD or suite=NAME, not both: {' '.join(names)} and suite={name}"
            raise ConfigError(f"{clash}; to choose some of a suite's methods, give methods=A,B")
        return suite(name, given, rest), several
    if "scenarios" in given:
        raise ConfigError(
            f"scenarios={given['scenarios']} is for suite=NAME: give one scenario, as in digits methods=A,B"
        )
    if methods is None:
        scenario, *chosen = scenario_and_method(names, f"run {RUN}")
    else:
        (scenario,), chosen = exactly(names, f"run {RUN}", 1), list(map(str, listed(methods)))
    rows = [row_line(scenario, method) for method in chosen]
    each_seed = [[f"seed={seed}"] for seed in dict.fromkeys(seeds_of(seeds))] if seeds is not None else [[]]
    if not rows or not each_seed:
        raise ConfigError("that is no run: give at least one method and one seed")
    return [compose(scenario, row[0], [*rest, *seed], row[1:]) for seed in each_seed for row in rows], several


def resume(words: list[str], session: Session) -> None:
    """Resume a run folder from its last completed round, or go on to more rounds in a folder of their own."""
    names, overrides = split(words)
    (path,) = exactly(names, f"resume {RESUME}", 1)
    options, rest = take_keys(overrides, "trust")
    config_of_run(Path(path))
    from benchmark.experiment.experiment import Experiment  # after what a misspelt word needs
    from benchmark.experiment.extension import KEY, extension
    from benchmark.experiment.folder import load_folder

    trust, longer = is_true(options, "trust"), None
    if any(word.startswith(f"{KEY}=") for word in rest):
        longer = extension(Path(path), rest, trust=trust)
    config, folder = longer or (load_folder(Path(path), rest, trust=trust), Path(path))
    processes = session.launch([config])
    with session.display() as display:
        if longer:
            display.print(f"goes on from the last round of {path}, in {folder}")
        Experiment(config, display, processes, session.started, folder, Path(path) if longer else None).execute()


def pretrain(words: list[str], session: Session) -> None:
    """Train an encoder on the clients that a scenario holds out, in one place, for a federation to start from."""
    names, overrides = split(words)
    scenario, objective = exactly(names, f"pretrain {PRETRAIN}")
    from benchmark.api import opened  # after what a misspelt word needs
    from benchmark.experiment.experiment import Experiment
    from benchmark.experiment.pretraining import pretraining

    given, rest = take_keys(overrides, "into")
    config = pretraining(scenario, objective, rest)
    file = Path(given.get("into", folder(config) / "encoder.pt")).expanduser()
    processes = session.launch([config])
    with session.display() as display:
        Experiment(config, display, processes, session.started).execute()
        with opened(folder(config), display, trust=True, processes=processes) as finished:
            _write_encoder(finished, file, {}, display)
            mean, std = (json.dumps(value) for value in (finished.data.recipe.mean, finished.data.recipe.std))
        start = f"encoder.weights={shlex.quote(str(file))} views.mean={mean} views.std={std}"
        display.print(f"to start from it: run {scenario} METHOD {start.replace(', ', ',')}")


def evaluate(words: list[str], session: Session) -> None:
    """Measure a finished run's encoders; scores of other protocols stay."""
    from benchmark.configuration.suites import listed
    from leaderboards.encoders import count, mean_of, shown

    names, overrides = split(words)
    (path,) = exactly(names, f"evaluate {EVALUATE}", 1)
    given, rest = take_keys(overrides, "protocols", "trust")
    with _finished(path, rest, is_true(given, "trust"), session) as (finished, display):
        evaluated = finished.evaluate(listed(given.get("protocols") or list(finished.config.evaluation.protocols)))
        scores, several = shown(evaluated.record), mean_of(count(evaluated.record))
        title = f"{finished.name}, accuracy: {several}" if several else finished.name
        display.scores(title, {name: scores[name] for name in evaluated.protocols})
        finished.finish(evaluated)
        seconds = evaluated.record["seconds"]["evaluation"]
        display.print(f"in {path}/result.json; figures in {path}/figures  ({seconds:.0f} s)")


def export(words: list[str], session: Session) -> None:
    """Write a finished run's encoder to a file for plain torch, torchvision, timm or ONNX."""
    names, overrides = split(words)
    path, target = exactly(names, f"export {EXPORT}")
    given, rest = take_keys(overrides, "format", "encoder", "trust")
    with _finished(path, rest, is_true(given, "trust"), session) as (finished, display):
        if not (finished.folder / "result.json").exists():
            raise ConfigError(f"{path} has no scores yet: evaluate it first with `evaluate {shlex.quote(path)}`")
        options = {"format": given.get("format"), "name": given.get("encoder")}
        _write_encoder(finished, Path(target).expanduser(), options, display)


def _write_encoder(finished: "Run", file: Path, options: dict[str, Any], display: "Display") -> None:
    """Exports an encoder of a finished run, and prints what there is to know. options: of `export_encoder`."""
    from benchmark.distributed.collectives import on_rank_zero
    from benchmark.experiment.export import export_encoder
    from benchmark.tracking.record import covers_encoder
    from leaderboards import store

    record = store.read(finished.folder / "result.json")
    name = on_rank_zero(finished.fabric, partial(export_encoder, finished, record, file, **options))
    display.print(f"encoder {name} of {finished.name}: {file}, described by {file}.json")
    if not covers_encoder(record):
        display.print(
            "epsilon does not cover this encoder: its BatchNorm statistics were measured on all training images, "
            "without noise"
        )


@contextmanager
def _finished(path: str, overrides: list[str], trust: bool, session: Session) -> Iterator[tuple["Run", "Display"]]:
    """A run folder's run with the state after its last round, and the display."""
    config_of_run(Path(path))
    from benchmark.api import opened  # after what a misspelt word needs
    from benchmark.distributed.launch import launched_layout
    from benchmark.experiment.folder import load_folder

    if "devices" not in parse(overrides) and launched_layout() is None:
        overrides = [*overrides, "devices=1"]  # further ranks would only wait: one process has all the cores
    processes = session.launch([load_folder(Path(path), overrides, trust=trust)])
    with session.display() as display, opened(path, display, overrides, trust=trust, processes=processes) as finished:
        yield finished, display


def tune(words: list[str], session: Session) -> None:
    """Choose hyper-parameters without a label, by alignment and uniformity (Orchestra, eq. 5)."""
    names, overrides = split(words)
    options, rest = take_keys(overrides, *SEARCH_KEYS)
    if "suite" in options:
        if names:
            raise ConfigError(f"give either SCENARIO METHOD or suite=NAME, not both: {' '.join(names)}")
        search(options, rest, session)
        return
    scenario, method = scenario_and_method(names, f"tune {TUNE}")
    from benchmark.experiment import tuning  # after what a misspelt word needs

    grid = tuning.parse_grid(scenario, method, overrides)
    processes = session.launch(grid.configs)
    with session.display() as display:
        table, lines = tuning.tune(grid, display, processes)
        session.console.print(table)
        for line in lines:
            display.print(line)
