"""The commands that train, evaluate or export: run, resume, evaluate, export, tune."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from benchmark.cli.campaign import SEARCH_KEYS, search
from benchmark.cli.reports import show
from benchmark.cli.session import Session
from benchmark.configuration.compose import compose, parse
from benchmark.configuration.words import exactly, is_true, scenario_and_method, split, take_keys
from benchmark.errors import ConfigError, OutOfTimeError, exit_code, message

if TYPE_CHECKING:
    from benchmark.experiment.run import Run
    from benchmark.tracking.progress import Display


RUN = "SCENARIO METHOD | SCENARIO methods=A,B | suite=NAME [methods=A,B], each [seeds=0,1,2] [key=value ...]"
RESUME = "RUN_DIR [federation.rounds=N] [trust=true]"
EVALUATE = "RUN_DIR [protocols=ID,ID | all | papers] [data.root=IMAGES] [trust=true]"
EXPORT = "RUN_DIR FILE [format=torch|safetensors|onnx|peft] [encoder=NAME] [trust=true]"
TUNE = (
    "SCENARIO METHOD [key=value,value] [key=value ...] [compare=true] | "
    "suite=NAME [methods=A,B] [minutes=M] [devices=N] [plan=true] [retry=true] [into=FOLDER]"
)


def run(words: list[str], session: Session) -> None:
    """Train and evaluate one run, several methods or seeds, or a suite of runs."""
    configs, several = configs_of(words)
    from benchmark.experiment.experiment import Experiment  # after what a misspelt word needs, before ranks are forked

    processes = session.launch(configs)
    results: list[dict[str, Any]] = []
    failed: list[str] = []
    with session.display(len(configs)) as display:
        for config in configs:
            experiment = Experiment(config, display, processes, session.started)
            try:
                results.append(experiment.execute())
            except OutOfTimeError as error:
                if results:
                    show(results, session.console)
                raise OutOfTimeError(f"{experiment.name}: {error}") from error
            except Exception as error:
                if not several or exit_code(error) is None:
                    raise
                failed.append(experiment.name)
                display.end(f"{experiment.name}: stopped: {message(error)}")
        if not several:
            display.print(f"record, scores of every round and figures: {experiment.folder}")
    if several:
        show(results, session.console)
    if failed:
        raise ConfigError(f"{len(failed)} of {len(configs)} runs stopped: {', '.join(failed)}; see above for why")


def configs_of(words: list[str]) -> tuple[list[DictConfig], bool]:
    """The configs that the words of `run` ask for, and whether they are a suite's, several methods' or seeds'."""
    from benchmark.configuration.suites import listed, row_line, suite
    from benchmark.configuration.suites import seeds as seeds_of

    names, overrides = split(words)
    given, rest = take_keys(overrides, "suite", "scenarios", "methods", "seeds")
    name, seeds, methods = given.get("suite"), given.get("seeds"), given.get("methods")
    several = any(each is not None for each in (name, seeds, methods))
    if several and "seed" in (options := parse(rest)):
        raise ConfigError(f"give seeds={options['seed']} instead of seed={options['seed']}: these are runs of several")
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
    return [compose(scenario, row[0], [*rest, *seed], row[1:]) for seed in each_seed for row in rows], several


def resume(words: list[str], session: Session) -> None:
    """Resume a run folder from its last completed round, or go on to more rounds in a folder of their own."""
    from benchmark.experiment.experiment import Experiment
    from benchmark.experiment.extension import KEY, extension
    from benchmark.experiment.folder import load_folder

    names, overrides = split(words)
    (path,) = exactly(names, f"resume {RESUME}", 1)
    options, rest = take_keys(overrides, "trust")
    trust, longer = is_true(options, "trust"), None
    if any(word.startswith(f"{KEY}=") for word in rest):
        longer = extension(Path(path), rest, trust=trust)
    config, folder = longer or (load_folder(Path(path), rest, trust=trust), Path(path))
    processes = session.launch([config])
    with session.display() as display:
        if longer:
            display.print(f"goes on from the last round of {path}, in {folder}")
        Experiment(config, display, processes, session.started, folder, Path(path) if longer else None).execute()


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
    from benchmark.distributed.collectives import on_rank_zero
    from benchmark.experiment.export import export_encoder
    from benchmark.tracking.record import covers_encoder
    from leaderboards import store

    names, overrides = split(words)
    path, target = exactly(names, f"export {EXPORT}")
    given, rest = take_keys(overrides, "format", "encoder", "trust")
    with _finished(path, rest, is_true(given, "trust"), session) as (finished, display):
        result = finished.folder / "result.json"
        if not result.exists():
            raise ConfigError(f"{path} has no scores yet: evaluate it first with `evaluate {shlex.quote(path)}`")
        file = Path(target).expanduser()
        options = {"format": given.get("format"), "name": given.get("encoder")}
        record = store.read(result)
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
    from benchmark.api import opened
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
    from benchmark.experiment import tuning

    scenario, method = scenario_and_method(names, f"tune {TUNE}")
    grid = tuning.parse_grid(scenario, method, overrides)
    processes = session.launch(grid.configs)
    with session.display() as display:
        table, lines = tuning.tune(grid, display, processes)
        session.console.print(table)
        for line in lines:
            display.print(line)
