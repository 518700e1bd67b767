"""The half hour on a GPU: rehearsed on a CPU and on the simulated GPU, killed, out of time, and with failing cells."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from rich.console import Console

from benchmark.campaign.budget import Budget
from benchmark.errors import ConfigError
from benchmark.execution.cuda_graphs import CudaGraphs
from benchmark.experiment.factory import set_numerics
from benchmark.speed import report
from benchmark.speed.gpu import archive, checks, page, session, workers
from benchmark.speed.gpu.cells import Cell, Part, Results, Setting
from benchmark.speed.gpu.ladder import ladder, points
from benchmark.speed.gpu.parts import PARTS
from benchmark.speed.gpu.workers import Workers
from methods import trees
from tests import run_helpers
from tests.device import SimulatedGPU

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "how-to"
TINY = Setting("cpu", tiny=True)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A function from words to the exit code and what is printed; the files are in `tmp_path / "gpu"`."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)

    def run(*words):
        console = Console(file=io.StringIO(), width=200)
        return session.main([f"output={tmp_path / 'gpu'}", *words], console), console.file.getvalue()

    return run


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("cuda", marks=pytest.mark.long)])
def test_every_part_is_rehearsed(command, tmp_path, monkeypatch, accelerator):
    monkeypatch.chdir(ROOT)  # whose page is the template
    words = (f"accelerator={accelerator}", "tiny=true", "parts=contract,methods,ladder,views,evaluation")
    with SimulatedGPU(streams=False) if accelerator == "cuda" else contextlib.nullcontext() as gpu:
        code, printed = command(*words)
    assert gpu is None or gpu.replays > gpu.captures > 0
    assert code == 0, printed
    for part in PARTS[1:]:
        cells = Results(tmp_path / "gpu", part.name).cells
        assert [cell.name for cell in part.cells(TINY)] == list(cells)
        assert all(numbers["seconds"] > 0 and numbers["commit"] for numbers in cells.values())
        assert all(numbers.get("met", True) for numbers in cells.values())
    text = (tmp_path / "gpu" / "gpu.md").read_text()
    assert all(words in text for words in ("Sizes are tiny", "| convnet, 8, bf16-mixed |", "Nothing."))
    with zipfile.ZipFile(tmp_path / "gpu.zip") as packed:
        assert {"gpu/gpu.md", "gpu/machine.json", "gpu/ladder.json"} <= set(packed.namelist())
    before = (tmp_path / "gpu" / "ladder.json").read_bytes()
    if accelerator == "cpu":
        assert command(*words)[0] == 0  # nothing is measured twice
        assert (tmp_path / "gpu" / "ladder.json").read_bytes() == before


@pytest.mark.long
@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_authors_numbers_are_compared(command, tmp_path, monkeypatch, accelerator):
    monkeypatch.chdir(ROOT)
    with SimulatedGPU(streams=False) if accelerator == "cuda" else contextlib.nullcontext():
        assert command("parts=parity", f"accelerator={accelerator}", "tiny=true")[0] == 0
    (numbers,) = Results(tmp_path / "gpu", "parity").cells.values()
    measured = next(numbers[precision] for precision in ("float64", "float32") if precision in numbers)
    assert numbers["met"]
    assert numbers["steps"] > 0
    assert 0 < measured["weights"] < 1e-5


ONES = {"a": torch.ones(1), "b": torch.ones(1)}


def test_a_contract_that_is_broken_is_not_met(monkeypatch):
    original = checks._trained

    def otherwise(folder, row, setting, name, *words, **more):
        tree, reason = original(folder, row, setting, name, *words, **more)
        return (trees.map(lambda leaf: leaf * 1.01, tree) if name in ("resumed", "cpu") else tree), reason

    monkeypatch.setattr(checks, "_trained", otherwise)
    assert math.isnan(checks._difference({"a": torch.ones(1), "b": torch.tensor([math.nan])}, ONES))
    for numbers, same, other in (
        (checks._contract("fedavg", TINY), "repeated", "resumed"),
        (checks._row("local", False, TINY), "side by side", "on the CPU"),  # whose state is its clients'
    ):
        assert (numbers["met"], numbers["differences"][same]) == (False, 0)
        assert numbers["differences"][other] == pytest.approx(0.01, rel=0.1)


@pytest.mark.long
def test_it_goes_on_where_it_was_killed(tmp_path):
    command = [sys.executable, "-m", "benchmark.speed", "gpu", "accelerator=cpu", f"output={tmp_path / 'gpu'}"]
    command += ["parts=ladder,evaluation", "minutes=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    file, deadline = tmp_path / "gpu" / "ladder.json", time.monotonic() + 60
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
        while not (file.exists() and "images_per_second" in file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
    before = {name: numbers for name, numbers in json.loads(file.read_text()).items() if "error" not in numbers}
    assert len(before) < len(list(points(tiny=True)))
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = json.loads(file.read_text())
    assert set(after) == {point.name for point in points(tiny=True)}
    assert not any("error" in numbers for numbers in after.values())
    assert {name: after[name] for name in before} == before


class Clock:
    """Time that only cells take."""

    now = 0.0

    def __call__(self):
        return self.now


def half_hour(folder, clock=time.monotonic, minutes=1e6, started=0.0, jobs=1):
    console = Console(file=io.StringIO(), width=200)
    return session.HalfHour(TINY, folder, Budget(started, 60 * minutes, clock=clock), console, jobs)


def part(name, share, clock, durations):
    """A part whose cells take so many seconds."""

    def measure(duration):
        clock.now += duration
        return {"took": duration}

    def cells(setting):
        return [Cell(f"{k}", lambda duration=duration: measure(duration)) for k, duration in enumerate(durations)]

    return Part(name, share, cells, first=100)


class TestBudget:
    def test_no_cell_begins_that_is_expected_to_end_late(self, tmp_path):
        clock = Clock()
        made = part("a", 0.5, clock, [10] * 7)
        for left in ("4 cells", "1 cell", None):
            session_of = half_hour(tmp_path, clock, minutes=1, started=clock.now)
            session_of.measure([made], kept=0.5)
            rest = [f"a: {left} left; the same command goes on"] if left else []
            assert session_of.rest([made]) == rest  # a later command measures the rest alone
        assert [numbers["took"] for numbers in Results(tmp_path, "a").cells.values()] == [10] * 7
        assert clock.now == 70

    def test_a_part_leaves_later_ones_their_shares_as_far_as_they_need_them(self, tmp_path):
        clock = Clock()
        parts = [part("a", 0.4, clock, [10] * 9), part("b", 0.3, clock, [10] * 6), part("c", 0.1, clock, [])]
        session_of = half_hour(tmp_path, clock, minutes=1)
        session_of.measure(parts, kept=0.2)  # a until 30 s: b has 18 s, what follows 12 s, c needs none; b until 48 s
        assert [len(Results(tmp_path, name).cells) for name in "ab"] == [3, 1]
        session_of.measure(parts)
        assert clock.now == 60


def refusing(error):
    def refuse(*_, **__):
        raise error

    return refuse


def value(x):
    return {"value": x}


def fail():
    raise RuntimeError("a cell that fails")


class TestWorkers:
    def test_several_processes_measure_what_is_not_timed_and_one_that_ends_costs_its_pool(self, tmp_path, monkeypatch):
        asked: list[str] = []
        ours = SimpleNamespace(get_context=lambda kind: asked.append(kind) or run_helpers.CHILDREN)
        monkeypatch.setattr(workers, "multiprocessing", ours)
        end, bad = Cell("end", partial(os._exit, 1)), Cell("bad", fail)
        cells = [end, *(Cell(f"{k}", partial(value, k)) for k in range(4)), bad]
        part = Part("a", 1, lambda _: cells, timed=False)
        half = half_hour(tmp_path, jobs=2)
        half.measure([part])
        half.workers.close()
        found = Results(tmp_path, "a").cells
        assert {name: found[name].get("value") for name in ("2", "3", "bad")} == {"2": 2, "3": 3, "bad": None}
        assert found["bad"]["error"] == "RuntimeError: a cell that fails"
        assert found["end"]["error"] == "its process ended, or one beside it"
        assert set(found) == {cell.name for cell in cells}
        assert asked == ["spawn"] * 2  # CUDA cannot be used in a fork

    def test_what_was_finished_when_a_process_ended_counts(self, monkeypatch):
        """The pool's state, without processes: of two futures one is done, and the pool is broken at the next cell."""
        good, dead = Future(), Future()
        good.set_result(({"value": 1}, 0.1))
        dead.set_exception(BrokenProcessPool())
        futures, pools = [good, dead], []

        class Pool:
            def submit(self, *_):
                if not futures:
                    raise BrokenProcessPool
                return futures.pop(0)

            def shutdown(self, **_):
                pools.append(self)
                futures.append(again)

        again = Future()
        again.set_result(({"value": 3}, 0.1))
        three = Workers(3)
        three.pool = Pool()
        monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *_: Pool())
        measured = three.measure([Cell(name, fail) for name in "abc"], TINY, lambda: True)
        made = {cell.name: numbers for cell, numbers, _ in measured}
        assert made == {"a": {"value": 1}, "b": {"error": "its process ended, or one beside it"}, "c": {"value": 3}}
        assert len(pools) == 1

    def test_none_begins_when_the_time_is_up(self, tmp_path):
        half = half_hour(tmp_path, Clock(), minutes=1, jobs=2)
        half.measure([Part("a", 1, lambda _: [Cell("a", fail)], first=1000, timed=False)])
        assert not Results(tmp_path, "a").cells


class TestFailures:
    def test_others_go_on_and_it_is_tried_again_last(self, tmp_path):
        broken, order = [True], []

        def fails():
            order.append("bad")
            if broken:
                raise RuntimeError("CUDA error:\n an illegal address")
            return {"value": 1.0}

        def works(name):
            order.append(name)
            return {"value": 2.0}

        names = ["good"]
        made = Part("a", 1, lambda _: [Cell("bad", fails), *(Cell(n, partial(works, n)) for n in names)])
        first, second = half_hour(tmp_path), half_hour(tmp_path)
        first.measure([made])
        first.measure([made])  # once a command
        assert first.wrong([made])
        found = Results(tmp_path, "a").cells
        assert found["bad"]["error"] == "RuntimeError: CUDA error: an illegal address"
        assert found["good"]["value"] == 2
        broken.clear()
        names.append("new")
        second.measure([made])
        assert not second.wrong([made])
        assert order == ["bad", "good", "new", "bad"]

    def test_a_cell_that_ends_the_process_is_named(self, tmp_path):
        made = Part("a", 1, lambda _: [Cell("bad", refusing(KeyboardInterrupt()))])
        with pytest.raises(KeyboardInterrupt):
            half_hour(tmp_path).measure([made])
        assert Results(tmp_path, "a").cells["bad"]["error"] == "it was begun, and the process ended"

    def test_what_a_run_set_is_taken_back(self, tmp_path):
        seen = []

        def sets():
            seen.append((torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()))
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.use_deterministic_algorithms(True)
            return {}

        half_hour(tmp_path).measure([Part("a", 1, lambda _: [Cell(name, sets) for name in "abc"])])
        set_numerics(tf32=False, deterministic=False)
        assert seen == [(False, False)] * 3

    def test_steps_that_were_not_recorded_are_not_called_so(self, tmp_path, monkeypatch):
        monkeypatch.setattr(CudaGraphs, "__call__", refusing(RuntimeError("operation not permitted in a capture")))
        with SimulatedGPU(streams=False):
            session_of = half_hour(tmp_path)
            session_of.setting = Setting("cuda", tiny=True)
            session_of.measure([Part("ladder", 1, lambda s: [c for c in ladder(s) if "recorded" in c.name])])
        errors = [numbers["error"] for numbers in Results(tmp_path, "ladder").cells.values()]
        assert errors
        assert all("steps were not recorded: RuntimeError: operation not permitted" in error for error in errors)

    def test_a_gpu_that_refuses_all_work_ends_it_with_the_page(self, command, tmp_path, monkeypatch):
        def fails():
            broken = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
            monkeypatch.setattr(torch, "zeros", refusing(broken))
            raise RuntimeError("CUDA error")

        monkeypatch.setattr(session, "PARTS", (Part("views", 1, lambda _: [Cell("bad", fails)]),))
        code, printed = command("accelerator=cpu")
        assert code == 75
        assert "error: the GPU refuses all work after an error (CUDA error: an illegal memory access was enc" in printed
        assert Results(tmp_path / "gpu", "views").cells["bad"]["error"] == "RuntimeError: CUDA error"
        assert (tmp_path / "gpu.zip").exists()

    def test_a_mistake_is_one_line_and_results_of_another_size_are_kept(self, command):
        lines = {
            "minutes=0": "minutes=0: give a number above 0",
            "minutes=soon": "minutes=soon: give",
            "parts=ladders": "there is no 'ladders'; choose of parity",
            "tiny=yes": "tiny=yes: give true or false",
            "jobs=two": "jobs=two: give a number of processes",
            "accelerator=tpu": "choose of auto, cuda, cpu",
            "minute=3": "unknown 'minute'",
            "pack=x": "data/cifar10: no such folder of images",
            "tiny=false": "holds results of tiny sizes, and these are full: give output=FOLDER",
        }
        assert command("parts=evaluation", "accelerator=cpu")[0] == 0
        for word, line in lines.items():
            code, printed = command("parts=evaluation", "accelerator=cpu", word)
            assert (code, printed[:7], line in printed) == (2, "error: ", True), printed


def test_a_campaign_has_the_rest_of_the_time(command, tmp_path, monkeypatch):
    called, ended = [], SimpleNamespace(returncode=0)
    monkeypatch.setattr(session, "subprocess", SimpleNamespace(run=lambda words, **_: called.append(words) or ended))
    words = ("parts=campaign", "campaign=ssd-main", "accelerator=cpu")
    assert command(*words, "minutes=0.5")[0] == 0
    assert not called
    assert command(*words, "minutes=3")[0] == 0
    ((_, _, program, verb, name, minutes, *rest),) = called
    assert (Path(program).name, verb, name) == ("fulcrum.py", "campaign", "ssd-main")
    assert 2.8 < float(minutes.removeprefix("minutes=")) <= 3 - session.CLOSING / 60 + 0.01
    assert {"logger=csv", f"output={tmp_path / 'gpu' / 'runs'}", "accelerator=cpu"} <= set(rest)


def test_its_runs_are_on_the_page_finished_or_not(tmp_path):
    records = sorted((ROOT / "leaderboards" / "results" / "cifar10-micro").rglob("seed0.json"))[:2]
    for file, name in zip(records, ("result.json", "partial.json"), strict=True):
        folder = tmp_path / "runs" / "cifar10-micro" / file.parent.name / "seed0"
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / name)
        record = json.loads(file.read_text())
        done = f"{record['rounds']['done']} of {record['rounds']['planned']}"
        assert f"| cifar10-micro, {record['row']}, seed 0 | {done} |" in page.tables(tmp_path)["campaign"]


class TestArchives:
    def test_a_data_set_travels_in_archives_below_the_limit(self, tmp_path):
        here, there, rng = tmp_path / "here", tmp_path / "there", torch.Generator().manual_seed(0)
        for name in (f"set/train/{label}/{number}.png" for label in "ab" for number in range(6)):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(torch.randint(256, (16, 16, 3), generator=rng).byte().numpy()).save(here / name)
        packed = archive.pack(here / "set", there, 5000)
        assert len(packed) > 1
        assert all(file.stat().st_size < 5000 for file in packed)
        assert archive.unpack(there) == ["set"]
        for file in here.rglob("*.png"):
            assert (there / file.relative_to(here)).read_bytes() == file.read_bytes()
        (there / "set/train/a/0.png").unlink()
        archive.unpack(there)  # once
        assert not (there / "set/train/a/0.png").exists()

    def test_records_come_back_before_checkpoints_of_unfinished_runs(self, tmp_path):
        runs = tmp_path / "gpu" / "runs"
        sizes = {"done/result.json": 500, "done/checkpoint/state.pt": 900, "half/rounds.jsonl": 600}
        sizes |= {"half/big.png": 4000, "half/checkpoint/state.pt": 300, "half/checkpoint/memory/a.pt": 300}
        sizes |= {"late/checkpoint/state.pt": 1500}
        for name, size in sizes.items():
            (runs / name).parent.mkdir(parents=True, exist_ok=True)
            (runs / name).write_bytes(os.urandom(size))
        (tmp_path / "gpu" / "ladder.json").write_text("{}")
        packed, left = archive.bring_back(tmp_path / "gpu", limit=4500)
        names = [name.removeprefix("gpu/").removeprefix("runs/") for name in zipfile.ZipFile(packed).namelist()]
        half = ["half/checkpoint/memory/a.pt", "half/checkpoint/state.pt"]
        assert names == ["ladder.json", "done/result.json", "half/rounds.jsonl", *half]
        assert [str(file.relative_to(runs)) for file in left] == ["half/big.png", "late/checkpoint/state.pt"]


class TestCarry:
    def test_checkout_results_and_wheels_are_laid_out_with_the_command(self, tmp_path, monkeypatch):
        root, results, fetched = tmp_path / "repo", tmp_path / "gpu", []
        results.mkdir()
        (results / "ladder.json").write_text("{}")
        root.mkdir()
        (root / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
        git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
            subprocess.run([*git, *words], check=True)
        monkeypatch.setattr(archive, "_download", lambda *words: fetched.append(words))
        *_, command = archive.carry(tmp_path / "out", "3.12", root, results)
        names = zipfile.ZipFile(tmp_path / "out" / archive.CHECKOUT).namelist()
        assert names == ["constraints.txt", "gpu/ladder.json"]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        assert f"FULCRUM_COMMIT={head} PYTHONPATH=site:. python3 -m benchmark.speed gpu minutes=9" in command
        ((wheels, _, python),) = fetched
        assert (len(wheels), python) == (len(archive.LACKING), "3.12")
        monkeypatch.setattr(archive, "LIMIT", 100)
        with pytest.raises(ConfigError, match="MB, more than"):
            archive.carry(tmp_path / "out", "3.12", root, results)
        (root / "constraints.txt").write_text("")
        with pytest.raises(ConfigError, match="has changes that are not committed"):
            archive.carry(tmp_path / "out", "3.12", root, results)
        with pytest.raises(ConfigError, match="is no checkout: fatal: not a git repository"):
            archive.carry(tmp_path / "out", "3.12", tmp_path, results)

    def test_wheels_of_all_that_these_need_and_that_the_machine_lacks_are_carried(self):
        there = {"pyyaml", "absl-py", "attrs", "mpmath", "numpy", "scipy", "wrapt"}
        needed = {
            re.match(r"[\w-]+", line)[0].lower().replace("_", "-")
            for name in archive.LACKING
            for line in metadata.requires(name) or ()
            if "extra ==" not in line
        }
        assert needed <= there | set(archive.LACKING)


def test_the_committed_page_is_rendered_from_what_was_measured_and_a_point_of_the_ladder_is_in_its_table():
    text = (DOCS / "gpu.md").read_text()
    assert report.fill(text, page.tables(DOCS / "gpu")) == text
    assert all(f"<!-- {name} -->" in text for name in session.TABLES)
    names = [point.name for point in points(tiny=False)]
    assert len(names) == len(set(names)) == 2 * 3 * 3 * 7
    table = page._ladder({name: {"images_per_second": k + 1.0, "memory_mib": 7} for k, name in enumerate(names)})
    _, _, first, *rest = table.splitlines()
    assert first.startswith("| resnet18, 64, bf16-mixed | 1.00 | 2.00 | 3.00 | 73.0 | 4.00 | 74.0 | ")
    assert len(rest) == 17
