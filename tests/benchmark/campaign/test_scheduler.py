"""Which jobs a campaign starts, on which devices, the states of jobs that have ended, and the times of a plan."""

import io
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from benchmark.campaign import devices, scheduler
from benchmark.campaign.budget import Budget
from benchmark.campaign.devices import Machine, find_machine
from benchmark.campaign.estimates import Estimates
from benchmark.campaign.jobs import State, Status, job_state, load_jobs, read_sessions
from benchmark.campaign.scheduler import Scheduler
from benchmark.campaign.summary import failure_reason, time_left
from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.errors import BusyError, ConfigError
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.lock import try_lock
from benchmark.runtime import LOCKED_BY_PARENT
from benchmark.tracking.progress import Display
from tests.benchmark.campaign.campaign_helpers import PART, PLACEMENT, record_session, write_campaign, write_record
from tests.run_helpers import TINY

FOUR_CORES = Machine("here", False, ("0", "1", "2", "3"), 1)


def build_scheduler(jobs, **options):
    display = Display(Console(file=io.StringIO()))
    return Scheduler(jobs, [], FOUR_CORES, display, lambda: Estimates(jobs, "here"), Budget(0.0), **options)


def test_the_reason_of_a_failure_is_the_error_and_not_the_last_line():
    raised = "Traceback (most recent call last):\n  File x\n    y()\nCudaError: broken\nCompile with X\n"
    outputs = ("round 1\nerror: it diverged\n", raised, "Killed\n", "")
    assert [failure_reason(output) for output in outputs] == ["it diverged", "CudaError: broken", "Killed", ""]


def test_a_failure_of_this_campaign_is_not_tried_again(four):
    campaign = build_scheduler(four, retry=True)
    record_session(four[0], 1, end="failed", began="2026-01-01T00:00:00+00:00")
    assert campaign.job_state(four[0]).kind == Status.HALF
    record_session(four[0], 1, end="failed", began="2999-01-01T00:00:00+00:00")  # of a campaign started beside it
    assert campaign.job_state(four[0]).kind == Status.FAILED


def test_without_a_limit_of_time_none_is_estimated_before_a_run_begins(four):
    """Of hundreds of runs it took seconds, in which a device had no work."""
    campaign, started = build_scheduler(four), []
    campaign.estimates = pytest.fail
    campaign.start = lambda job, *_: started.append(job.name)
    campaign.start_jobs()
    assert started == [job.name for job in four]


class TestDevices:
    def test_one_each_while_there_are_enough_jobs_then_spare_ones_as_ranks(self):
        (job, *_) = load_jobs(["fedx-table1"], [])  # ten clients a round
        for waiting, free, count in ((9, 4, 1), (4, 1, 1), (2, 4, 2), (1, 2, 2), (1, 1, 1)):
            campaign = build_scheduler([job])
            campaign.free = campaign.free[:free]
            assert campaign.device_count(job, State(Status.OPEN, 0), waiting) == count

    def test_no_more_than_the_cohort_and_one_for_scoring(self, four):
        assert build_scheduler(four).device_count(four[0], State(Status.OPEN, 0), 1) == 2  # clients a round
        assert build_scheduler(four).device_count(four[0], State(Status.HALF, 3, missing=("knn/v1",)), 1) == 1


class TestLock:
    @pytest.fixture
    def started(self, monkeypatch):
        """Arguments of the commands that the scheduler starts; each command fails at once."""
        commands, failed = [], SimpleNamespace(returncode=2)
        monkeypatch.setattr(scheduler, "start_command", lambda words, *_: commands.append(words) or failed)
        return commands

    def test_a_job_that_is_locked_or_has_another_state_is_not_started(self, four, started):
        campaign, job = build_scheduler(four), four[0]
        job.folder.mkdir(parents=True)
        with (job.folder / "lock").open("a") as file:
            assert try_lock(file)
            campaign.start(job, State(Status.OPEN, 0), 1)
            assert (campaign.running, campaign.free, started) == ([], list(FOUR_CORES.devices), [])
        record_session(job, 1)
        campaign.start(job, State(Status.OPEN, 0), 1)
        assert started == []

    def test_a_job_is_locked_until_its_session_is_recorded(self, four, started, monkeypatch):
        first, second, job = build_scheduler(four), build_scheduler(four), four[0]
        first.start(job, State(Status.OPEN, 0), 1)
        second.start(job, State(Status.OPEN, 0), 1)
        assert len(started) == 1
        append, states = scheduler.append_session, []
        look = lambda *given: (states.append(job_state(job).kind), append(*given))  # noqa: E731
        monkeypatch.setattr(scheduler, "append_session", look)
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
            for folder in ("", str(tmp_path)):
                monkeypatch.setenv(LOCKED_BY_PARENT, folder)
                with pytest.raises(BusyError), experiment.open():
                    pass
            monkeypatch.setenv(LOCKED_BY_PARENT, str(experiment.folder.resolve()))
            with experiment.open() as run:
                assert run.loop.round == 0


UNTRAINED = State(Status.OPEN, 0)


class TestTimes:
    def test_a_runs_own_rounds_count_before_those_of_its_row_and_of_its_scenario(self, four):
        fedavg, ssd, again, _ = four
        assert Estimates(four, "here").seconds(ssd, UNTRAINED) is None
        record_session(fedavg, 2)
        estimates = Estimates(four, "here")
        assert estimates.seconds(fedavg, State(Status.HALF, 2)) == 5 + 1 * 2.0
        assert estimates.seconds(again, UNTRAINED) == 5 + 3 * 2.0
        assert estimates.seconds(ssd, UNTRAINED) == 5 + 3 * 2.0  # as in the same scenario
        record_session(ssd, 1, seconds=9.0)
        assert (Estimates(four, "here").round(ssd), Estimates(four, "here").startup(ssd)) == (2.0, 6.0)

    def test_the_rounds_of_a_method_that_trains_nothing_tell_no_other(self, tmp_path):
        file = write_campaign(tmp_path, "floor", parts=[{**PART, "methods": ["untrained", "fedavg"], "seeds": [0]}])
        untrained, fedavg = load_jobs([file], [f"output={tmp_path}/runs"])
        record_session(untrained, 3)
        assert Estimates([untrained, fedavg], "here").round(untrained) == 2.0
        assert Estimates([untrained, fedavg], "here").round(fedavg) is None

    def test_rounds_on_several_ranks_take_as_much_longer_on_one_device(self, four):
        record_session(four[0], 2, ranks=2)
        assert Estimates(four, "here").seconds(four[0], State(Status.HALF, 2)) == 5 + 1 * 2 * 2.0

    def test_sessions_cut_short_unreadable_records_and_other_machines_do_not_count(self, four):
        """Another machine's sessions count only if this one has none."""
        record_session(four[0], 2)
        (four[0].folder / "result.json").write_text("{")
        record_session(four[1], 2, machine="elsewhere", seconds=500.0)
        for job, how in ((four[2], "stopped"), (four[3], "failed")):
            record_session(job, 0, seconds=1785.0, end=how)
        assert Estimates(four, "here").seconds(four[1], UNTRAINED) == 5 + 3 * 2.0
        assert Estimates(four, "here").round(four[3]) == 2.0
        assert Estimates(four, "nowhere").startup(four[1]) == (5 + 496) / 2

    @pytest.mark.parametrize("done", [1, 2])
    def test_the_plan_adds_the_recorded_startup_rounds_and_scoring_of_the_seeds_before(
        self, four, tmp_path, capsys, monkeypatch, done
    ):
        """Each seed has 5 seconds of start-up, 3 rounds of 2 seconds, and the scoring in its record."""
        monkeypatch.setattr("benchmark.campaign.devices.processor", lambda: "processor")
        jobs = [four[0], four[2]]
        for job in jobs[:done]:
            job.folder.mkdir(parents=True)
            scoring = write_record(job, "knn/v1")["seconds"]["evaluation"]
            record_session(job, 3, seconds=5 + 3 * 2.0 + scoring, end="done", machine="processor, 1 threads")
        states = [job_state(job) for job in jobs]
        assert [state.kind for state in states] == [Status.DONE] * done + [Status.OPEN] * (2 - done)
        expected = (2 - done) * (5 + 3 * 2.0 + scoring)
        assert time_left(jobs, states, Estimates(jobs, "processor, 1 threads")) == (pytest.approx(expected), 0)
        file = write_campaign(tmp_path, "fedavg", parts=[{**PART, "methods": ["fedavg"]}])
        assert main(["campaign", file, "plan=true", f"output={tmp_path}/runs", "devices=1", *PLACEMENT]) == 0
        output = capsys.readouterr().out
        assert f"{done} of 2 runs done, {expected:.0f} s of work left" in output
        assert output.count("done") == done + 1


class TestMachine:
    @pytest.fixture(autouse=True)
    def _no_launcher(self, monkeypatch):
        """Removes all launcher variables; a test sets those it needs."""
        for key in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_NAME"):
            monkeypatch.delenv(key, raising=False)

    def test_a_command_sees_its_devices_alone(self, monkeypatch, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        machine, started = find_machine("auto", "auto"), {}
        assert (machine.devices, find_machine(2, "auto").devices) == (("0", "1", "2", "3"), ("0", "1"))
        look = lambda words, **options: started.update(options, words=words)  # noqa: E731
        monkeypatch.setattr("benchmark.campaign.devices.subprocess.Popen", look)
        with (tmp_path / "log").open("w") as log, (tmp_path / "lock").open("w") as lock:
            devices.start_command(["run", "digits", "fedavg"], machine, ("1", "3"), log, lock, {"HELD": "folder"})
            assert started["pass_fds"] == (lock.fileno(),)
        assert started["words"][-2:] == ["devices=2", f"threads={machine.threads}"]
        assert (started["env"]["CUDA_VISIBLE_DEVICES"], started["env"]["HELD"]) == ("1,3", "folder")

    @pytest.mark.parametrize("names", [("LOCAL_RANK", "WORLD_SIZE"), ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")])
    def test_a_rank_of_a_launcher_is_refused(self, monkeypatch, names):
        for name in names:
            monkeypatch.setenv(name, "2")
        with pytest.raises(ConfigError, match="leave torchrun out, and give srun --ntasks=1"):
            find_machine("auto", "cpu")

    def test_only_visible_gpus_are_used(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
        assert find_machine("auto", "cuda").devices == ("GPU-a", "GPU-b")
        with pytest.raises(ConfigError, match="a number of the 2 GPUs that are here"):
            find_machine(3, "cuda")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        for change in (partial(monkeypatch.setenv, value="NoDevFiles"), monkeypatch.delenv):
            change("CUDA_VISIBLE_DEVICES")
            with pytest.raises(ConfigError, match="there is no GPU here"):
                find_machine("auto", "cuda")
