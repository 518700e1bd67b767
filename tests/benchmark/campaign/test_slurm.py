"""Campaigns as jobs of a cluster."""

import time

import pytest

from benchmark.campaign.jobs import Status, job_state, load_jobs
from benchmark.cli.main import main
from tests.benchmark.campaign.campaign_helpers import PART, fork_campaign, start_campaign, write_campaign
from tests.run_helpers import finish


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_of_a_cluster_share_the_runs(tmp_path):
    """On submitit's local cluster, whose jobs run here; in a child process, because submitit configures logging."""
    file = write_campaign(tmp_path, parts=[{**PART, "methods": ["fedavg"]}])
    campaign = start_campaign(file, tmp_path, "cluster=local", "jobs=2", "minutes=5", "devices=1")
    output = campaign.communicate(timeout=120)[0]
    assert campaign.returncode == 0, output
    assert "submitted for 5 minutes: " in output
    jobs, until = load_jobs([file], [f"output={tmp_path}/runs"]), time.monotonic() + 300
    while any(job_state(job).kind != Status.DONE for job in jobs) and time.monotonic() < until:
        time.sleep(0.5)
    assert [job_state(job).kind for job in jobs] == [Status.DONE, Status.DONE]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [["cluster=mars"], ["cluster=local", "submit.mem_gb=32GB"]])
def test_a_cluster_or_an_option_that_submitit_refuses_is_one_line(tmp_path, words):
    assert finish(fork_campaign(write_campaign(tmp_path), tmp_path, *words, "minutes=3")) == 2
    assert f"error: {words[0]}: " in (tmp_path / "output.txt").read_text()


def test_a_plan_submits_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmark.campaign.slurm.submit", lambda *_, **__: 1 / 0)
    words = ["campaign", write_campaign(tmp_path), "cluster=local", "minutes=1", f"output={tmp_path}/runs"]
    assert main([*words, "plan=true"]) == 0
    assert "0 of 4 runs done" in capsys.readouterr().out
