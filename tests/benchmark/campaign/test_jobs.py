"""Jobs of campaigns' files, and their states."""

import subprocess
import sys

import pytest

from benchmark.campaign.jobs import State, Status, append_session, job_state, load_jobs, open_questions, read_sessions
from benchmark.campaign.summary import count_cells
from benchmark.configuration.files import available, summary
from benchmark.errors import ConfigError
from tests.benchmark.campaign.campaign_helpers import PART, record_session, write_campaign, write_record


def names(jobs):
    return [f"{job.config.row}/{job.config.seed}" for job in jobs]


def of(*methods):
    """A campaign's content: a part with these methods."""
    return {"parts": [{**PART, "methods": list(methods)}]}


class TestFiles:
    def test_jobs_come_part_by_part_and_seed_by_seed_and_once(self, tmp_path, four):
        assert names(four) == ["fedavg/0", "ssd/0", "fedavg/1", "ssd/1"]
        first = {**PART, "methods": ["ssd"], "seeds": [1]}
        file = write_campaign(tmp_path, parts=[first, PART])
        assert names(load_jobs([file], [])) == ["ssd/1", "fedavg/0", "ssd/0", "fedavg/1"]
        assert names(load_jobs([write_campaign(tmp_path, parts=[{**PART, "seeds": 0}])], [])) == ["fedavg/0", "ssd/0"]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"parts": []}, "parts is a list; each part has scenarios, methods, seeds"),
            ({"parts": 5}, "parts is a list"),
            ({"parts": PART}, "parts is a list"),
            ({"pieces": []}, "pieces is unknown; a campaign has parts and unknown"),
            ({"parts": [{**PART, "method": ["fedavg"]}]}, "part 1: give lines of scenarios, methods, seeds, not"),
            ({"parts": [PART, {**PART, "seeds": []}]}, "part 2: give lines of"),
            ({"parts": [{**PART, "seeds": None}]}, "part 1: give lines of"),
            ({"parts": ["ssd"]}, "part 1: give lines of scenarios, methods, seeds, not 'ssd'"),
            (of(""), "part 1: give lines of"),
            (of("fedavgg"), "fedavgg seed=0: unknown method 'fedavgg'"),
            (of("fedavg devices=2"), "devices=2: a campaign's file only defines its runs"),
            (of("fedavg row=same", "fedavg optimizer.lr=0.5 row=same"),
             r"tiny same seed 0 is two runs \(optimizer.lr: 0.05 -> 0.5\): give each a row="),
        ],
    )  # fmt: skip
    def test_a_malformed_file_is_refused(self, tmp_path, changes, message):
        with pytest.raises(ConfigError, match=message):
            load_jobs([write_campaign(tmp_path, **changes)], [])

    def test_a_file_that_is_not_utf_8_and_an_override_that_changes_what_a_run_is_are_refused(self, tmp_path):
        (tmp_path / "latin.yaml").write_bytes("parts: é".encode("latin-1"))
        with pytest.raises(ConfigError, match="not valid YAML"):
            load_jobs([str(tmp_path / "latin.yaml")], [])
        with pytest.raises(ConfigError, match=r"federation.rounds=1: a campaign's file defines its runs"):
            load_jobs([write_campaign(tmp_path)], ["federation.rounds=1"])

    def test_open_questions_are_one_line_or_several_or_none(self, tmp_path):
        for lines, expected in (("one, or two", ["one, or two"]), (["a", "b"], ["a", "b"]), (None, [])):
            assert open_questions(write_campaign(tmp_path, unknown=lines)) == expected

    def test_a_line_may_name_protocols(self, tmp_path):
        job, _ = load_jobs([write_campaign(tmp_path, **of("fedavg evaluation.protocols=[linear/v1]"))], [])
        assert job.words[-1] == "evaluation.protocols=[linear/v1]"
        assert sum(word.startswith("evaluation.protocols=") for word in job.words) == 1


class TestShippedCampaigns:
    @pytest.mark.parametrize("name", available("campaign"))
    def test_every_job_settles_cells_by_protocols_that_score_it(self, name):
        jobs, described = load_jobs([name], []), summary("campaign", name)
        assert ("GPU hours" in described, f"{len(jobs)} runs" in described) == (True, True)
        for job in jobs:
            assert job.cells, job.name
            requested = job.words[-1].removeprefix("evaluation.protocols=[").removesuffix("]").split(",")
            scores = {cell.ours.score.partition(" ")[0] for cell in job.cells}
            assert scores <= set(job.protocols) & set(requested)  # by the job's command

    def test_those_of_the_papers_settle_more_than_sixty_cells(self):
        jobs = load_jobs(["ssd-main", "fedx-table1", "flesd-table1", "orchestra-table1"], [])
        settled, cells = count_cells(jobs, [State(Status.DONE, 1)] * len(jobs))
        assert settled == cells > 60
        assert names(jobs)[:2] == ["fedavg-align_uniform/0", "ssd/0"]


class TestStates:
    def test_a_state_follows_from_the_folder(self, four):
        job = four[0]
        assert job_state(job) == State(Status.OPEN, 0)
        record_session(job, 2)
        assert job_state(job) == State(Status.HALF, 2)
        append_session(job.folder, {**read_sessions(job.folder)[-1], "end": "failed", "why": "it diverged"})
        assert job_state(job) == State(Status.FAILED, 2, why="it diverged")
        assert job_state(job, retry=True) == State(Status.HALF, 2)
        (job.folder / "result.json").write_text("{")
        assert "not a readable JSON file" in job_state(job, retry=True).why
        write_record(job)
        assert job_state(job, retry=True) == State(Status.HALF, 5, missing=("knn/v1",))
        write_record(job, "knn/v1")
        assert job_state(job) == State(Status.DONE, 5)

    def test_a_living_process_makes_a_job_busy_and_a_dead_one_does_not(self, four):
        job = four[0]
        job.folder.mkdir(parents=True)
        code = "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        code += "print('locked', flush=True); time.sleep(60)"
        command = [sys.executable, "-c", code, job.folder / "lock"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            assert job_state(job).kind == Status.BUSY
            assert job_state(job, check_lock=False).kind == Status.OPEN
            other.kill()
        assert (job.folder / "lock").exists()
        assert job_state(job).kind == Status.OPEN
