"""Which jobs a campaign starts, on how many devices, and the states of jobs that have ended."""

import io

import pytest
from rich.console import Console

from benchmark.campaign import scheduler
from benchmark.campaign.devices import Machine
from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import State, Status, job_state, load_jobs, read_sessions
from benchmark.campaign.scheduler import Scheduler
from benchmark.campaign.summary import failure_reason
from benchmark.configuration.compose import compose
from benchmark.errors import BusyError
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.lock import LOCKED_BY_PARENT, try_lock
from benchmark.tracking.progress import Display
from tests.benchmark.campaign.campaign_helpers import record_session
from tests.run_helpers import TINY

FOUR_CORES = Machine("here", False, ("0", "1", "2", "3"), 1)


def build_scheduler(jobs, **options):
    display = Display(Console(file=io.StringIO()))
    return Scheduler(jobs, [], FOUR_CORES, display, lambda: Estimates(jobs, "here"), **options)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("round 1\nerror: it diverged\n", "it diverged"),
        (
            "Traceback (most recent call last):\n  File x\n    y()\nCudaError: broken\nCompile with X\n",
            "CudaError: broken",
        ),
        ("Killed\n", "Killed"),
        ("", ""),
    ],
)
def test_the_reason_of_a_failure_is_the_error_and_not_the_last_line(output, reason):
    assert failure_reason(output) == reason


def test_a_failure_of_this_campaign_is_not_tried_again(four):
    campaign = build_scheduler(four, retry=True)
    record_session(four[0], 1, end="failed", began="2026-01-01T00:00:00+00:00")
    assert campaign.job_state(four[0]).kind == Status.HALF
    record_session(four[0], 1, end="failed", began="2999-01-01T00:00:00+00:00")  # of a campaign started beside it
    assert campaign.job_state(four[0]).kind == Status.FAILED


class TestDevices:
    @pytest.mark.parametrize(("waiting", "free", "devices"), [(9, 4, 1), (4, 1, 1), (2, 4, 2), (1, 2, 2), (1, 1, 1)])
    def test_one_each_while_there_are_enough_jobs_then_spare_ones_as_ranks(self, waiting, free, devices):
        (job, *_) = load_jobs(["fedx-table1"], [])  # ten clients a round
        campaign = build_scheduler([job])
        campaign.free = campaign.free[:free]
        assert campaign.device_count(job, State(Status.OPEN, 0), waiting) == devices

    def test_no_more_than_the_cohort_and_one_for_scoring(self, four):
        assert build_scheduler(four).device_count(four[0], State(Status.OPEN, 0), 1) == 2  # clients a round
        assert build_scheduler(four).device_count(four[0], State(Status.HALF, 3, missing=("knn/v1",)), 1) == 1


class TestLock:
    @pytest.fixture
    def started(self, monkeypatch):
        """Arguments of the commands that the scheduler starts; each command fails at once."""
        words_of_commands = []

        class Failed:
            returncode = 2

        def start_command(words, *_):
            words_of_commands.append(words)
            return Failed()

        monkeypatch.setattr(scheduler, "start_command", start_command)
        return words_of_commands

    def test_a_locked_job_is_not_started(self, four, started):
        campaign, job = build_scheduler(four), four[0]
        job.folder.mkdir(parents=True)
        with (job.folder / "lock").open("a") as file:
            assert try_lock(file)
            campaign.start(job, State(Status.OPEN, 0), 1)
            assert (campaign.running, campaign.free, started) == ([], list(FOUR_CORES.devices), [])

    def test_a_job_whose_state_has_changed_is_not_started(self, four, started):
        campaign, job = build_scheduler(four), four[0]
        record_session(job, 1)
        campaign.start(job, State(Status.OPEN, 0), 1)
        assert started == []

    def test_a_job_is_locked_until_its_session_is_recorded(self, four, started, monkeypatch):
        first, second, job = build_scheduler(four), build_scheduler(four), four[0]
        first.start(job, State(Status.OPEN, 0), 1)
        second.start(job, State(Status.OPEN, 0), 1)
        assert len(started) == 1
        append_session, states = scheduler.append_session, []

        def record_state_and_append(folder, session):
            states.append(job_state(job).kind)
            append_session(folder, session)

        monkeypatch.setattr(scheduler, "append_session", record_state_and_append)
        (job.folder / "rounds.jsonl").write_text("{}\n")
        first.finish(first.running[0])
        assert states == ["busy"]
        assert [session["end"] for session in read_sessions(job.folder)] == ["failed"]
        assert job_state(job).kind == Status.FAILED
        second.start(job, State(Status.OPEN, 0), 1)
        assert len(started) == 1

    def test_a_command_runs_in_the_folder_that_its_campaign_has_locked_for_it(self, tmp_path, monkeypatch):
        words = [f"output={tmp_path}/runs", f"data.cache={tmp_path}/cache", "logger=csv", "devices=1", "threads=1"]
        experiment = Experiment(compose(TINY, "fedavg", words), Display(Console(quiet=True)))
        experiment.folder.mkdir(parents=True)
        with (experiment.folder / "lock").open("a") as file:
            assert try_lock(file)
            with pytest.raises(BusyError), experiment.open():
                pass
            monkeypatch.setenv(LOCKED_BY_PARENT, str(experiment.folder.resolve()))
            with experiment.open() as run:
                assert run.loop.round == 0
            monkeypatch.setenv(LOCKED_BY_PARENT, str(tmp_path))
            with pytest.raises(BusyError), experiment.open():
                pass
