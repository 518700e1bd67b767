"""Whole campaigns, here and as jobs of a cluster: every job is run in order, once, whatever interrupts them."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from benchmark.campaign.jobs import Status, job_state, load_jobs, read_sessions
from benchmark.cli.main import main
from leaderboards import store
from leaderboards.schema import INCIDENTAL
from tests.benchmark.campaign.campaign_helpers import (
    PART,
    PLACEMENT,
    fork_campaign,
    record_session,
    write_campaign,
    write_record,
)
from tests.run_helpers import TINY, finish

ENDS = (signal.SIGTERM, signal.SIGKILL)
WAIT = 300
"""Timeout of a process in seconds, many times its usual duration."""


def records(folder):
    """The records of a campaign without the fields that differ between equal runs."""
    collected = store.collect(folder / "runs")
    for record in collected:
        for key in INCIDENTAL:
            record.pop(key, None)
        for point in record["curve"]:
            del point["seconds"]
    return collected


def rounds_in(folder):
    """Number of rounds that the runs of a folder have trained."""
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("rounds.jsonl"))


def end(file, folder, *words):
    """The exit code of a campaign in a child process, and the output of the folder's campaigns."""
    return finish(fork_campaign(file, folder, *words), WAIT), (folder / "output.txt").read_text()


@pytest.mark.timeout(900)
def test_two_interruptions_change_nothing(tmp_path):
    """`test_ten_interruptions_change_nothing` in short."""
    assert interrupted(tmp_path, [(how, "often", 1) for how in ENDS], random.Random(0), rounds=40) > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_interruptions_change_nothing(tmp_path):
    """Interruptions at random moments by SIGTERM, SIGKILL or the time budget, on one device and sometimes on two."""
    chance = random.Random(0)
    first, ends = [*ENDS, *ENDS], [*ENDS, signal.SIGKILL, *[None] * 3]
    chance.shuffle(first)  # signals first, while work is left; later campaigns may finish it
    chance.shuffle(ends)
    places = [("mixed", 1 + index // 3 % 2) if index % 3 == 2 else ("often", 1) for index in range(10)]
    cases = [(how, *place) for how, place in zip(first + ends, places, strict=True)]
    assert interrupted(tmp_path, cases, chance, rounds=80) > 3


def interrupted(tmp_path, ends, chance, rounds):
    """Compares campaigns that are interrupted with one that is not; how many were cut before their last round.

    Their run is one whose clients and server keep state between rounds.
    ends: signal (None: the time budget), folder and number of devices of each interruption.
    """
    scenario = f"{TINY} federation.rounds={rounds} evaluation.every={rounds // 2}"
    file = write_campaign(tmp_path, parts=[{"scenarios": [scenario], "methods": ["scaffold"], "seeds": [0]}])
    whole, often, mixed = (tmp_path / name for name in ("whole", "often", "mixed"))
    assert end(file, whole, "devices=1")[0] == 0
    cut = 0
    for how, name, devices in ends:
        folder = tmp_path / name
        if how is None:
            code, output = end(file, folder, f"devices={devices}", f"minutes={chance.uniform(5, 9) / 60}")
            assert code == 0, output
            continue
        before, more, until = rounds_in(folder), chance.randint(0, 9), time.monotonic() + WAIT
        campaign = fork_campaign(file, folder, f"devices={devices}")
        while rounds_in(folder) < before + more and campaign.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.2))
        campaign.terminate() if how == signal.SIGTERM else campaign.kill()  # no error if the process has already ended
        assert finish(campaign, WAIT) in (0, 130, -signal.SIGTERM, -signal.SIGKILL)
        cut += rounds_in(folder) < rounds
    for folder, devices in ((often, 1), (mixed, 2)):
        if folder.exists():
            code, output = end(file, folder, f"devices={devices}")
            assert code == 0, output
    assert records(often) == records(whole)
    for record, undisturbed in zip(records(mixed), records(whole), strict=True) if mixed.exists() else ():
        # two ranks round differently from one, and a record states that its rounds were trained on both
        several = [[f"rounds were played by several numbers of ranks: {ranks}"] for ranks in ("1, 2", "2, 1")]
        common = undisturbed.pop("deviations")
        assert [line for line in record.pop("deviations") if line not in common] in [[], *several]
        different = {"world_size": 1, "scores": 0, "encoders": 0, "best": 0, "curve": 0}
        assert {**record, **different} == {**undisturbed, **different}
    return cut


@pytest.mark.timeout(900)
def test_two_campaigns_on_one_folder_share_the_jobs_and_a_failure_stops_neither(tmp_path):
    diverges = {**PART, "methods": ["fedavg optimizer.lr=1e30 row=hot"], "seeds": [0]}
    file = write_campaign(tmp_path, parts=[diverges, {**PART, "methods": ["fedavg"], "seeds": [0, 1, 2]}])
    both = {name: fork_campaign(file, tmp_path, "devices=1", output=name) for name in ("output0", "output1")}
    codes = [finish(campaign, 2 * WAIT) for campaign in both.values()]
    outputs = [(tmp_path / name).read_text() for name in both]
    assert sorted(codes) == [0, 2], outputs  # the failed job belongs to one of them
    jobs = load_jobs([file], [f"output={tmp_path}/runs"])
    assert [job_state(job).kind for job in jobs] == [Status.FAILED, *[Status.DONE] * 3]
    assert "lower optimizer.lr" in job_state(jobs[0]).why
    assert [len(read_sessions(job.folder)) for job in jobs] == [1] * 4
    assert all("failed: tiny hot seed 0" in output for output in outputs)
    finished = [output.count(": done, knn/v1 ") for output in outputs]
    assert sum(finished) == 3
    assert finished[codes.index(0)], "one of the two did nothing"


@pytest.mark.timeout(900)
def test_a_refused_run_is_tried_again_by_the_next_campaign(tmp_path):
    """The run is half done; then a campaign gives nodes=2, which is not possible here."""
    file = write_campaign(tmp_path, parts=[{**PART, "methods": ["fedavg"], "seeds": [0]}])
    (job,) = load_jobs([file], [f"output={tmp_path}/runs"])
    record_session(job, 2)
    before = read_sessions(job.folder)
    code, output = end(file, tmp_path, "nodes=2", "devices=1")
    assert code == 2
    assert "tiny fedavg seed 0: failed after 2 of 3 rounds: nodes=2 needs torchrun" in output
    assert read_sessions(job.folder) == before
    assert job_state(job).kind == Status.HALF


@pytest.mark.parametrize("finished", [True, False])
def test_a_campaign_without_its_images_ends_at_once_and_finished_runs_need_none(tmp_path, capsys, finished):
    words = [f"data.root={tmp_path}", f"data.cache={tmp_path}", f"output={tmp_path}/runs", "accelerator=cpu"]
    for job in load_jobs(["fedx-table1"], words) if finished else ():
        job.folder.mkdir(parents=True)
        write_record(job, *job.protocols)
    assert main(["campaign", "fedx-table1", *words]) == (0 if finished else 2)
    out, err = capsys.readouterr()
    assert ("6 of 6 runs done" in out) == finished
    assert out.count("no data set 'cifar10'") == (0 if finished else 2)  # at once, and at the end
    assert ("failed: fedx/cifar10 " in out) != finished
    assert "next: " not in out
    assert ("6 of 6 runs failed or could not begin; see above for why" in err) != finished
    assert (tmp_path / "runs").exists() == finished


def test_wrong_words_are_refused(capsys):
    refused = {
        "": "got no name",
        "nope": "unknown campaign 'nope'",
        "ssd-main minutes=0": "minutes=0: give a number above 0",
        "ssd-main plan=maybe": "plan=maybe: give true or false",
        "ssd-main cluster=slurm": "cluster=slurm: give minutes= too",
        "ssd-main devices=999 accelerator=cpu": "devices=999: give auto, or a number of the",
        "ssd-main jobs=2.5 cluster=local minutes=1": "jobs=2.5: give a whole number",
        "ssd-main jobs=2": "jobs= and submit.KEY= are for a cluster",
        "ssd-main submit.gpus_per_node=1": "jobs= and submit.KEY= are for a cluster",
        "ssd-main minuts=2": "minuts=2: a campaign's file defines its runs (did you mean 'minutes'?)",
    }
    for words, message in refused.items():
        assert main(["campaign", *words.split()]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_of_a_cluster_share_the_runs(tmp_path):
    """On submitit's local cluster, whose jobs run here; in a child process, because submitit configures logging."""
    file = write_campaign(tmp_path, parts=[{**PART, "methods": ["fedavg"]}])
    words = [f"output={tmp_path}/runs", f"data.cache={tmp_path}/cache", "cluster=local", "jobs=2", "minutes=5"]
    command = [sys.executable, "-m", "benchmark", "campaign", file, *PLACEMENT, *words, "devices=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    where = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=environment, timeout=120, check=False, **where)
    assert done.returncode == 0, done.stdout
    assert "submitted for 5 minutes: " in done.stdout
    jobs, until = load_jobs([file], words[:1]), time.monotonic() + 300
    while (kinds := [job_state(job).kind for job in jobs]) != [Status.DONE] * 2 and time.monotonic() < until:
        time.sleep(0.5)
    assert kinds == [Status.DONE] * 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [["cluster=mars"], ["cluster=local", "submit.mem_gb=32GB"]])
def test_a_cluster_or_an_option_that_submitit_refuses_is_one_line(tmp_path, words):
    code, output = end(write_campaign(tmp_path), tmp_path, *words, "minutes=3")
    assert code == 2
    assert f"error: {words[0]}: " in output


def test_a_plan_submits_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmark.campaign.slurm.submit", lambda *_, **__: 1 / 0)
    words = ["campaign", write_campaign(tmp_path), "cluster=local", "minutes=1", f"output={tmp_path}/runs"]
    assert main([*words, "plan=true"]) == 0
    assert "0 of 4 runs done" in capsys.readouterr().out
