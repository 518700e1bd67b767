"""The command line: parses, calls a command, and turns errors into one line and an exit code."""

import argparse
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from benchmark import PROGRAM
from benchmark.cli import campaign, data, listing, new, reports, runs, submissions
from benchmark.cli.session import Session
from benchmark.configuration.keys import nearest
from benchmark.configuration.layers import meant
from benchmark.errors import DEADLINE_PREFIX, ConfigError, OutOfTimeError, exit_code, message
from benchmark.runtime import is_first_rank
from benchmark.tracking.checkout import commit, version

FIRST = """python -m benchmark COMMAND: what to do first, with images that come with the suite
  python -m benchmark run digits fedavg federation.rounds=3   a first run, in seconds
  python -m benchmark run suite=digits                        every method and their board, in minutes
  python -m benchmark list                                    the names of scenarios, methods, objectives, protocols
  python -m benchmark --help                                  all commands, with examples"""
"""What a command without words prints."""

EXAMPLES = """examples:
  python -m benchmark run suite=digits                      a row of each method on the embedded digits, then the board
  python -m benchmark run digits ssd seed=1                 one run
  python -m benchmark run digits ssd seeds=0,1,2            one row, three seeds
  python -m benchmark run digits methods=fedavg,ssd         several methods, one board
  python -m benchmark run digits ssd method.alpha=5         one key changed
  python -m benchmark resume runs/digits/ssd/seed1          resume from the last completed round
  python -m benchmark evaluate runs/digits/ssd/seed1 protocols=knn/v1
  python -m benchmark export runs/digits/ssd/seed1 encoder.pt   the run's encoder, for torch, torchvision or timm
  python -m benchmark pretrain adapt simclr                 an encoder to start from, of clients that are held out
  python -m benchmark compare runs/digits/*/seed*           scores, curves and costs of rows side by side
  python -m benchmark tune cifar10-micro fedavg objective=byol optimizer.lr=0.03,0.1,0.3
  python -m benchmark campaign ssd-main minutes=30 data.root=IMAGES   half an hour of a paper's table
  python -m benchmark board                                 the committed results, and leaderboards/README.md
  python -m benchmark board collect=runs                    your runs' board, in runs-board
  python -m benchmark publish                               the same as a dashboard for Weights & Biases
  python -m benchmark regress                               whether any number moved, and which
  python -m benchmark parity tests/parity/ssd.json          whether a method computes what its authors' code does
  python -m benchmark privacy fedsc method.sigma=0.01       what leaves a client; without a name, of all, into the pages
  python -m benchmark costs fedx training.batch_size=64     what a client pays; without a name, of all, into the page
  python -m benchmark submit runs/digits/ssd/seed*  chosen="the paper's values"   a bundle for somebody else's board
  python -m benchmark verify digits-ssd.zip replay=0        whether a bundle is what it says
  python -m benchmark cite ssd align_uniform                BibTeX of a method, an objective and the suite
  python -m benchmark data typefaces                        a data set by typeface, built from npm; or icons
  python -m benchmark new method mymethod                   files of a method that works, with its test, to be changed
  python -m benchmark list                                  every name that a command takes; list methods: one group"""

RUN_WORDS = """words of run:
  SCENARIO             a name from `list scenarios`, or a .yaml file: data set, clients, training, evaluation
  METHOD               a name from `list methods`, a row of a suite such as fedavg-byol, a .yaml file, or an import path
  suite=NAME           a name from `list suites`; methods=A,B and seeds=0,1 choose some of its runs
  jobs=N               how many of several runs go side by side, on a device each (auto)
  seeds=0,1,2          the same run under each seed; seed=1 is one run

keys of most use; docs/how-to/run.md says more, benchmark/configuration/schema.py has all:
  objective=NAME       another local loss, from `list objectives`, a .yaml file, or an import path
  method.KEY=VALUE     a setting of the method, as on its page in docs/methods; likewise objective.KEY=, optimizer.lr=
  federation.rounds=2  how many rounds; training.epochs=, partition.alpha=, ... likewise
  data.root=IMAGES     the folder with the data sets' files (data)
  output=FOLDER        where the folder <scenario>/<row>/seed<k> of the run goes (runs)
  logger=csv           CSV files in place of Weights & Biases, which is offline unless you are logged in
  devices=N            how many processes, each on a GPU or on CPU cores (auto); accelerator=cpu: no GPU
  minutes=M            no round begins that would end later; the same command resumes
  row=NAME             the run's name on the board, scenario=NAME the board's; without them changes are in the name
"""

RESUME_HINT = "every finished round is safe: run the same command again to resume"
INTERRUPTED_HINTS = {
    "data": "the packages that were fetched stay: run the same command again to go on",
    "evaluate": "the record is as it was: run the same command again to measure",
    "export": "a file is written whole or not at all: run the same command again",
}
"""What an interrupted command has left, and what to do, where it is not rounds."""

COMMANDS: dict[str, tuple[Callable[[list[str], Session], None], str]] = {
    "run": (runs.run, runs.RUN),
    "resume": (runs.resume, runs.RESUME),
    "pretrain": (runs.pretrain, runs.PRETRAIN),
    "evaluate": (runs.evaluate, runs.EVALUATE),
    "export": (runs.export, runs.EXPORT),
    "compare": (reports.compare, reports.COMPARE),
    "tune": (runs.tune, runs.TUNE),
    "campaign": (campaign.campaign, campaign.USAGE),
    "board": (reports.board, reports.BOARD),
    "publish": (reports.publish, "[project=NAME] [entity=NAME] [output=FOLDER]"),
    "regress": (reports.regress, "[table=FILE] | capture=true"),
    "parity": (reports.parity, "FILE... [accelerator=cpu|cuda]"),
    "privacy": (reports.privacy, "[METHOD ... [key=value ...]]"),
    "costs": (reports.costs, "[METHOD ... [key=value ...]]"),
    "submit": (submissions.submit, submissions.SUBMIT),
    "verify": (submissions.verify, submissions.VERIFY),
    "cite": (reports.cite, reports.CITE),
    "data": (data.data, data.DATA),
    "new": (new.new, new.NEW),
    "list": (listing.listing, f"[{' | '.join(listing.LISTS)}]"),
}
"""Name -> function and usage. A function's first docstring line is its help."""


Command = Callable[[list[str], Session], None]


def main(argv: Sequence[str] | None = None, started: float | None = None, command: Command | None = None) -> int:
    """Runs a command; returns 0, 2 for a user's mistake (one line), 1 for a bug, 75 for later, 130 when interrupted.

    1 is also for a parity file that is not met. started: when the command began, by `time.monotonic`; None: now.
    command: does what `argv` names; None: the command of that name.
    """
    try:
        given = parsers()[0].parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    session = Session(time.monotonic() if started is None else started, main)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _check_launcher()
        (command or COMMANDS[given.command][0])(given.words, session)
    except KeyboardInterrupt:
        _print_error(f"interrupted; {INTERRUPTED_HINTS.get(given.command, RESUME_HINT)}")
        return 130
    except Exception as error:
        code = exit_code(error)
        if code is None:
            if is_first_rank() or not getattr(error, "on_all_ranks", False):
                traceback.print_exc()
            return 1
        late = isinstance(error, OutOfTimeError)
        _print_error(f"{DEADLINE_PREFIX}{error}; {RESUME_HINT}" if late else f"error: {message(error)}")
        return code
    finally:
        session.close()
    return 0


def parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of the command line, and the parser of each command by name; their help is what the pages show."""
    parser = _Parser(PROGRAM, epilog=_typed(EXAMPLES), formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, usage) in COMMANDS.items():
        line = str(function.__doc__).splitlines()[0]
        command = commands.add_parser(
            name,
            help=line,
            description=line,
            usage=f"%(prog)s {usage}",
            epilog=RUN_WORDS if name == "run" else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("words", nargs="*", metavar=usage)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and the commit")
    return parser, commands.choices


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others are."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        if message.endswith("required: COMMAND"):
            print(_typed(FIRST), file=sys.stderr)  # noqa: T201
            self.exit(2)
        if unknown := re.search(r"invalid choice: '(.*?)' \(choose", message):
            message = f"unknown command {unknown[1]!r}{nearest(unknown[1], COMMANDS)}; there are: {', '.join(COMMANDS)}"
        if dashed := re.search(r"unrecognized arguments: --(\w[\w.-]*)(?:[ =](\w[^\s=]*)(?=\s|$))?", message):
            message += f" (overrides have no dashes: {' or '.join(meant(dashed[1], dashed[2] or 'VALUE'))})"
        _print_error(f"error: {message}; see `python -m benchmark --help`")
        self.exit(2)


class _Version(argparse.Action):
    """Prints the suite's version, and the commit of its files where they are a checkout's."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        at = commit()
        print(f"fulcrum {version() or 'not installed'}{f', commit {at}' if at else ''}")  # noqa: T201
        parser.exit()


def _check_launcher() -> None:
    """Refuse a launcher's variable that is no number, before a library reads it while it is imported."""
    names = ["RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
    names += ["SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID"]
    names += ["MASTER_PORT"] if "LOCAL_RANK" in os.environ else []  # Kubernetes sets it to an address
    for name in names:
        if not (text := os.environ.get(name, "0")).isdecimal():
            raise ConfigError(f"the environment variable {name}={text!r} is no whole number: unset it")


def _typed(text: str) -> str:
    """A text with the command as a user of this copy of the suite types it."""
    return text.replace("python -m benchmark", PROGRAM)


def _print_error(line: str) -> None:
    """One line on stderr, from the first rank: an error of one rank is raised on all.

    What the user has typed is part of it; control characters in that would be executed by the terminal.
    """
    if is_first_rank():
        single = re.sub(r"\s*\n\s*", " ", _typed(line).strip())
        shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in single)
        print(shown, file=sys.stderr)  # noqa: T201
