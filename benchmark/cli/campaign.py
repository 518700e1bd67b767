"""The command `campaign`."""

from pathlib import Path
from typing import Any

from benchmark.cli.session import Session
from benchmark.configuration.compose import parse
from benchmark.configuration.overrides import split, take_keys
from benchmark.configuration.typecheck import fits
from benchmark.errors import ConfigError

USAGE = "NAME [NAME ...] [minutes=M] [devices=N] [plan=true] [retry=true] [cluster=slurm jobs=N] [output=RUNS]"
SUBMIT = "submit."


def campaign(words: list[str], session: Session) -> None:
    """Run the jobs of a campaign in order of importance until minutes=M are up; plan=true only prints what they are."""
    from benchmark.campaign import summary
    from benchmark.campaign.devices import find_machine
    from benchmark.campaign.estimates import Estimates, other_sessions
    from benchmark.campaign.jobs import COMMAND_KEYS, job_state, load_jobs, open_questions
    from benchmark.campaign.scheduler import Scheduler
    from benchmark.distributed.launch import launched_layout

    names, overrides = split(words)
    if not names:
        raise ConfigError(f"usage: python -m benchmark campaign {USAGE}; got no name")
    options, overrides = take_keys(overrides, *COMMAND_KEYS)
    submit_options = [word for word in overrides if word.startswith(SUBMIT)]
    overrides = [word for word in overrides if word not in submit_options]
    _check(options, submit_options)
    retry = options.get("retry", False)
    jobs = load_jobs(names, overrides)
    placement = parse(overrides)
    output = Path(str(placement.get("output", "runs"))).expanduser()
    if "cluster" in options and not options.get("plan"):
        arguments = [*names, *overrides, *(["retry=true"] if retry else [])]
        session.console.print(_submit(options, arguments, submit_options, output / "submitit"), highlight=False)
        return
    machine = find_machine(options.get("devices", "auto"), placement.get("accelerator", "auto"))
    devices = len(machine.devices)
    before = [job_state(job, retry) for job in jobs]
    others = other_sessions(output, jobs)

    def estimates() -> Estimates:
        return Estimates(jobs, machine.name, options.get("speed"), others)

    if options.get("plan"):
        session.console.print(summary.plan(jobs, before, estimates()))
        for line in summary.failures(jobs, before):
            session.console.print(line, highlight=False, markup=False, soft_wrap=True)
        for line in [line for name in names for line in open_questions(name)]:
            session.console.print(f"open in the paper: {line}", highlight=False, soft_wrap=True)
        session.console.print(summary.progress(jobs, before, estimates(), devices), highlight=False)
        return
    display = session.display(len(jobs))
    deadline = session.started + 60 * options["minutes"] if "minutes" in options else None
    scheduler = Scheduler(jobs, overrides, machine, display, estimates, deadline=deadline, retry=retry)
    try:
        with display:
            display.print(summary.progress(jobs, before, estimates(), devices))
            scheduler.run()
    finally:
        after = [scheduler.final_state(job) for job in jobs]
        for line in summary.summary(jobs, before, after, estimates(), devices):
            display.print(line)
        if any(state.rounds for state in after):
            display.print(f"python -m benchmark board collect={output} takes them onto the board")
    if scheduler.failed and launched_layout() is None:  # a launcher would end the other campaigns with this one
        raise ConfigError(f"{len(scheduler.failed)} of {len(jobs)} runs failed or could not begin; see above for why")


def _check(options: dict[str, Any], submit_options: list[str]) -> None:
    """Raise ConfigError for values that are not allowed."""
    rules = {
        **dict.fromkeys(("minutes", "speed"), (lambda value: fits(value, float) and value > 0, "a number above 0")),
        **dict.fromkeys(("plan", "retry"), (lambda value: isinstance(value, bool), "true or false")),
        "jobs": (lambda value: fits(value, int) and value >= 1, "a whole number of at least 1"),
    }
    for key, (allowed, what) in rules.items():
        if key in options and not allowed(options[key]):
            raise ConfigError(f"{key}={options[key]}: give {what}")
    if "cluster" in options and "minutes" not in options:
        raise ConfigError(f"cluster={options['cluster']}: give minutes= too, the time of each job")
    of_cluster = [*sorted(submit_options), *([f"jobs={options['jobs']}"] if "jobs" in options else [])]
    if of_cluster and "cluster" not in options:
        raise ConfigError(f"{of_cluster[0]}: of which cluster? give cluster=slurm or cluster=local too")


def _submit(options: dict[str, Any], words: list[str], submit_options: list[str], folder: Path) -> str:
    """Submit the campaign; returns a line on its jobs."""
    from benchmark.campaign.slurm import submit
    from benchmark.distributed.launch import cores

    given = parse([word.removeprefix(SUBMIT) for word in sorted(submit_options)])
    cluster, minutes, jobs = str(options["cluster"]), options["minutes"], options.get("jobs", 1)
    devices = options.get("devices", "auto")
    if devices == "auto" and jobs > 1 and cluster == "local":  # its jobs share the cores of this machine
        devices = max(1, cores() // jobs)
    words = [*words, f"devices={devices}"]
    ids = submit(words, folder, cluster=cluster, jobs=jobs, minutes=minutes, options=given)
    return f"{len(ids)} job{'s' if len(ids) > 1 else ''} of {minutes:g} minutes: {', '.join(ids)}; logs in {folder}"
