"""A suite's runs side by side: the records of runs one by one, whatever fails or is killed."""

import random
import re
import signal
import time

import pytest

from benchmark import runtime
from benchmark.campaign.jobs import read_sessions
from benchmark.campaign.suite import find_suite_machine, suite_jobs
from benchmark.configuration.compose import compose
from benchmark.configuration.identity import folder
from benchmark.errors import ConfigError
from benchmark.experiment.lock import try_lock
from benchmark.tracking.wandb_files import logged_rows
from leaderboards import store
from methods.fedavg import FedAvg
from tests.benchmark.campaign.campaign_helpers import fork_suite
from tests.benchmark.campaign.test_campaign import ENDS, WAIT, records, rounds_in
from tests.run_helpers import TINY, finish

ROWS = (TINY, "methods=fedavg,scaffold,untrained", "seeds=0,1")


def ended(folder, *words, **options):
    """The exit code of a command that does several runs, and what it has printed."""
    return finish(fork_suite(folder, *words, **options), WAIT), (folder / "output.txt").read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The place of runs that were done one by one."""
    folder = tmp_path_factory.mktemp("suite") / "alone"
    assert ended(folder, *ROWS, "jobs=1", "devices=1")[0] == 0
    return folder


def test_two_jobs_give_the_records_of_one_and_a_second_command_only_reads_them(alone, tmp_path):
    code, out = ended(tmp_path, *ROWS)  # jobs=auto
    assert code == 0, out
    assert records(tmp_path) == records(alone)
    assert [record["world_size"] for record in store.collect(tmp_path / "runs")] == [1] * 6
    assert re.search(r"^run \d of 6: \d done, .* left; now tiny ", out, re.MULTILINE)
    assert out.count("seeds") == 1  # one board
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*")}
    code, out = ended(tmp_path, *ROWS, "jobs=2")
    assert (code, out.count(": already done")) == (0, 6)
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.long)])
def test_kills_lose_nothing(alone, tmp_path, kills, capsys):
    """By SIGTERM or SIGKILL at random moments; a folder that is whole is compared, and another begun."""
    chance, cut, number = random.Random(kills), 0, 0
    while cut < kills:
        folder = tmp_path / str(number)
        before, more = rounds_in(folder), chance.randint(0, 6)
        child, until = fork_suite(folder, *ROWS, "jobs=2"), time.monotonic() + WAIT
        while rounds_in(folder) < before + more and child.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.2))
        how = chance.choice(ENDS)
        child.terminate() if how == signal.SIGTERM else child.kill()  # no error if the process has already ended
        code = finish(child, WAIT)
        assert code in (0, 130, -signal.SIGTERM, -signal.SIGKILL), (how, (folder / "output.txt").read_text())
        cut += code != 0
        if code == 0 or cut == kills:
            assert ended(folder, *ROWS, "jobs=2")[0] == 0
            assert records(folder) == records(alone)
            number += 1
    with capsys.disabled():
        print(f"\n{cut} kills in {number + 1} folders")  # noqa: T201


def test_a_failing_run_stops_no_other_and_a_bug_is_told_from_a_mistake(tmp_path):
    rows = "['fedavg optimizer.lr=1e30 row=hot', 'fedavg']"
    suite = tmp_path / "two.yaml"
    content = f"scenarios: ['{TINY}']\nmethods: {rows}\nseeds: [0]\n"
    suite.write_text(content)
    words = [f"suite={suite}", "jobs=2"]
    code, out = ended(tmp_path, *words)
    assert code == 2, out
    assert "tiny hot seed 0: failed after 0 of 3 rounds: " in out
    assert "error: 1 of 2 runs stopped: tiny hot seed 0; see above for why" in out
    assert [record["row"] for record in records(tmp_path)] == ["fedavg"]
    assert ended(tmp_path, *words)[1].count("failed after") == 2  # it is tried again
    bug = "fedavg method.class=tests.benchmark.campaign.test_suite.Broken row=bug"
    suite.write_text(content.replace("fedavg optimizer.lr=1e30 row=hot", bug))
    code, out = ended(tmp_path, *words, "scenario=other")
    assert code == 1, out
    assert "other bug seed 0: failed after 0 of 3 rounds: ZeroDivisionError: division by zero" in out
    assert "other bug seed 0: its traceback is in " in out
    assert sum(record["scenario"] == "other" for record in records(tmp_path)) == 1


def test_weights_and_biases_offline(tmp_path):
    environment = {"WANDB_MODE": "offline"}
    code, out = ended(tmp_path, TINY, "methods=fedavg", "seeds=0,1", "jobs=2", "logger=wandb", environment=environment)
    assert code == 0, out

    def rounds(file):
        rows = logged_rows(file.parents[2], file.stem.removeprefix("run-"), ("round",))
        return [round for _, round in rows]

    for file in (found := list(tmp_path.rglob("*.wandb"))):
        end = time.monotonic() + 30
        while rounds(file) != [1, 2, 3, None] and time.monotonic() < end:
            time.sleep(0.1)  # the files are written by W&B's own process, which may lag behind
        assert rounds(file) == [1, 2, 3, None]
    assert len(found) == 2


def test_without_time_the_exit_code_is_75_and_a_locked_run_is_named(tmp_path):
    words = (TINY, "methods=fedavg", "seeds=0,1", "jobs=2")
    code, out = ended(tmp_path, *words, "minutes=0.001")
    assert code == 75, out
    assert "time is up: 0 of 2 runs are done; every finished round is safe" in out
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed1"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        assert try_lock(file)
        code, out = ended(tmp_path, *words)
    assert code == 2, out
    assert f"tiny fedavg seed 1: stopped: {folder} is being used by another process" in out
    assert [record["seed"] for record in records(tmp_path)] == [0]
    assert [session["ranks"] for session in read_sessions(folder.with_name("seed0"))] == [1]


def test_a_command_started_for_one_of_the_runs_does_that_run_alone(call, tmp_path, monkeypatch):
    """As on GPUs, where the program is started again."""
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed1"
    monkeypatch.setenv(runtime.LOCKED_BY_PARENT, str(folder))
    assert call("run", TINY, "methods=fedavg,ssd", "seeds=0,1", "devices=1")[0] == 0
    assert [file.parent for file in tmp_path.rglob("result.json")] == [folder]


def test_the_words_of_such_a_command(tmp_path):
    config = compose(TINY, "fedavg", [f"output={tmp_path}"])
    (job,) = suite_jobs([config], ["suite=x", "devices=auto", "minutes=3", "threads=1"])
    assert job.words == ("suite=x", "threads=1")


@pytest.mark.parametrize(
    ("jobs", "runs", "words", "count"),
    [
        ("auto", 2, (), 2),
        ("auto", 1, (), None),  # fewer runs than cores: each on all of them
        ("auto", 9, ("devices=2",), None),
        ("auto", 9, ("threads=2",), None),
        ("auto", 9, ("threads=1",), 2),
        (1, 9, (), None),
        (2, 1, (), 2),
        (2, 9, ("devices=1",), 2),
        (2, 9, ("devices=2",), "jobs=2 devices=2: runs side by side have a device each"),
        (3, 9, (), "jobs=3: give auto, or a number of the 2 cores"),
        (True, 9, (), "jobs=True: give auto"),
        ("two", 9, (), "jobs=two: give auto"),
    ],
)
def test_how_many_runs_at_once(monkeypatch, jobs, runs, words, count):
    monkeypatch.setattr(runtime, "is_program", True)
    monkeypatch.setattr("benchmark.campaign.devices.cores", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    configs = [compose(TINY, "fedavg", ["accelerator=cpu", *words])] * runs
    if isinstance(count, str):
        with pytest.raises(ConfigError, match=count):
            find_suite_machine(jobs, configs)
        return
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match="there is no GPU here"):  # once, and not in every run
        find_suite_machine(jobs, [compose(TINY, "fedavg", ["accelerator=cuda", *words])] * runs)
    machine = find_suite_machine(jobs, configs)
    assert (machine and (len(machine.devices), machine.threads)) == (count and (count, 1))


def test_finished_runs_need_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    configs = [compose(TINY, "fedavg", ["accelerator=cuda", f"output={tmp_path}", f"seed={seed}"]) for seed in (0, 1)]
    for config in configs:
        with pytest.raises(ConfigError, match="there is no GPU here"):
            find_suite_machine(1, configs)
        folder(config).mkdir(parents=True)
        (folder(config) / "result.json").touch()
    assert find_suite_machine(1, configs) is None


class Broken(FedAvg):
    """A method with a bug."""

    def reply(self, visit):
        return 1 / 0
