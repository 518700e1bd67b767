"""The command `campaign`."""

from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.configuration.compose import parse
from benchmark.configuration.overrides import split, take_keys
from benchmark.configuration.typecheck import fits
from benchmark.errors import ConfigError

USAGE = "NAME [NAME ...] [minutes=M] [devices=N] [plan=true] [retry=true] [cluster=slurm jobs=N] [output=RUNS]"
SUBMIT = "submit."


def campaign(words: list[str], console: Console) -> None:
    """Play the runs of a campaign in order of worth for as long as there is time; plan=true says what that means."""
    from benchmark.campaign import summary
    from benchmark.campaign.devices import machine
    from benchmark.campaign.estimates import Estimates, neighbours
    from benchmark.campaign.jobs import WORDS, jobs, look, unknown
    from benchmark.campaign.scheduler import Scheduler
    from benchmark.distributed.launch import launched
    from benchmark.tracking.progress import Display

    names, overrides = split(words)
    if not names:
        raise ConfigError(f"usage: python -m benchmark campaign {USAGE}; got no name")
    own, rest = take_keys(overrides, *WORDS)
    options = {word for word in rest if word.startswith(SUBMIT)}
    rest = [word for word in rest if word not in options]
    _check(own, options)
    minutes, retry, speed = own.get("minutes"), own.get("retry", False), own.get("speed")
    every = jobs(names, rest)
    where = parse(rest)
    if "cluster" in own and not own.get("plan"):
        _submit(own, [*names, *rest, *(["retry=true"] if retry else [])], options, where, console)
        return
    on = machine(own.get("devices", "auto"), where.get("accelerator", "auto"))
    before = [look(piece, retry) for piece in every]
    others = neighbours(_output(where), every)

    def expected() -> Estimates:
        return Estimates(every, on.name, speed, others)

    estimates, many = expected(), len(on.devices)
    if own.get("plan"):
        console.print(summary.plan(every, before, estimates))
        for line in summary.failures(every, before):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        for line in [line for name in names for line in unknown(name)]:
            console.print(f"open in the paper: {line}", highlight=False, soft_wrap=True)
        console.print(summary.progress(every, before, estimates, many), highlight=False)
        return
    display = Display(console, len(every))
    crew = Scheduler(every, rest, on, display, expected, minutes=minutes, retry=retry)
    try:
        with display:
            display.say(summary.progress(every, before, estimates, many))
            crew.work()
    finally:
        after = [crew.verdict(piece) for piece in every]
        for line in summary.summary(every, before, after, expected(), many):
            display.say(line)
        if any(state.rounds for state in after):
            display.say(f"python -m benchmark board collect={_output(where)} takes them onto the board")
    if crew.failed and launched() is None:  # a launcher would end the other campaigns with this one
        raise ConfigError(f"{len(crew.failed)} of {len(every)} runs failed or could not begin; why is said above")


def _check(own: dict[str, Any], options: set[str]) -> None:
    """Refuses values that cannot be."""
    for key in ("minutes", "speed"):
        if key in own and not (fits(own[key], float) and own[key] > 0):
            raise ConfigError(f"{key}={own[key]}: give a number above 0")
    for key in ("plan", "retry"):
        if key in own and not isinstance(own[key], bool):
            raise ConfigError(f"{key}={own[key]}: give true or false")
    if "cluster" in own and "minutes" not in own:
        raise ConfigError(f"cluster={own['cluster']}: give minutes= too, the time of each job")
    alone = [*sorted(options), *([f"jobs={own['jobs']}"] if "jobs" in own else [])]
    if alone and "cluster" not in own:
        raise ConfigError(f"{alone[0]}: of which cluster? give cluster=slurm or cluster=local too")
    if "jobs" in own and not (fits(own["jobs"], int) and own["jobs"] >= 1):
        raise ConfigError(f"jobs={own['jobs']}: give a whole number of at least 1")


def _output(where: dict[str, Any]) -> Path:
    return Path(str(where.get("output", "runs"))).expanduser()


def _submit(own: dict[str, Any], words: list[str], options: set[str], where: dict[str, Any], console: Console) -> None:
    from benchmark.campaign.slurm import submit
    from benchmark.distributed.launch import cores

    folder = _output(where) / "submitit"
    given = parse([word.removeprefix(SUBMIT) for word in sorted(options)])
    jobs, devices = own.get("jobs", 1), own.get("devices", "auto")
    if devices == "auto" and jobs > 1 and own["cluster"] == "local":  # its jobs share the cores of this machine
        devices = max(1, cores() // jobs)
    words.append(f"devices={devices}")
    ids = submit(words, folder, cluster=str(own["cluster"]), jobs=jobs, minutes=own["minutes"], options=given)
    what = f"{len(ids)} job{'s' if len(ids) > 1 else ''} of {own['minutes']:g} minutes"
    console.print(f"{what}: {', '.join(ids)}; logs in {folder}", highlight=False)
