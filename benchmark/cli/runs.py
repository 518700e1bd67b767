"""The commands, from run to list. Heavy imports wait until a command needs them."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.cli.campaign import USAGE as CAMPAIGN
from benchmark.cli.campaign import campaign
from benchmark.cli.reports import board, listing, privacy, publish, regress, show
from benchmark.configuration.compose import compose, parse
from benchmark.configuration.overrides import exactly, split, take_keys
from benchmark.errors import DEADLINE_PREFIX, EX_TEMPFAIL, BusyError, ConfigError, OutOfTimeError
from benchmark.runtime import begin

HOUSE = ("benchmark", "datamodules", "eval", "leaderboards", "methods")

USAGE = """examples:
  python -m benchmark run suite=digits                      every method on the embedded default, then the board
  python -m benchmark run digits ssd seed=1                 one run
  python -m benchmark run digits ssd method.alpha=5         one key changed
  python -m benchmark resume runs/digits/ssd/seed1          go on after the last whole round
  python -m benchmark evaluate runs/digits/ssd/seed1 protocols=knn/v1
  python -m benchmark tune cifar10-micro fedavg objective=byol optimizer.lr=0.03,0.1,0.3
  python -m benchmark campaign ssd-main minutes=30          what matters most of a paper's table, for half an hour
  python -m benchmark board                                 the committed results, and leaderboards/README.md
  python -m benchmark publish                               the same as a dashboard for Weights & Biases
  python -m benchmark regress                               whether any number moved, and which
  python -m benchmark privacy fedsc method.sigma=0.01       what leaves a client; without a name, of all, into the pages
  python -m benchmark list                                  scenarios, methods, objectives, suites, protocols"""


GO_ON = "every finished round is safe: run the same command again to go on"
AFTER = {"evaluate": "the record is as it was: run the same command again to measure"}
"""What an interrupted command leaves where it is not rounds, and what to do."""


def main(argv: Sequence[str] | None = None, since: float | None = None) -> int:
    """Runs a command; returns 0, 2 for the user's mistake (one line), 1 for ours, LATER, or 130 when interrupted.

    since: when the command began, by `time.monotonic`; now unless given.
    """
    begin(since)
    parser = argparse.ArgumentParser(
        "python -m benchmark", epilog=USAGE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, words) in COMMANDS.items():
        command = commands.add_parser(name, help=str(function.__doc__).splitlines()[0], usage=f"%(prog)s {words}")
        command.add_argument("words", nargs="*", metavar=words)
    try:
        given = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    width = None if sys.stdout.isatty() else 110  # a file has no width of its own
    console = Console(width=width, quiet=not first_rank())
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        COMMANDS[given.command][0](given.words, console)
    except KeyboardInterrupt:
        complain(f"interrupted; {AFTER.get(given.command, GO_ON)}")
        return 130
    except OutOfTimeError as error:
        complain(f"{DEADLINE_PREFIX}{error}; {GO_ON}")
        return EX_TEMPFAIL
    except OSError as error:
        if error.filename is None:  # not about a file
            raise
        complain(f"error: {error.filename}: {error.strerror}")
        return 2
    except Exception as error:
        if isinstance(error, ValueError) and type(error).__module__.partition(".")[0] in HOUSE:
            complain(f"error: {error}")
            return EX_TEMPFAIL if isinstance(error, BusyError) else 2
        traceback.print_exc()
        return 1
    finally:
        if distributed := sys.modules.get("benchmark.distributed.collectives"):  # only where a command came so far
            distributed.destroy_process_group()
    return 0


def complain(line: str) -> None:
    """One line on stderr, from the first rank: what one rank raises, all do."""
    if first_rank():
        print(line, file=sys.stderr)  # noqa: T201


def run(words: list[str], console: Console) -> None:
    """Train and evaluate one run, or a suite of them."""
    from benchmark.configuration.suites import suite
    from benchmark.distributed import launch
    from benchmark.experiment.run import Run
    from benchmark.federation.loop import DivergedError
    from benchmark.tracking.progress import Display
    from eval.features import EvalError
    from methods.base import MethodError

    names, overrides = split(words)
    own, rest = take_keys(overrides, "suite", "scenarios", "methods", "seeds")
    name = own.get("suite")
    if name is None:
        scenario, method = exactly(names, "run SCENARIO METHOD [key=value ...]")
        configs = [compose(scenario, method, overrides)]
    else:
        if names:
            raise ConfigError(
                f"give either SCENARIO METHOD or suite=NAME, not both: {' '.join(names)} and suite={name}"
            )
        if "seed" in (given := parse(rest)):
            raise ConfigError(f"a suite has several seeds: give seeds={given['seed']} instead of seed={given['seed']}")
        configs = suite(name, own, rest)
    launch.expect(configs)
    results: list[dict[str, Any]] = []
    stopped: list[str] = []
    with Display(console, len(configs)) as display:
        for config in configs:
            one = Run(config, display)
            try:
                results.append(one.execute())
            except (DivergedError, EvalError, MethodError, ConfigError) as error:
                first = not (results or stopped)
                if name is None or (first and isinstance(error, ConfigError)):  # as good as certain to be everyone's
                    raise
                stopped.append(one.name)  # it is its own affair: the other runs of the suite go on
                display.end(f"{one.name}: stopped: {error}")
            except OutOfTimeError as error:
                if results:
                    show(results, console)
                raise OutOfTimeError(f"{one.name}: {error}") from error
        if name is None:
            display.say(f"record, scores of every round and figures: {one.folder}")
    if name is not None:
        show(results, console)
    if stopped:
        raise ConfigError(f"{len(stopped)} of {len(configs)} runs stopped: {', '.join(stopped)}; why is said above")


def resume(words: list[str], console: Console) -> None:
    """Go on with a run folder after its last whole round."""
    from benchmark.experiment.run import opened
    from benchmark.tracking.progress import Display

    names, overrides = split(words)
    (path,) = exactly(names, "resume RUN_DIR", 1)
    with Display(console) as display:
        opened(Path(path), display, overrides).execute()


def evaluate(words: list[str], console: Console) -> None:
    """Measure a finished run's encoders; scores of other protocols stay."""
    from benchmark.configuration.suites import listed
    from benchmark.distributed import launch
    from benchmark.experiment.run import opened
    from benchmark.tracking.progress import Display

    names, overrides = split(words)
    (path,) = exactly(names, "evaluate RUN_DIR [protocols=ID,ID | all | papers]", 1)
    own, rest = take_keys(overrides, "protocols")
    if "devices" not in parse(rest) and launch.launched() is None:
        rest.append("devices=1")  # others would only wait: one process has all the cores
    with Display(console) as display:
        finished = opened(Path(path), display, rest)
        display.begin(finished.name)
        with finished.prepared() as loop:
            loop.start()
            if loop.round < loop.rounds and loop.stop_reason() is None:
                played = f"{loop.round} of {loop.rounds} rounds"
                raise ConfigError(f"{path} has played {played}: finish it first with `resume {path}`")
            found = finished.evaluate(listed(own.get("protocols") or list(finished.config.evaluation.protocols)))
            display.scores(finished.name, {name: found.record["scores"][name] for name in found.protocols})
            finished.finish(found)
        seconds = found.record["seconds"]["evaluation"]
        display.say(f"in {path}/result.json; figures in {path}/figures  ({seconds:.0f} s)")


def tune(words: list[str], console: Console) -> None:
    """Choose hyper-parameters without a label, by alignment and uniformity (Orchestra, eq. 5)."""
    from benchmark.experiment.tuning import tune as search
    from benchmark.tracking.progress import Display

    names, overrides = split(words)
    scenario, method = exactly(names, "tune SCENARIO METHOD key=value,value ... [key=value ...]")
    with Display(console) as display:
        table, line = search(scenario, method, overrides, display)
        console.print(table)
        display.say(line)


def first_rank() -> bool:
    """Whether this process speaks for all ranks: the launchers' variables say so before anything is set up."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


COMMANDS: dict[str, tuple[Callable[[list[str], Console], None], str]] = {
    "run": (run, "SCENARIO METHOD [key=value ...] | suite=NAME [key=value ...]"),
    "resume": (resume, "RUN_DIR"),
    "evaluate": (evaluate, "RUN_DIR [protocols=ID,ID | all | papers] [data.root=IMAGES]"),
    "tune": (tune, "SCENARIO METHOD [key=value,value] [key=value ...] [compare=true]"),
    "campaign": (campaign, CAMPAIGN),
    "board": (board, "[collect=RUNS] [folder=BOARD]"),
    "publish": (publish, "[project=NAME] [entity=NAME] [output=FOLDER]"),
    "regress": (regress, "[table=FILE] | capture=true"),
    "privacy": (privacy, "[METHOD ... [key=value ...]]"),
    "list": (listing, "[GROUP]"),
}
