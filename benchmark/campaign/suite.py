"""A suite's runs side by side: those of `run suite=NAME jobs=N`, one rank each, by the scheduler of campaigns."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig

from benchmark import runtime
from benchmark.campaign.devices import Machine, find_machine, refuse_without_gpu
from benchmark.campaign.jobs import Job, State, Status
from benchmark.campaign.scheduler import RunningJob, Scheduler
from benchmark.campaign.summary import format_seconds, time_left
from benchmark.configuration.identity import folder, title
from benchmark.distributed.launch import launched_layout
from benchmark.errors import ConfigError


def find_suite_machine(jobs: object, configs: Sequence[DictConfig]) -> Machine | None:
    """The devices for as many runs side by side; None: one by one, each on all devices.

    Args:
        jobs: how many; auto: as many as there are GPUs, or cores for the threads of a run, unless there are fewer runs
            or `devices` is given.

    Raises ConfigError: a number that is not possible here, or `devices` beside it; no GPU where one is asked for.
    """
    config = configs[0]
    if not all((folder(each) / "result.json").exists() for each in configs):  # those are only read
        refuse_without_gpu(config.accelerator)  # once, and not in every run
    if jobs == 1 and jobs is not True:
        return None
    if jobs != "auto":
        if config.devices not in ("auto", 1):
            raise ConfigError(f"jobs={jobs} devices={config.devices}: runs side by side have a device each: give one")
        return find_machine(jobs, config.accelerator, "jobs")
    if not runtime.is_program or config.devices != "auto" or config.nodes or launched_layout() is not None:
        return None
    machine = find_machine("auto", config.accelerator)
    count = len(machine.devices) if machine.gpu else max(1, len(machine.devices) // (config.threads or 1))
    return find_machine(count, config.accelerator) if 1 < count <= len(configs) else None


def suite_jobs(configs: Sequence[DictConfig], words: Sequence[str]) -> list[Job]:
    """The runs as jobs. words: of the suite's command, which does the one run whose folder is locked for it."""
    kept = tuple(word for word in words if word.partition("=")[0] not in ("devices", "minutes"))
    rounds = [int(config.federation.rounds) for config in configs]
    return [
        Job(kept, config, (), [], folder(config), title(config), planned)
        for config, planned in zip(configs, rounds, strict=True)
    ]


class SuiteScheduler(Scheduler):
    """Runs a suite's jobs, of which a failed one is tried again by the next command.

    on_end: called after each run that has ended. crashed: names of runs that ended by a bug.
    """

    def __init__(self, *args: Any, on_end: Callable[[], None], **options: Any) -> None:
        super().__init__(*args, retry=True, **options)
        self.on_end, self.crashed, self.timed = on_end, list[str](), self.estimates()

    def device_count(self, job: Job, state: State, waiting: int) -> int:
        """One, also for the last runs: a record says how many ranks have trained it."""
        return 1

    def finish(self, running: RunningJob) -> None:
        """Also shows what there is by now."""
        super().finish(running)
        name = running.job.name
        if running.process.returncode == 1 and name in self.failed:
            self.crashed.append(name)
            self.display.print(f"{name}: its traceback is in {running.job.folder / 'log.txt'}")
        self.timed, self.last_progress = self.estimates(), -math.inf  # shown at once
        self.on_end()

    def progress(self, states: Sequence[State]) -> tuple[int, str]:
        """Finished runs, and a line: which run of how many, failed ones, the time left."""
        kinds = Counter(state.kind for state in states)
        ended = kinds[Status.DONE] + kinds[Status.FAILED]
        seconds, unknown = time_left(self.jobs, states, self.timed)
        left = format_seconds(None if unknown else seconds / len(self.machine.devices))
        failed = f", {kinds[Status.FAILED]} stopped" if kinds[Status.FAILED] else ""
        at = min(ended + max(1, len(self.running)), len(states))
        return ended, f"run {at} of {len(states)}: {kinds[Status.DONE]} done{failed}, {left} left"
