"""Campaign files, run folders with recorded sessions, and campaigns in processes of their own, for tests."""

import json
import os
import sys
from pathlib import Path

import yaml

from benchmark import runtime
from benchmark.campaign import devices
from benchmark.campaign.jobs import append_session
from benchmark.cli.main import main
from leaderboards import store
from tests.leaderboards.test_schema import record
from tests.run_helpers import TINY, in_child

PART = {"scenarios": [TINY], "methods": ["fedavg", "ssd"], "seeds": [0, 1]}
PLACEMENT = ["logger=csv", "threads=1", "accelerator=cpu"]


def write_campaign(folder: Path, name="campaign", **changes) -> str:
    """A campaign's file; returns its path."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"parts": [PART], **changes}))
    return str(file)


def record_session(job, rounds, **session):
    """A run folder with one session: rounds of two seconds and 100 images, and five seconds of start-up."""
    job.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"round": k + 1, "seconds": 2.0, "images": 100}) for k in range(rounds)]
    (job.folder / "rounds.jsonl").write_text("\n".join([*lines, '{"round": 9']))  # cut off by a power failure
    about = {"from": 0, "to": rounds, "seconds": 2.0 * rounds + 5, "ranks": 1, "machine": "here"}
    append_session(job.folder, {**about, "end": "paused", "why": "", **session})


def write_record(job, *protocols):
    """A run's record with scores by some protocols; its evaluation time is that of the example record."""
    config = job.config
    scores = {protocol: {"accuracy": 50.0} for protocol in protocols}
    content = record(config.row, config.seed, scenario=config.scenario, scores=scores, encoders={"global": scores})
    store.write(job.folder / "result.json", content)
    return content


def fork_campaign(file, folder, *words, output="output.txt"):
    """A campaign in a child process that starts in milliseconds; what it prints goes to a file of the folder."""
    folder.mkdir(exist_ok=True)
    where = [*PLACEMENT, f"output={folder}/runs", f"data.cache={folder}/cache", *words]
    environment = {"OMP_NUM_THREADS": "1"}
    return in_child(_run, folder / output, ["campaign", file, *where], environment=environment)


def fork_suite(folder, *words, output="output.txt", environment=None):
    """`run` of several runs in a child process, as `fork_campaign`; on a machine of two cores."""
    folder.mkdir(exist_ok=True)
    where = ["threads=1", "accelerator=cpu", f"output={folder}/runs", f"data.cache={folder.parent}/cache"]
    where += [] if any(word.startswith("logger=") for word in words) else ["logger=csv"]
    environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
    return in_child(_run, folder / output, ["run", *words, *where], environment=environment)


def _run(log, words):
    """The command, whose own processes are forked too; a suite's runs may take two cores."""
    runtime.is_program = True
    if words[0] == "run":
        devices.cores = lambda: 2
    with log.open("a") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    sys.exit(main(words))
