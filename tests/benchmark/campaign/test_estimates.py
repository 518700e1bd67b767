"""Times of a plan, from recorded sessions."""

import pytest

from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import State, Status, job_state
from benchmark.campaign.summary import time_left
from benchmark.cli.main import main
from tests.benchmark.campaign.campaign_helpers import PART, PLACEMENT, record_session, write_campaign, write_record

UNTRAINED = State(Status.OPEN, 0)


def test_a_runs_own_rounds_count_before_those_of_its_row_and_of_its_scenario(four):
    fedavg, ssd, again, _ = four
    assert Estimates(four, "here").seconds(ssd, UNTRAINED) is None
    record_session(fedavg, 2)
    estimates = Estimates(four, "here")
    assert estimates.seconds(fedavg, State(Status.HALF, 2)) == 5 + 1 * 2.0
    assert estimates.seconds(again, UNTRAINED) == 5 + 3 * 2.0
    assert estimates.seconds(ssd, UNTRAINED) == 5 + 3 * 2.0  # as in the same scenario
    record_session(ssd, 1, seconds=9.0)
    assert Estimates(four, "here").round(ssd) == 2.0
    assert Estimates(four, "here").startup(ssd) == 6.0


def test_rounds_on_several_ranks_take_as_much_longer_on_one_device(four):
    record_session(four[0], 2, ranks=2)
    assert Estimates(four, "here").seconds(four[0], State(Status.HALF, 2)) == 5 + 1 * 2 * 2.0


def test_a_session_that_was_cut_short_does_not_count_for_the_startup(four):
    record_session(four[0], 2)
    record_session(four[1], 0, seconds=1785.0, end="stopped")
    record_session(four[2], 0, seconds=1785.0, end="failed")
    assert Estimates(four, "here").startup(four[3]) == 5.0


def test_another_machine_counts_only_if_this_one_has_no_sessions(four):
    record_session(four[0], 2)
    record_session(four[1], 2, machine="elsewhere", seconds=500.0)
    assert Estimates(four, "here").seconds(four[1], UNTRAINED) == 5 + 3 * 2.0
    assert Estimates(four, "nowhere").startup(four[1]) == (5 + 496) / 2


def test_an_unreadable_record_is_skipped(four):
    record_session(four[0], 2)
    (four[0].folder / "result.json").write_text("{")
    assert Estimates(four, "here").round(four[1]) == 2.0


@pytest.mark.parametrize("finished", [1, 2])
def test_the_plan_adds_the_recorded_startup_rounds_and_scoring_of_the_seeds_before(
    four, tmp_path, capsys, monkeypatch, finished
):
    """Each seed has 5 seconds of start-up, 3 rounds of 2 seconds, and the scoring in its record."""
    monkeypatch.setattr("benchmark.campaign.devices.processor", lambda: "processor")
    jobs = [four[0], four[2]]
    for job in jobs[:finished]:
        job.folder.mkdir(parents=True)
        scoring = write_record(job, "knn/v1")["seconds"]["evaluation"]
        record_session(job, 3, seconds=5 + 3 * 2.0 + scoring, end="done", machine="processor, 1 threads")
    states = [job_state(job) for job in jobs]
    assert [state.kind for state in states] == [Status.DONE, Status.DONE][:finished] + [Status.OPEN, Status.OPEN][
        finished:
    ]
    expected = (2 - finished) * (5 + 3 * 2.0 + scoring)
    assert time_left(jobs, states, Estimates(jobs, "processor, 1 threads")) == (pytest.approx(expected), 0)
    file = write_campaign(tmp_path, "fedavg", parts=[{**PART, "methods": ["fedavg"]}])
    assert main(["campaign", file, "plan=true", f"output={tmp_path}/runs", "devices=1", *PLACEMENT]) == 0
    output = capsys.readouterr().out
    assert f"{finished} of 2 runs done, {expected:.0f} s of work left" in output
    assert output.count("done") == finished + 1
