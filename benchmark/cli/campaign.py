"""The command `campaign`, and `tune` of a suite, which is one that chooses its next runs by what others have scored."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark import PROGRAM
from benchmark.cli.session import Session
from benchmark.configuration.compose import parse
from benchmark.configuration.files import read
from benchmark.configuration.keys import fits
from benchmark.configuration.partitions import expanded
from benchmark.configuration.words import split, take_keys
from benchmark.errors import ConfigError, count

if TYPE_CHECKING:
    from benchmark.campaign.budget import Budget
    from benchmark.campaign.jobs import Job

USAGE = "NAME [NAME ...] [minutes=M] [devices=N] [plan=true] [retry=true] [cluster=slurm jobs=N] [output=RUNS]"
SEARCH_KEYS = ("suite", "methods", "scenarios", "minutes", "devices", "plan", "retry", "into")
"""Keys that `tune suite=NAME` itself takes."""
SUBMIT = "submit."
MARGIN, MARGIN_FRACTION = 20.0, 0.1
"""Seconds before the end of the budget by which rounds have to end; at most this fraction of the budget."""


def campaign(words: list[str], session: Session) -> None:
    """Run the jobs of a campaign in order of importance until minutes=M are up; plan=true only prints what they are."""
    names, overrides = split(words)
    if not names:
        raise ConfigError(f"usage: python -m benchmark campaign {USAGE}; got no name")
    for name in names:
        read("campaign", name)
    from benchmark.campaign import summary  # after what a misspelt word needs
    from benchmark.campaign.devices import find_machine
    from benchmark.campaign.estimates import Estimates
    from benchmark.campaign.jobs import COMMAND_KEYS, job_state, load_jobs, open_questions
    from benchmark.campaign.scheduler import Scheduler

    options, overrides = take_keys(overrides, *COMMAND_KEYS)
    submit_words = [word.removeprefix(SUBMIT) for word in overrides if word.startswith(SUBMIT)]
    overrides = [word for word in overrides if not word.startswith(SUBMIT)]
    _check(options, submit_words)
    retry, placement = options.get("retry", False), parse(overrides)
    jobs = load_jobs(names, overrides)
    output = expanded(str(placement.get("output", "runs")), "output")
    if "cluster" in options and not options.get("plan"):
        _submit([*names, *overrides], output / "submitit", options, submit_words, session)
        return
    machine = find_machine(options.get("devices", "auto"), placement.get("accelerator", "auto"))
    devices = len(machine.devices)
    before = [job_state(job, retry) for job in jobs]
    estimates = partial(Estimates, jobs, machine.name)
    display = session.display(len(jobs))
    if options.get("plan"):
        session.console.print(summary.plan(jobs, before, estimates()))
        unknown = [f"open in the paper: {line}" for name in names for line in open_questions(name)]
        for line in (*summary.failures(jobs, before), *unknown, summary.progress(jobs, before, estimates(), devices)):
            display.print(line)
        return
    budget = budget_of(session, options)
    forked = partial(_forked, session)
    scheduler = Scheduler(jobs, overrides, machine, display, estimates, budget, retry=retry, forked=forked)
    try:
        with display:
            display.print(summary.progress(jobs, before, estimates(), devices))
            scheduler.run()
    finally:
        after = [job_state(job).unless_failed(scheduler.failed.get(job.name)) for job in jobs]
        for line in summary.summary(jobs, before, after, estimates(), devices):
            display.print(line)
        if any(state.rounds for state in after):
            display.print(f"{PROGRAM} board collect={output} makes a board of them")
    if scheduler.failed:
        raise ConfigError(f"{len(scheduler.failed)} of {len(jobs)} runs failed or could not begin; see above for why")


def search(options: dict[str, Any], overrides: list[str], session: Session) -> None:
    """Search the rows of a suite by the tuning rule until minutes=M are up; plan=true only prints what there is to do.

    options: of `SEARCH_KEYS`.
    """
    from benchmark.campaign.devices import find_machine
    from benchmark.campaign.jobs import check_placement
    from benchmark.campaign.search import Search, SearchScheduler, plan, rows_of
    from benchmark.configuration import tuned

    _check(options, [])
    rule = tuned.rule(str(options["suite"]))
    if any(word.partition("=")[0] in ("seed", "seeds") for word in overrides):
        raise ConfigError(f"seeds=: the tuning rule has the seeds, {rule.seeds}, for every row: leave it out")
    check_placement(overrides, SEARCH_KEYS, "the tuning rule sets what is searched, for every row alike")
    placement = parse(overrides)
    usual = {"output": "runs-tune", "logger": "csv"}
    overrides = [*overrides, *(f"{key}={value}" for key, value in usual.items() if key not in placement)]
    into = Path(str(options["into"])) if "into" in options else None
    rows, left_out = rows_of(str(options["suite"]), options, overrides, into)
    found = Search(rows, rule)
    machine = find_machine(options.get("devices", "auto"), placement.get("accelerator", "auto"))
    display, estimates = session.display(found.counts[1]), partial(found.estimates, machine.name)
    for line in left_out:
        display.print(f"not searched: {line}")
    if options.get("plan"):
        session.console.print(plan(found))
        display.print(found.progress(estimates(), len(machine.devices))[1])
        return
    for row in rows:
        found.write(row)
    budget = budget_of(session, options)
    retry = options.get("retry", False)
    forked = partial(_forked, session)
    scheduler = SearchScheduler(found.jobs, overrides, machine, display, estimates, budget, retry=retry, forked=forked)
    scheduler.search = found
    try:
        with display:
            display.print(found.progress(estimates(), len(machine.devices))[1])
            scheduler.run()
    finally:
        display.print(found.progress(estimates(), len(machine.devices))[1])
        if found.jobs:
            display.print("the same command goes on with the rest")
    failed = dict.fromkeys(scheduler.failed.values())
    if failed:
        trials, why = count(len(scheduler.failed), "trial"), "; ".join(failed)
        raise ConfigError(f"{trials} failed or could not begin ({why}); retry=true tries again")


def _forked(session: Session, job: "Job", arguments: list[str]) -> int:
    """Does a job's command in a forked process."""
    return session.main(arguments)


def budget_of(session: Session, options: Mapping[str, Any]) -> "Budget":
    """The time of a command that has `minutes` among its options, or as long as it takes."""
    from benchmark.campaign.budget import Budget

    seconds = 60 * options.get("minutes", math.inf)
    return Budget(session.started, seconds, margin=min(MARGIN, MARGIN_FRACTION * seconds))


def _submit(
    words: list[str], folder: Path, options: Mapping[str, Any], submit_words: list[str], session: Session
) -> None:
    """Submit the campaign to a cluster, and print the jobs' ids. folder: for scripts and logs."""
    from benchmark.campaign.slurm import submit

    passed_on = [f"{key}={options[key]}" for key in ("devices", "retry") if key in options]
    minutes, cluster, jobs = options["minutes"], str(options["cluster"]), options.get("jobs", 1)
    ids = submit([*words, *passed_on], folder, cluster=cluster, jobs=jobs, minutes=minutes, options=parse(submit_words))
    session.console.print(f"submitted for {minutes:g} minutes: {', '.join(ids)}; logs in {folder}", highlight=False)


def _check(options: dict[str, Any], submit_words: list[str]) -> None:
    """Raise ConfigError for values that are not allowed."""
    rules = {
        "minutes": (lambda value: fits(value, float) and value > 0, "a number above 0"),
        "jobs": (lambda value: fits(value, int) and value >= 1, "a whole number of at least 1"),
        **dict.fromkeys(("plan", "retry"), (lambda value: isinstance(value, bool), "true or false")),
    }
    for key, (allowed, what) in rules.items():
        if key in options and not allowed(options[key]):
            raise ConfigError(f"{key}={options[key]}: give {what}")
    if "cluster" in options and "minutes" not in options:
        raise ConfigError(f"cluster={options['cluster']}: give minutes= too, the time of each job")
    if options.get("cluster") == "local" and options.get("jobs", 1) > 1 and "devices" not in options:
        raise ConfigError("cluster=local: its jobs share this machine: give devices= too, the cores of each job")
    if "cluster" not in options and (submit_words or "jobs" in options):
        raise ConfigError("jobs= and submit.KEY= are for a cluster: give cluster=slurm or cluster=local too")
