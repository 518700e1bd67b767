"""`python -m benchmark.speed gpu [minutes=25]`: all that a half hour on a GPU can tell, in order of importance.

Parts: the authors' numbers, the contract of three methods, every method, throughput, views, probes; then runs of a
campaign until the time is up. Each measurement is saved at once, and the same command goes on where a kill or the end
of the time stopped it. Without a GPU all sizes are tiny: a rehearsal.

  minutes=25  output=gpu  accelerator=auto|cuda|cpu  parts=ladder,views  tiny=true
  jobs=8 (processes for what is not timed)
  campaign=NAME (ssd-main; none)  data.root=data
  carry=FOLDER python=3.12   only lay out what a machine without a network needs, and print the command to run there
  pack=FOLDER data.root=data data.name=cifar10   only pack a data set into archives of less than 60 MB
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmark.campaign.budget import Budget
from benchmark.disk import write_json
from benchmark.distributed.launch import end_with_parent
from benchmark.errors import EX_TEMPFAIL, ConfigError, UserError, count, exit_code, message
from benchmark.runtime import program
from benchmark.speed import report
from benchmark.speed.gpu import archive, page
from benchmark.speed.gpu.archive import carry
from benchmark.speed.gpu.cells import Cell, Part, Results, Setting
from benchmark.speed.gpu.parts import PARTS
from benchmark.speed.gpu.workers import Workers, device_error, measured, most_jobs
from benchmark.tracking.provenance import ROOT, hardware

OPTIONS = {
    "minutes": "25", "output": "gpu", "accelerator": "auto", "parts": "", "tiny": "", "jobs": "", "campaign": "",
    "carry": "", "python": "3.12", "pack": "", "data.root": "data", "data.name": "cifar10",
}  # fmt: skip
"""Word of the command -> its default; empty: by the machine."""
CLOSING = 5.0
"""Seconds for the page and the archive."""
LEAST_CAMPAIGN = 60.0
"""Seconds under which no campaign is started: it would not end a round."""
PAGE = Path("docs", "how-to", "gpu.md")
TABLES = ("summary", "machine", "estimates", *(part.name for part in PARTS), "campaign", "failed")


def main(words: Sequence[str], console: Console) -> int:
    """Run the command; 2 for a mistake of the user's, 1 where a measurement failed."""
    started = time.monotonic()
    if {"-h", "--help"} & set(words):
        console.print(__doc__, markup=False)
        return 0
    try:
        return run(_options(words), started, console)
    except Exception as error:
        if (code := exit_code(error)) is None:
            raise
        console.print(f"error: {message(error)}", markup=False)
        return code


class BrokenDeviceError(UserError):
    """A GPU that refuses all work of this process; the same command goes on in a new one."""

    exit_code = EX_TEMPFAIL


def run(options: Mapping[str, str], started: float, console: Console) -> int:
    """Measure until the time is up; 1 where something failed or is not as it should be."""
    if options["carry"]:
        for line in carry(Path(options["carry"]), options["python"], ROOT, Path(options["output"])):
            console.print(line, highlight=False, soft_wrap=True)
        return 0
    if options["pack"]:
        for packed in archive.pack(Path(options["data.root"], options["data.name"]), Path(options["pack"])):
            console.print(f"{packed}: {packed.stat().st_size / 1e6:.1f} MB", highlight=False)
        return 0
    cuda = options["accelerator"] == "cuda" or (options["accelerator"] == "auto" and torch.cuda.is_available())
    tiny = not cuda if not options["tiny"] else options["tiny"] == "true"
    setting, folder = Setting("cuda" if cuda else "cpu", tiny), Path(options["output"])
    _note_machine(folder, setting)
    budget = Budget(started, 60 * float(options["minutes"]), CLOSING)
    wanted = options["parts"].split(",") if options["parts"] else [*(part.name for part in PARTS), "campaign"]
    campaign = (options["campaign"] or ("none" if tiny else "ssd-main")) if "campaign" in wanted else "none"
    parts = [part for part in PARTS if part.name in wanted]
    jobs = int(options["jobs"] or most_jobs(setting))
    half_hour = HalfHour(setting, folder, budget, console, jobs)
    code = 0
    try:
        half_hour.measure(parts, kept=0.0 if campaign == "none" else 1 - sum(part.share for part in PARTS))
        if campaign != "none":
            code = _run_campaign(campaign, Path(options["data.root"]), folder, setting, budget, console)
        half_hour.measure(parts)  # what the campaign had no use for
    finally:
        half_hour.workers.close()
        _bring_back(folder, console)
    for line in half_hour.rest(parts):
        console.print(line, highlight=False)
    return int(bool(code or half_hour.wrong(parts)))


class HalfHour:
    """The measurements of one command.

    folder: of the parts' files. console: for progress. jobs: processes that measure what is not timed.
    """

    def __init__(self, setting: Setting, folder: Path, budget: Budget, console: Console, jobs: int = 1) -> None:
        self.setting, self.folder, self.budget, self.console = setting, folder, budget, console
        self.workers = Workers(jobs)
        self.tried: set[tuple[str, str]] = set()

    def measure(self, parts: Sequence[Part], kept: float = 0.0) -> None:
        """Measures what the parts' files lack; kept: share of the time that is left for what follows.

        A part has the time until the shares begin that later parts still need.
        """
        for index, part in enumerate(parts):
            if part.timed:
                self.workers.close()
            self._measure(part, kept + sum(other.share for other in parts[index + 1 :] if self._left(other)))

    def rest(self, parts: Sequence[Part]) -> list[str]:
        """A line for each part that is not done."""
        left = {part.name: len(self._left(part)) for part in parts}
        return [
            f"{name}: {count(cells, 'cell')} left; the same command goes on" for name, cells in left.items() if cells
        ]

    def wrong(self, parts: Sequence[Part]) -> bool:
        """Whether a cell of these parts failed, or is not as it should be."""
        cells = [numbers for part in parts for numbers in Results(self.folder, part.name).cells.values()]
        return any("error" in numbers or not numbers.get("met", True) for numbers in cells)

    def _left(self, part: Part) -> list[Cell]:
        """Cells of a part that are to be measured, in order; those that failed before come last."""
        results = Results(self.folder, part.name)
        left = [cell for cell in part.cells(self.setting) if cell.name not in results.done]
        return sorted(left, key=lambda cell: cell.name in results.cells)

    def _measure(self, part: Part, kept: float) -> None:
        """Cells of a part, each once a command, until the next one is expected to end in the share that is kept."""
        results = Results(self.folder, part.name)
        first = 0.1 * part.first if self.setting.tiny else part.first
        cells = [cell for cell in self._left(part) if (part.name, cell.name) not in self.tried]

        def may_begin() -> bool:
            return results.longest(first) <= self.budget.left(kept)

        if self.workers.jobs > 1 and not part.timed:
            for cell, numbers, took in self.workers.measure(cells, self.setting, may_begin):
                self._save(part, results, cell, numbers, took)
            return
        for cell in cells:
            if not may_begin():
                return
            results.save(cell.name, {"error": "it was begun, and the process ended"}, 0.0)
            self._save(part, results, cell, *measured(cell, self.budget.clock))
            if error := device_error(self.setting):
                raise BrokenDeviceError(f"the GPU refuses all work after an error ({error}): the same command goes on")

    def _save(self, part: Part, results: Results, cell: Cell, numbers: dict[str, Any], took: float) -> None:
        """Saves what a cell gave, and prints a line."""
        self.tried.add((part.name, cell.name))
        results.save(cell.name, numbers, took)
        shown = {key: value for key, value in numbers.items() if value is not None and not isinstance(value, dict)}
        words = ", ".join(f"{key} {x:.4g}" if isinstance(x, float) else f"{key} {x}" for key, x in shown.items())
        self.console.print(f"{part.name}: {cell.name}: {words} ({took:.1f} s)", markup=False)


def _options(words: Sequence[str]) -> dict[str, str]:
    """The command's words over the defaults; ConfigError for others."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := [word for word in given if word not in OPTIONS]:
        raise ConfigError(f"unknown {unknown[0]!r}: choose of {', '.join(f'{key}=' for key in OPTIONS)}")
    options = {**OPTIONS, **given}
    try:
        minutes = float(options["minutes"])
    except ValueError:
        minutes = 0.0
    names = [*(part.name for part in PARTS), "campaign"]
    unknown = [name for name in options["parts"].split(",") if name and name not in names]
    for key, allowed, problem in (
        ("minutes", 0 < minutes < float("inf"), "give a number above 0"),
        ("accelerator", options["accelerator"] in ("auto", "cuda", "cpu"), "choose of auto, cuda, cpu"),
        ("tiny", options["tiny"] in ("", "true", "false"), "give true or false"),
        ("jobs", not options["jobs"] or options["jobs"].isdecimal(), "give a number of processes"),
        ("parts", not unknown, f"there is no {', '.join(map(repr, unknown))}; choose of {', '.join(names)}"),
    ):
        if not allowed:
            raise ConfigError(f"{key}={options[key]}: {problem}")
    return options


def _note_machine(folder: Path, setting: Setting) -> None:
    """Writes down where this is measured; ConfigError where the folder's results are of another machine or size."""
    here = {"hardware": hardware(setting.device), "tiny": setting.tiny, "versions": report.versions()}
    file = folder / page.MACHINE
    before = {**here, **(json.loads(file.read_text(encoding="utf-8")) if file.exists() else {})}
    for key, what in (
        ("hardware", f"{before['hardware']}, and this is {here['hardware']}"),
        ("tiny", f"{'tiny' if before['tiny'] else 'full'} sizes, and these are {'tiny' if setting.tiny else 'full'}"),
        ("versions", f"other versions ({before['versions']})"),
    ):
        if before[key] != here[key]:
            raise ConfigError(f"{folder} holds results of {what}: give output=FOLDER")
    write_json(file, {**here, "date": before.get("date", report.today())})


def _run_campaign(name: str, root: Path, folder: Path, setting: Setting, budget: Budget, console: Console) -> int:
    """The campaign's runs until the time is up, by a command of its own; its exit code."""
    archive.unpack(root)
    seconds = budget.left()
    if seconds < LEAST_CAMPAIGN:
        console.print(f"campaign {name}: {seconds:.0f} s are too few to begin it", highlight=False)
        return 0
    setting.clear_memory()  # its runs are processes of their own
    command = [
        *program("campaign", name, f"minutes={seconds / 60:.2f}", "logger=csv"),
        *(f"output={folder / 'runs'}", f"data.root={root}", f"accelerator={setting.accelerator}", "devices=1"),
    ]
    done = subprocess.run(command, check=False, preexec_fn=partial(end_with_parent, os.getpid()))
    if done.returncode:
        console.print(f"campaign {name} ended with {done.returncode}; its lines above say why", highlight=False)
    return done.returncode


def _bring_back(folder: Path, console: Console) -> None:
    """Writes the page and the archive."""
    places = "".join(f"## {name}\n\n<!-- {name} -->\n<!-- end -->\n\n" for name in TABLES)
    template = PAGE.read_text(encoding="utf-8") if PAGE.exists() else places
    (folder / "gpu.md").write_text(report.fill(template, page.tables(folder)), encoding="utf-8")
    packed, left = archive.bring_back(folder)
    console.print(f"{folder / 'gpu.md'}; {packed} holds it all, {packed.stat().st_size / 1e6:.1f} MB", highlight=False)
    if left:
        console.print(f"{count(len(left), 'file')} had no room in it, first {left[0]}", highlight=False)
