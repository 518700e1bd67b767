"""Runs that diverge, share a folder or fail on one of two ranks."""

import contextlib
import io
import json
import os
import re
import shutil
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.errors import EX_TEMPFAIL, BusyError, ConfigError
from benchmark.experiment.experiment import Experiment
from benchmark.tracking.progress import Display
from leaderboards import store
from methods.fedavg import FedAvg
from methods.scaffold import Scaffold
from tests.benchmark.cli.cli_helpers import checkpoint, control_c, interrupt
from tests.command_helpers import Job
from tests.run_helpers import TINY, finish, in_child, same


class Diverging(FedAvg):
    """FedAvg whose loss is NaN from the second round on, on clients with an odd id."""

    def receive(self, visit):
        super().receive(visit)
        self.broken = visit.round >= 1 and visit.client.id % 2

    def loss(self, out, batch):
        return super().loss(out, batch) * (float("nan") if self.broken else 1)


class Undeclared(FedAvg):
    """FedAvg whose replies on the second rank hold an entry that the phase does not declare."""

    def reply(self, visit):
        message, memory = super().reply(visit)
        return {**message, **({"extra": message["weights"]} if os.environ.get("LOCAL_RANK") == "1" else {})}, memory


class TestDivergence:
    ALL = ("scenario=all", "federation.participation=1")
    OVERFLOW = ("training.steps=1", "optimizer.lr=3e38", "training.batch_size=9")

    @pytest.mark.parametrize(
        ("method", "words", "line"),
        [
            ("fedavg", ("optimizer.lr=1e30", "training.epochs=3"), "the loss of client .*"),
            # SCAFFOLD divides by the sum of a client's learning rates, here 0, and keeps the result
            ("scaffold", ("optimizer.lr=0",), "keeps is not finite"),
            # one step overflows the weights; the loss is finite. Those of `local` stay, and its reply is empty
            ("local", OVERFLOW, "keeps is not finite"),
            ("fedavg", OVERFLOW, "what the clients replied as 'weights' is not finite"),
        ],
    )
    def test_what_is_not_finite_is_named(self, refused, tmp_path, method, words, line):
        assert re.search(f"{line} in round 1, phase 'fit'.* no round is done yet", refused("run", TINY, method, *words))
        assert not list(tmp_path.rglob("state.pt"))

    def test_a_suite_goes_on_and_says_so_at_the_end(self, call, tmp_path):
        """Past an impossible partition, a corrupt image, a divergence, and an objective that a method cannot have."""
        for name, split, label, index in product(("sound", "broken"), ("train", "test"), "ab", range(40)):
            file = tmp_path / "data" / name / split / label / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image = np.random.default_rng(index).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(image).save(file)
        corrupt = tmp_path / "data" / "broken" / "train" / "b" / "3.png"
        corrupt.write_bytes(corrupt.read_bytes()[:40])
        images = {"name": "sound", "root": f"{tmp_path}/data"}
        scenario = tmp_path / "four.yaml"
        scenario.write_text(yaml.safe_dump({**yaml.safe_load(Path(TINY).read_text()), "data": images}))
        rows = [
            "fedavg row=good",
            "fedavg row=impossible partition.min_size=400",
            "fedavg row=corrupt data.name=broken",
        ]
        rows += ["fedprox method.mu=1e30", "fedsc objective=simclr"]
        suite = tmp_path / "suite.yaml"
        suite.write_text(yaml.safe_dump({"scenarios": [f"{scenario} scenario=four"], "methods": rows, "seeds": [0]}))
        code, out, err = call("run", f"suite={suite}")
        assert code == 2
        stopped = [line.split(": stopped: ") for line in out.splitlines() if ": stopped: " in line]
        names = [f"four {row} seed 0" for row in ("impossible", "corrupt", "fedprox+mu=1e_30", "fedsc-simclr")]
        assert [name for name, _ in stopped] == names
        reasons = ("", "cannot read the image", "the loss of client", "FedSC shares correlation matrices")
        assert all(reason in line for reason, (_, line) in zip(reasons, stopped, strict=True))
        assert re.search(r"^ +– +good ", out, re.MULTILINE)  # on the board
        assert err.startswith(f"error: 4 of 5 runs stopped: {', '.join(names)}")
        assert [file.parents[1].name for file in tmp_path.rglob("result.json")] == ["good"]

    def test_the_last_good_round_is_kept(self, refused, call, tmp_path):
        overrides = ("method.class=tests.benchmark.cli.test_failures.Diverging", "row=own", *self.ALL)
        folder = tmp_path / "runs" / "all" / "own" / "seed0"
        line = refused("run", TINY, "fedavg", *overrides)
        assert "the loss of client 1 became nan in round 2, phase 'fit'" in line
        state = checkpoint(folder)
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        assert state["round"] == len(state["history"]) == len(lines) == 1
        assert call("run", TINY, "fedavg", "row=good", *self.ALL)[0] == 0
        good = (folder.parents[1] / "good/seed0/rounds.jsonl").read_text().splitlines()
        assert state["history"][0]["loss"] == json.loads(good[0])["loss"]
        assert line == refused("run", TINY, "fedavg", *overrides)
        assert same(checkpoint(folder)["server"], state["server"])


class Meddled(Scaffold):
    """SCAFFOLD during whose visits of the second round another process calls `evaluate` on the run's folder."""

    def __init__(self, objective, *, folder, **kwargs):
        super().__init__(objective, **kwargs)
        self.folder = Path(folder)

    def reply(self, visit):
        if visit.round == 1:
            assert finish(in_child(evaluate_and_note, self.folder)) == 0
        return super().reply(visit)


def evaluate_and_note(folder):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["evaluate", str(folder / "runs/tiny/own/seed0"), "trust=true"])
    with (folder / "call").open("a") as stream:
        stream.write(f"{code} is {err.getvalue().partition(' is ')[2].partition(':')[0]}\n")


class TestOneRunAFolder:
    def test_a_second_process_is_refused_and_takes_nothing_away(self, call, tmp_path):
        """`evaluate` on a running run would delete client state that the checkpoint does not list yet."""
        overrides = (f"method.class={__name__}.Meddled", f"method.folder={tmp_path}", "row=own")
        (tmp_path / "call").write_text("")
        code, _, err = call("run", TINY, "scaffold", *overrides)
        assert code == 0, err
        line = f"{EX_TEMPFAIL} is being used by another process"
        assert (tmp_path / "call").read_text().splitlines() == [line] * 2
        folder = tmp_path / "runs" / "tiny" / "own" / "seed0"
        assert call("evaluate", str(folder), "trust=true")[0] == 0
        assert checkpoint(folder)["round"] == 3

    def test_a_finished_run_says_what_it_was_not_asked_for(self, folder, call):
        code, out, _ = call("run", TINY, "fedavg", "evaluation.protocols=[knn/v1,geometry/v1]")
        assert code == 0
        assert f"it has no geometry/v1: python -m benchmark evaluate {folder} protocols=geometry/v1" in out

    def test_it_keeps_its_name_and_may_be_taken_up_elsewhere(self, folder, call, refused, tmp_path):
        for command in ("resume", "evaluate"):
            assert "row: fedavg -> other" in refused(command, str(folder), "row=other")
            assert "scenario: tiny -> other" in refused(command, str(folder), "scenario=other")
        assert call("evaluate", str(folder), f"data.cache={tmp_path / 'again'}", "protocols=geometry/v1")[0] == 0
        assert (tmp_path / "again").is_dir()
        assert "geometry/v1" in store.read(folder / "result.json")["scores"]

    def test_who_is_refused_writes_nothing(self, tmp_path):
        common = ("row=x", f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", "logger=csv")
        first, second = (
            Experiment(compose(TINY, "fedavg", [*common, f"optimizer.lr={rate}"]), Display(Console(quiet=True)))
            for rate in (0.01, 0.02)
        )
        second.refuse_changed_config()  # the folder is free
        with first.open():
            before = {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()}
            with pytest.raises(BusyError, match="is being used by another process"), second.open():
                pass
        with pytest.raises(ConfigError, match="holds a run of another config"), second.open():
            pass
        assert {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()} == before

    def test_a_file_system_without_locks(self, call, monkeypatch):
        unknown = Mock(side_effect=OSError(38, "Function not implemented"))
        monkeypatch.setattr("benchmark.experiment.lock.fcntl.flock", unknown)
        assert call("run", TINY, "fedavg", "federation.rounds=1")[0] == 0

    def test_a_folder_that_cannot_be_made_is_named(self, refused, tmp_path):
        (tmp_path / "runs").write_text("")
        assert str(tmp_path / "runs") in refused("run", TINY, "fedavg")

    def test_a_lost_memory_is_named(self, call, refused, tmp_path, monkeypatch):
        folder = tmp_path / "runs" / "tiny" / "scaffold" / "seed0"
        with monkeypatch.context() as patch:
            interrupt(patch, 4, control_c)
            assert call("run", TINY, "scaffold")[0] == 130
        shutil.rmtree(folder / "checkpoint" / "memory")
        assert "memory" in refused("resume", str(folder))

    def test_a_record_is_written_last(self, call, tmp_path, monkeypatch):
        folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
        with monkeypatch.context() as patch:
            patch.setattr("benchmark.tracking.plots.of_run", lambda *_: control_c())
            assert call("run", TINY, "fedavg")[0] == 130
        assert not (folder / "result.json").exists()
        assert call("run", TINY, "fedavg")[0] == 0
        assert {file.name for file in (folder / "figures").iterdir()} == {"partition.png", "curves.png"}


@pytest.mark.ranks
class TestTwoRanks:
    """Output of a run on two ranks: a board, a table and an error of either rank are printed once."""

    def test_a_suite_that_goes_on_past_an_error(self, tmp_path):
        suite = tmp_path / "mine.yaml"
        broken = "fedavg method.class=tests.benchmark.cli.test_failures.Undeclared row=broken"
        suite.write_text(yaml.safe_dump({"scenarios": [TINY], "methods": [broken, "scaffold"], "seeds": [0]}))
        job = Job(tmp_path, "devices=2", words=[f"suite={suite}", "federation.rounds=2", "scenario=short"])
        assert job.end(120) == [2], job.out.read_text()
        printed = job.out.read_text()
        once = ("short broken seed 0: stopped: ", "short scaffold seed 0: knn/v1", "seconds", "error: ")  # of the board
        assert {words: printed.count(words) for words in ("Traceback", *once)} == {"Traceback": 0} | dict.fromkeys(
            once, 1
        )
        assert store.read(tmp_path / "runs" / "short" / "scaffold" / "seed0" / "result.json")["world_size"] == 2

    def test_an_error_of_the_second_rank_is_an_error_of_the_run(self, tmp_path):
        own = ("method.class=tests.benchmark.cli.test_failures.Undeclared", "row=own")
        job = Job(tmp_path, "devices=2", words=[TINY, "fedavg", *own])
        assert job.end(120) == [2], job.out.read_text()
        (line,) = job.errors
        assert re.match("error: .*replied with extra, which phase 'fit' does not declare", line)
        assert "Traceback" not in job.out.read_text()
