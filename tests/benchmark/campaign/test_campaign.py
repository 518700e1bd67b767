"""A campaign plays its pieces in order, once each, whatever happens to it on the way."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from benchmark.campaign import scheduler
from benchmark.campaign import summary as report
from benchmark.campaign.devices import machine, start
from benchmark.campaign.estimates import START, Estimates
from benchmark.campaign.jobs import (
    BUSY,
    CLAIM,
    DONE,
    FAILED,
    HALF,
    OPEN,
    State,
    jobs,
    look,
    note,
    sessions,
    unknown,
)
from benchmark.cli.runs import main
from benchmark.configuration.files import available, summary
from benchmark.errors import ConfigError
from leaderboards import store
from leaderboards.schema import INCIDENTAL
from tests.leaderboards.test_schema import record
from tests.run_helpers import TINY

PART = {"scenarios": [TINY], "methods": ["fedavg", "ssd"], "seeds": [0, 1]}


@pytest.fixture(autouse=True)
def _the_old_signal():
    """`main` takes SIGTERM for its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def written(folder: Path, name="campaign", **changes) -> str:
    """A campaign's file."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"parts": [PART], **changes}))
    return str(file)


@pytest.fixture
def four(tmp_path):
    """Two methods, two seeds."""
    return jobs([written(tmp_path)], [f"output={tmp_path}/runs"])


def names(found):
    return [f"{piece.config.row}/{piece.config.seed}" for piece in found]


class TestPieces:
    def test_they_come_part_by_part_and_seed_by_seed_and_once(self, tmp_path, four):
        assert names(four) == ["fedavg/0", "ssd/0", "fedavg/1", "ssd/1"]
        first = {**PART, "methods": ["ssd"], "seeds": [1]}
        assert names(jobs([written(tmp_path, parts=[first, PART])], [])) == ["ssd/1", "fedavg/0", "ssd/0", "fedavg/1"]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"parts": []}, "parts is a list; each part has scenarios, methods, seeds"),
            ({"parts": 5}, "parts is a list"),
            ({"parts": PART}, "parts is a list"),
            ({"pieces": []}, "pieces is unknown; a campaign has parts and unknown"),
            ({"parts": [{**PART, "method": ["fedavg"]}]}, "part 1: method is unknown; a part has scenarios"),
            ({"parts": [PART, {**PART, "seeds": []}]}, "part 2: seeds are missing"),
            ({"parts": [{**PART, "methods": [""]}]}, "part 1: methods are missing, or a line of them is empty"),
            ({"parts": ["ssd"]}, "part 1: 'ssd' is not one"),
            ({"parts": [{**PART, "methods": ["fedavgg"]}]}, "fedavgg seed=0: unknown method 'fedavgg'"),
        ],
    )
    def test_a_file_that_is_not_one_is_refused(self, tmp_path, changes, message):
        with pytest.raises(ConfigError, match=message):
            jobs([written(tmp_path, **changes)], [])

    def test_what_is_open_is_a_line_or_several_or_nothing(self, tmp_path):
        found = [unknown(written(tmp_path, unknown=given)) for given in ("one, or two", ["a", "b"], None)]
        assert found == [["one, or two"], ["a", "b"], []]
        (tmp_path / "latin.yaml").write_bytes("parts: é".encode("latin-1"))
        with pytest.raises(ConfigError, match="is not valid YAML"):
            jobs([str(tmp_path / "latin.yaml")], [])

    def test_two_runs_of_one_name_are_refused(self, tmp_path):
        lines = ["fedavg row=same", "fedavg optimizer.lr=0.5 row=same"]
        with pytest.raises(
            ConfigError, match=r"tiny same seed 0 is two runs \(optimizer.lr: 0.05 -> 0.5\): give each a row="
        ):
            jobs([written(tmp_path, parts=[{**PART, "methods": lines}])], [])

    def test_a_line_may_name_protocols_and_may_not_say_how(self, tmp_path):
        line = "fedavg evaluation.protocols=[linear/v1]"
        (piece,) = jobs([written(tmp_path, parts=[{**PART, "methods": [line], "seeds": [0]}])], [])
        assert piece.words[-1] == "evaluation.protocols=[linear/v1]"
        assert sum(word.startswith("evaluation.protocols=") for word in piece.words) == 1
        with pytest.raises(ConfigError, match="devices=2: a campaign's file says what is played"):
            jobs([written(tmp_path, parts=[{**PART, "methods": ["fedavg devices=2"]}])], [])

    def test_what_a_run_is_cannot_be_changed(self, tmp_path):
        with pytest.raises(ConfigError, match=r"federation.rounds=1: a campaign plays what its file says"):
            jobs([written(tmp_path)], ["federation.rounds=1"])

    @pytest.mark.parametrize("name", available("campaign"))
    def test_every_piece_of_a_shipped_one_settles_cells_by_protocols_it_is_scored_by(self, name):
        assert "GPU hours" in summary("campaign", name)
        assert str(len(jobs([name], []))) + " runs" in summary("campaign", name)
        for piece in jobs([name], []):
            assert piece.cells, piece.name
            asked = piece.words[-1].removeprefix("evaluation.protocols=[").removesuffix("]").split(",")
            for cell in piece.cells:
                protocol = cell.ours.score.partition(" ")[0]
                assert protocol in piece.protocols
                assert protocol in asked  # what its command is told

    def test_the_four_of_the_papers_settle_more_than_sixty_cells(self):
        every = jobs(["ssd-main", "fedx-table1", "flesd-table1", "orchestra-table1"], [])
        assert report.cells(every, [State(DONE, 1)] * len(every))[0] > 60
        assert names(every)[:2] == ["fedavg-align_uniform/0", "ssd/0"]


def begun(piece, rounds, **session):
    """A run folder in which a session played some rounds of two seconds and 100 images."""
    piece.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"round": k + 1, "seconds": 2.0, "images": 100}) for k in range(rounds)]
    (piece.folder / "rounds.jsonl").write_text("\n".join([*lines, '{"round": 9']))  # the machine went as it wrote
    about = {"from": 0, "to": rounds, "seconds": 2.0 * rounds + 5, "ranks": 1, "together": 1, "machine": "here"}
    note(piece.folder, {**about, "end": "paused", "why": "", **session})


def scored(piece, *protocols):
    config = piece.config
    scores = {one: {"accuracy": 50.0} for one in protocols}
    made = record(config.row, config.seed, scenario=config.scenario, scores=scores, encoders={"global": scores})
    store.write(piece.folder / "result.json", made)


class TestStates:
    def test_the_folder_tells(self, four):
        one = four[0]
        assert look(one) == State(OPEN, 0)
        begun(one, 2)
        assert look(one) == State(HALF, 2)
        note(one.folder, {**sessions(one.folder)[-1], "end": "failed", "why": "it diverged"})
        assert look(one) == State(FAILED, 2, why="it diverged")
        assert look(one, retry=True) == State(HALF, 2)
        (one.folder / "result.json").write_text("{")
        assert "not a readable JSON file" in look(one, retry=True).why
        scored(one)
        assert look(one, retry=True) == State(HALF, 5, missing=("knn/v1",))
        scored(one, "knn/v1")
        assert look(one) == State(DONE, 5)

    @pytest.mark.parametrize("name", [CLAIM, "lock"])
    def test_a_living_process_keeps_a_piece_and_a_dead_one_does_not(self, four, name):
        one = four[0]
        one.folder.mkdir(parents=True)
        locks = "f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True); time.sleep(60)"
        code = [sys.executable, "-c", f"import fcntl, sys, time; {locks}"]
        other = subprocess.Popen([*code, one.folder / name], stdout=subprocess.PIPE)
        other.stdout.readline()
        assert look(one).kind == BUSY
        other.kill()
        other.wait()
        assert (one.folder / name).exists()
        assert look(one).kind == OPEN


class TestEstimates:
    def test_by_the_runs_own_rounds_then_its_neighbours_then_images(self, four):
        fedavg, ssd, again, _ = four
        assert Estimates(four, "here").seconds(ssd, State(OPEN, 0)) is None
        begun(fedavg, 2)
        found = Estimates(four, "here")
        assert found.seconds(fedavg, State(HALF, 2)) == 5 + 1 * 2.0
        assert found.seconds(again, State(OPEN, 0)) == 5 + 3 * 2.0
        assert found.seconds(ssd, State(OPEN, 0)) == 5 + 3 * 2.0  # as many images a round, at 50 a second
        begun(ssd, 1, seconds=9.0)
        assert Estimates(four, "here").round(ssd) == 2.0
        assert Estimates(four, "here").start(ssd) == 6.0

    def test_a_session_that_was_cut_short_says_nothing_of_the_start(self, four):
        begun(four[0], 2)
        begun(four[1], 0, seconds=1785.0, end="stopped")
        begun(four[2], 0, seconds=1785.0, end="failed")
        assert Estimates(four, "here").start(four[3]) == 5.0

    def test_what_another_machine_took_says_nothing_where_this_one_is_known(self, four):
        begun(four[0], 2)
        begun(four[1], 2, machine="elsewhere", seconds=500.0)
        assert Estimates(four, "here").seconds(four[1], State(OPEN, 0)) == 5 + 3 * 2.0
        assert Estimates(four, "nowhere").start(four[1]) > 200

    def test_a_record_that_cannot_be_read_tells_nothing(self, four):
        begun(four[0], 2)
        (four[0].folder / "result.json").write_text("{")
        assert Estimates(four, "here").round(four[1]) == 2.0

    def test_a_papers_run_by_a_given_speed(self):
        (piece, *_) = jobs(["fedx-table1"], [])
        expected = START + 100 * 10 * 50_000 / 10_000
        assert Estimates([piece], "here", speed=10_000).seconds(piece, State(OPEN, 0)) == expected

    def test_devices_are_for_several_runs_until_one_on_all_was_measured_to_be_faster(self, four):
        wide = jobs(["fedx-table1"], [])[0]  # ten clients a round
        nothing = Estimates([wide], "here")
        found = [nothing.devices(wide, left, free, 4) for left, free in ((9, 4), (4, 1), (2, 4), (1, 2), (1, 1))]
        assert found == [1, 1, 2, 2, 1]
        fedavg, ssd, again, _ = four
        begun(fedavg, 1, ranks=1, together=2)  # 50 images a second, twice
        begun(again, 1, ranks=2, together=1)
        assert Estimates(four, "here").devices(again, 9, 2, 2) == 1
        assert Estimates(four, "here").devices(again, 1, 4, 4) == 2  # no more than the cohort
        (again.folder / "rounds.jsonl").write_text('{"round": 1, "seconds": 0.5, "images": 100}\n')
        assert Estimates(four, "here").devices(again, 9, 2, 2) == 2
        assert Estimates(four, "elsewhere").devices(again, 9, 2, 2) == 1
        assert Estimates(four, "here").devices(ssd, 9, 2, 2) == 1  # another row may exchange more


COMMON = ["logger=csv", "threads=1", "accelerator=cpu"]


def command(file, folder, *words):
    """A campaign in a process of its own."""
    given = [*COMMON, f"output={folder}/runs", f"data.cache={folder}/cache", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmark", "campaign", file, *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(folder):
    """The records, without what may differ."""
    found = store.collect(folder / "runs")
    for one in found:
        for key in INCIDENTAL:
            del one[key]
        for point in one["curve"]:
            del point["seconds"]
    return found


def total(folder):
    """Rounds played in all."""
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("rounds.jsonl"))


LONG = {
    "scenarios": [f"{TINY} federation.rounds=40 evaluation.every=20"],
    "methods": ["fedavg", "scaffold"],
    "seeds": [0],
}


@pytest.mark.timeout(600)
def test_ten_interruptions_change_nothing(tmp_path):
    """Ended at any moment, by a request, by force or by its budget, on one device and at times on two."""
    file = written(tmp_path, parts=[LONG])
    whole, often, mixed = (tmp_path / name for name in ("whole", "often", "mixed"))
    undisturbed = command(file, whole, "devices=1")
    assert undisturbed.wait(240) == 0, undisturbed.stdout.read()
    chance = random.Random(0)
    first, ends = [signal.SIGTERM, signal.SIGKILL] * 2, [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, *[None] * 3]
    chance.shuffle(first)
    chance.shuffle(ends)
    ends = first + ends  # signals come while there is work for sure, budgets may see the end of it
    cut = 0
    for number, end in enumerate(ends):
        folder, devices = (mixed, 1 + number // 3 % 2) if number % 3 == 2 else (often, 1)
        if end is None:
            one = command(file, folder, f"devices={devices}", f"minutes={chance.uniform(8, 12) / 60}")
            assert one.wait(120) == 0, one.stdout.read()
            continue
        one, begins = command(file, folder, f"devices={devices}"), total(folder)
        more, until = chance.randint(0, 9), time.monotonic() + 120
        while total(folder) < begins + more and one.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.2))
        one.send_signal(end)
        assert one.wait(120) in (0, 130, -signal.SIGTERM, -signal.SIGKILL), one.stdout.read()
        cut += total(folder) < 80
    assert cut > 3  # of seven by signals
    for folder, devices in ((often, 1), (mixed, 2)):
        last = command(file, folder, f"devices={devices}")
        assert last.wait(240) == 0, last.stdout.read()
    assert finished(often) == finished(whole)
    for one, other in zip(finished(mixed), finished(whole), strict=True):
        # two ranks round otherwise than one, and a record says so where its rounds were played on both
        assert one.pop("deviations") in [[]] + [
            [f"rounds were played by several numbers of ranks: {ranks}"] for ranks in ("1, 2", "2, 1")
        ]
        assert other.pop("deviations") == []
        apart = {"world_size": 1, "scores": 0, "encoders": 0, "best": 0, "curve": 0}
        assert {**one, **apart} == {**other, **apart}


@pytest.mark.timeout(300)
def test_two_on_one_folder_share_the_pieces_and_a_failure_stops_nobody(tmp_path):
    diverges = {**PART, "methods": ["fedavg optimizer.lr=1e30 row=hot"], "seeds": [0]}
    file = written(tmp_path, parts=[diverges, PART])
    both = [command(file, tmp_path, "devices=1") for _ in range(2)]
    said = [one.communicate(timeout=240)[0] for one in both]
    assert sorted(one.returncode for one in both) == [0, 2], said  # of whose runs one failed
    every = jobs([file], [f"output={tmp_path}/runs"])
    assert [look(piece).kind for piece in every] == [FAILED, *[DONE] * 4]
    assert "lower optimizer.lr" in look(every[0]).why
    assert [len(sessions(piece.folder)) for piece in every] == [1] * 5
    assert all("failed: tiny hot seed 0" in text for text in said)
    played = [len([line for line in text.split("\n") if ": done, knn/v1 " in line]) for text in said]
    assert sum(played) == 4
    assert all(played), "one of the two did nothing"


@pytest.mark.timeout(300)
def test_a_run_that_is_refused_is_tried_again_by_the_next_campaign(tmp_path):
    """Half played, then asked for in a way that cannot be."""
    file = written(tmp_path, parts=[{**PART, "methods": ["fedavg"], "seeds": [0]}])
    (piece,) = jobs([file], [f"output={tmp_path}/runs"])
    begun(piece, 2)
    before = sessions(piece.folder)
    one = command(file, tmp_path, "nodes=2")
    said = one.communicate(timeout=60)[0]
    assert one.returncode == 2, said
    assert "tiny fedavg seed 0: failed after 2 of 3 rounds: nodes=2 needs torchrun" in said
    assert sessions(piece.folder) == before
    assert look(piece).kind == HALF


@pytest.mark.timeout(300)
def test_the_plan_says_how_long_it_will_take(tmp_path, capsys):
    """After one seed, for the next: within 30 % of what it took, on a machine that is as busy as before."""
    one, on = {**LONG, "methods": ["fedavg"]}, machine(1, "cpu")
    files = [written(tmp_path, f"seed{seed}", parts=[{**one, "seeds": [seed]}]) for seed in range(4)]
    assert command(files[0], tmp_path, "devices=1").wait(120) == 0
    for number in (1, 2, 3):  # somebody else's load that comes or goes meanwhile is no plan's fault
        every = jobs(files[: number + 1], [f"output={tmp_path}/runs", *COMMON])
        expected, unknown = report.left(every, [look(piece) for piece in every], Estimates(every, on.name))
        assert unknown == 0
        assert command(files[number], tmp_path, "devices=1").wait(120) == 0
        (took,) = [session["seconds"] for session in sessions(every[-1].folder)]
        if expected == pytest.approx(took, rel=0.3):
            break
    assert expected == pytest.approx(took, rel=0.3)
    assert main(["campaign", *files[: number + 1], "plan=true", f"output={tmp_path}/runs"]) == 0
    said = capsys.readouterr().out
    assert f"{number + 1} of {number + 1} runs done, 0 s of work left" in said
    assert "40/40" in said


class TestMachine:
    def test_a_launchers_processes_share_the_devices_and_their_runs_are_nobodys_ranks(self, monkeypatch, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
        assert machine("auto", "auto").devices == ("0", "1", "2", "3", "4")
        assert machine(2, "auto").devices == ("0", "1")
        for key, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(key, value)
        mine = machine("auto", "auto")
        assert mine.devices == ("1", "3")
        with monkeypatch.context() as patch:
            patch.setenv("SLURM_GPUS_PER_TASK", "5")
            assert len(machine("auto", "auto").devices) == 5  # they are this task's own
        seen: dict = {}
        monkeypatch.setattr(
            "benchmark.campaign.devices.subprocess.Popen", lambda words, **how: seen.update(how, words=words)
        )
        start(["run", "digits", "fedavg"], mine, ("1", "3"), (tmp_path / "log").open("w"))
        assert seen["words"][-2:] == ["devices=2", f"threads={mine.threads}"]
        assert seen["env"]["CUDA_VISIBLE_DEVICES"] == "1,3"
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(seen["env"])

    def test_tasks_with_cores_or_gpus_of_their_own_keep_them(self, monkeypatch):
        for key in ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_PER_TASK", "LOCAL_RANK", "SLURM_JOB_NAME"):
            monkeypatch.delenv(key, raising=False)
        monkeypatch.setattr("benchmark.campaign.devices.cores", lambda: 4)
        monkeypatch.setattr("benchmark.distributed.launch.cores", lambda: 4)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        for key in ("LOCAL_RANK", "RANK"):
            monkeypatch.setenv(key, "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert machine("auto", "cpu").devices == ("1", "3")  # torchrun binds nobody
        for key in ("LOCAL_RANK", "RANK", "WORLD_SIZE"):
            monkeypatch.delenv(key)
        for key, value in {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}.items():
            monkeypatch.setenv(key, value)
        assert len(machine("auto", "cpu").devices) == 4
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
        assert machine("auto", "cuda").devices == ("0", "1")
        monkeypatch.setenv("SLURM_STEP_GPUS", "2,3")
        assert machine("auto", "cuda").devices == ("1",)

    def test_a_run_gets_one_instance_of_a_partitioned_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
        found = machine("auto", "cuda")
        assert (found.devices, found.most) == (("MIG-a", "MIG-b"), 1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert machine("auto", "cuda").most == 1

    def test_what_is_visible_is_what_there_is(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
        assert machine("auto", "cuda").devices == ("GPU-a", "GPU-b")
        with pytest.raises(ConfigError, match="a number of the 2 GPUs that are here"):
            machine(3, "cuda")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
        with pytest.raises(ConfigError, match="there is no GPU here"):
            machine("auto", "cuda")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        with pytest.raises(ConfigError, match="there is no GPU here"):
            machine("auto", "cuda")


def test_what_is_done_needs_no_images(tmp_path, capsys):
    words = [f"data.root={tmp_path}", f"data.cache={tmp_path}", f"output={tmp_path}/runs", "accelerator=cpu"]
    for piece in jobs(["fedx-table1"], words):
        piece.folder.mkdir(parents=True)
        scored(piece, *piece.protocols)
    assert main(["campaign", "fedx-table1", *words]) == 0
    assert "6 of 6 runs done" in capsys.readouterr().out


def test_without_its_images_a_campaign_ends_at_once(tmp_path, capsys):
    words = [f"data.root={tmp_path}", f"data.cache={tmp_path}", f"output={tmp_path}/runs", "accelerator=cpu"]
    assert main(["campaign", "fedx-table1", *words]) == 2
    out, err = capsys.readouterr()
    assert out.count("no data set 'cifar10'") == 2  # at once, and at the end
    assert "failed: fedx/cifar10 " in out
    assert "next: " not in out
    assert "6 of 6 runs failed or could not begin; why is said above" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.timeout(300)
def test_jobs_of_a_cluster_share_the_pieces(tmp_path):
    """On submitit's local cluster, which runs its jobs here; by commands, as it sets up logging for a process."""
    file = written(tmp_path, parts=[{**PART, "methods": ["fedavg"]}])
    one = command(file, tmp_path, "cluster=local", "jobs=2", "minutes=3", "devices=1")
    said = one.communicate(timeout=60)[0]
    assert one.returncode == 0, said
    assert "2 jobs of 3 minutes" in said
    every, until = jobs([file], [f"output={tmp_path}/runs"]), time.monotonic() + 120
    while any(look(piece).kind != DONE for piece in every) and time.monotonic() < until:
        time.sleep(0.5)
    assert [look(piece).kind for piece in every] == [DONE, DONE]
    for words in (["cluster=mars"], ["cluster=local", "submit.mem_gb=32GB"]):
        one = command(file, tmp_path, *words, "minutes=3")
        assert f"error: {words[0]}: " in one.communicate(timeout=60)[0]
        assert one.returncode == 2


def test_a_plan_submits_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmark.campaign.slurm.submit", lambda *_, **__: 1 / 0)
    words = ["campaign", written(tmp_path), "cluster=local", "minutes=1", f"output={tmp_path}/runs"]
    assert main([*words, "plan=true"]) == 0
    assert "0 of 4 runs done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "why"),
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
def test_the_reason_is_what_was_raised_and_not_the_last_line(said, why):
    assert report.reason(said) == why


def test_a_failure_of_this_campaign_is_not_tried_again(four):
    one = four[0]
    own = scheduler.Scheduler(four, [], machine(1, "cpu"), None, list, retry=True)
    begun(one, 1, end="failed", began="2026-01-01T00:00:00+00:00")
    assert own.look(one).kind == HALF
    begun(one, 1, end="failed", began="2999-01-01T00:00:00+00:00")  # of another that was started beside it
    assert own.look(one).kind == FAILED


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "got no name"),
        (["nope"], "unknown campaign 'nope'"),
        (["ssd-main", "minutes=0"], "minutes=0: give a number above 0"),
        (["ssd-main", "plan=maybe"], "plan=maybe: give true or false"),
        (["ssd-main", "cluster=slurm"], "cluster=slurm: give minutes= too"),
        (["ssd-main", "devices=999", "accelerator=cpu"], "devices=999: give auto, or a number of the"),
        (["ssd-main", "jobs=2.5", "cluster=local", "minutes=1"], "jobs=2.5: give a whole number"),
        (["ssd-main", "jobs=2"], "jobs=2: of which cluster?"),
        (["ssd-main", "submit.gpus_per_node=1"], "submit.gpus_per_node=1: of which cluster?"),
        (["ssd-main", "minuts=2"], "minuts=2: a campaign plays what its file says (did you mean 'minutes'?)"),
    ],
)
def test_words_that_cannot_be_are_refused(words, message, capsys):
    assert main(["campaign", *words]) == 2
    assert message in capsys.readouterr().err
