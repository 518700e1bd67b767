"""Commands that score encoders: evaluate, tune, protocols on other data sets."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf
from PIL import Image

from benchmark.experiment import data
from benchmark.experiment.run import Run
from benchmark.experiment.tuning import parse_grid
from datamodules.sources import Source, Split
from eval.features import EvalError
from leaderboards import store
from tests.benchmark.cli.cli_helpers import checkpoint, control_c, interrupt
from tests.run_helpers import TINY, same


class TestEvaluate:
    def test_scores_of_other_protocols_stay_and_none_is_doubled(self, folder, call, tmp_path):
        first = store.read(folder / "result.json")
        assert set(first["scores"]) == {"knn/v1"}
        before = checkpoint(folder)
        assert call("evaluate", str(folder), "protocols=geometry/v1,label-free/v1")[0] == 0
        second = store.read(folder / "result.json")
        assert set(second["scores"]) == {"knn/v1", "geometry/v1", "label-free/v1"}
        del second["settings"]["optimizer.momentum"]  # like a record written before this setting existed
        first["settings"] = second["settings"]
        store.write(folder / "result.json", second)
        assert call("evaluate", str(folder))[0] == 0
        third = store.read(folder / "result.json")
        assert set(third["evaluated"]) == set(third["scores"])
        kept = set(first) - {"seconds", "scores", "encoders", "evaluated"}
        assert all(third[key] == second[key] == first[key] for key in kept)
        assert third["scores"] == third["encoders"]["global"] == second["scores"]
        assert third["scores"]["knn/v1"] == first["scores"]["knn/v1"]
        assert len(list(tmp_path.rglob("result.json"))) == 1
        assert same(checkpoint(folder), before)

    def test_what_cannot_be_measured_is_named_and_the_rest_is_kept(self, folder, call, refused, monkeypatch):
        monkeypatch.setattr("benchmark.tracking.plots.of_run", lambda *_: 1 / 0)  # a drawing error loses no score
        assert call("evaluate", str(folder), "protocols=geometry/v1")[0] == 1
        assert set(store.read(folder / "result.json")["scores"]) == {"knn/v1", "geometry/v1"}
        monkeypatch.undo()
        monkeypatch.setattr("eval.tsne.tsne", lambda *_: (_ for _ in ()).throw(EvalError("no map")))
        line = refused("evaluate", str(folder), "protocols=embed/v1,spectrum/v1")
        assert "has its record, but without embed/v1: no map" in line
        record = store.read(folder / "result.json")
        assert set(record["scores"]) == set(record["evaluated"]) == {"knn/v1", "geometry/v1", "spectrum/v1"}
        monkeypatch.setattr("eval.geometry.spectrum", lambda *_: (_ for _ in ()).throw(EvalError("no spectrum")))
        assert "without spectrum/v1: no spectrum" in refused("evaluate", str(folder), "protocols=spectrum/v1")
        assert store.read(folder / "result.json")["scores"] == record["scores"]

    def test_an_unknown_protocol_or_key_leaves_the_record_alone(self, folder, refused):
        before = (folder / "result.json").read_bytes()
        assert "unknown protocol 'knn/v7'" in refused("evaluate", str(folder), "protocols=knn/v7")
        assert "protocol" in refused("evaluate", str(folder), "protocol=knn/v1")
        assert (folder / "result.json").read_bytes() == before

    def test_a_folder_named_by_what_was_changed(self, call, tmp_path):
        """A folder whose path contains `=` is not read as an override."""
        assert call("run", TINY, "fedavg", "federation.rounds=1", "optimizer.lr=0.1")[0] == 0
        folder = str(tmp_path / "runs" / "tiny+federation.rounds=1" / "fedavg+optimizer.lr=0.1" / "seed0")
        assert call("evaluate", folder, "protocols=geometry/v1")[0] == 0
        assert call("resume", folder)[0] == 0
        assert set(store.read(Path(folder) / "result.json")["scores"]) == {"knn/v1", "geometry/v1"}

    def test_an_unfinished_run_can_still_be_finished(self, call, tmp_path, monkeypatch):
        folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
        with monkeypatch.context() as patch:
            interrupt(patch, 4, control_c)
            assert call("run", TINY, "fedavg")[0] == 130
        begun = (folder / "config.yaml").read_text()
        call("evaluate", str(folder))
        assert (folder / "config.yaml").read_text() == begun  # an evaluation's number of ranks is not saved
        assert call("resume", str(folder))[0] == 0
        assert checkpoint(folder)["round"] == 3
        assert store.read(folder / "result.json")["rounds"] == {"done": 3, "planned": 3}


def test_a_data_set_that_is_not_there_costs_its_protocol_alone(folder, call, refused, tmp_path):
    before, missing, where = store.read(folder / "result.json"), "transfer-cifar10/v1", f"data.root={tmp_path / 'none'}"
    assert missing in refused("evaluate", str(folder), f"protocols={missing}", where)  # nothing can be scored
    assert store.read(folder / "result.json") == before
    code, out, _ = call("evaluate", str(folder), f"protocols=spectrum/v1,{missing}", where)
    assert code == 0
    (line,) = [line for line in out.splitlines() if missing in line]
    assert re.search("cannot be measured: .*cifar10", line)
    assert store.read(folder / "result.json")["scores"].keys() == before["scores"].keys() | {"spectrum/v1"}
    shutil.rmtree(tmp_path / "runs")  # a run stops before it trains
    assert "cifar10" in refused("run", TINY, "fedavg", f"evaluation.protocols=[knn/v1,{missing}]", where)
    assert not (tmp_path / "runs").exists()


class TestTune:
    GRID = ("optimizer.lr=0.01,1", "partition.name=iid", "federation.rounds=1")

    def ranked(self, tmp_path, where="runs"):
        (file,) = (tmp_path / where).glob("*/*/*-seed0.json")
        return json.loads(file.read_text())

    def test_a_grid_is_ranked_without_a_label(self, call, tmp_path, monkeypatch):
        code, out, _ = call("tune", TINY, "fedavg", *self.GRID)
        assert code == 0
        ranked = self.ranked(tmp_path)
        lines = ranked["tried"]
        assert f"best: {lines[0]['point'][0]}" in out
        assert ranked["best"] == lines[0]["point"]
        assert all(set(line["evaluated"]) == {"git", "dirty", "hardware", "date"} for line in lines)
        assert "label-free/v1 0." in out
        assert {tuple(line["point"]) for line in lines} == {(f"optimizer.lr={rate}",) for rate in (0.01, 1)}
        scores = [line["score"] for line in lines]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) == 2
        table = out.partition("best: ")[0]
        places = [table.rindex(line["point"][0] + " ") for line in lines]
        assert places == sorted(places)

        def shuffled(*args, **kwargs):
            images, rng = source(*args, **kwargs), np.random.default_rng(0)
            splits = (Split(split.images, rng.permutation(split.labels)) for split in (images.train, images.test))
            return Source(images.name, *splits, images.classes, images.sha256)

        source = data.source
        monkeypatch.setattr(data, "source", shuffled)
        assert call("tune", TINY, "fedavg", *self.GRID, where="shuffled")[0] == 0
        again = self.ranked(tmp_path, "shuffled")["tried"]
        assert [line | {"evaluated": 0} for line in again] == [line | {"evaluated": 0} for line in lines]

    @pytest.mark.parametrize(
        ("overrides", "key", "values"),
        [
            ((), "optimizer.lr", ("0.03", "0.01", "0.003", "0.001")),
            # a target has its momentum in the grid, and what is given is not searched
            (("objective=byol", "optimizer.lr=0.05"), "objective.momentum", ("0.9", "0.99", "0.996")),
        ],
    )
    def test_without_a_grid_it_is_orchestras(self, call, tmp_path, overrides, key, values):
        assert call("tune", TINY, "fedavg", *overrides, "training.steps=1", "federation.rounds=1")[0] == 0
        tried = {tuple(line["point"]) for line in self.ranked(tmp_path)["tried"]}
        assert tried == {(f"{key}={value}",) for value in values}

    def test_the_score_is_held_against_accuracy_once_the_choice_is_written(self, call, tmp_path, monkeypatch):
        chosen = []
        evaluate = Run.evaluate

        def watched(run, protocols):
            chosen.append((list(protocols), list((tmp_path / "runs").glob("*/*/*-seed0.json"))))
            return evaluate(run, protocols)

        monkeypatch.setattr(Run, "evaluate", watched)
        code, out, err = call("tune", TINY, "fedavg", "compare=true", "optimizer.lr=0.01,0.1,1", *self.GRID[1:])
        assert code == 0, err
        assert [protocols for protocols, _ in chosen] == [["label-free/v1"]] * 3 + [["knn/v1"]] * 3
        assert all(bool(written) == (protocols == ["knn/v1"]) for protocols, written in chosen)
        records = [json.loads(file.read_text()) for file in (tmp_path / "runs").rglob("result.json")]
        x = [record["scores"]["label-free/v1"]["score"] for record in records]
        y = [record["scores"]["knn/v1"]["accuracy"] for record in records]
        assert f"correlate by {np.corrcoef(x, y)[0, 1]:.2f}" in out
        (picture,) = (tmp_path / "runs").glob("*/*/*-seed0.png")
        with Image.open(picture) as image:
            assert min(image.size) > 100

    @pytest.mark.parametrize(
        ("override", "values"),
        [
            ("heads.projector=[[8, 4],[16,8]]", ["[8, 4]", "[16,8]"]),
            ("heads.projector=[8,4],[16,8]", ["[8,4]", "[16,8]"]),
            ("heads.projector='[8,4]','[16,8]'", ["[8,4]", "[16,8]"]),
            ("schedule.milestones=[[0.5,0.8],[0.6]]", ["[0.5,0.8]", "[0.6]"]),
            ("optimizer.lr=0.01,0.1", ["0.01", "0.1"]),
        ],
    )
    def test_values_of_a_grid_may_be_lists(self, override, values):
        grid = parse_grid(TINY, "fedavg", [override, "schedule.name=step"])
        key = override.partition("=")[0]
        assert grid.points == [[f"{key}={value}"] for value in values]
        made = [OmegaConf.to_container(OmegaConf.create({"v": OmegaConf.select(c, key)}))["v"] for c in grid.configs]
        assert made == [yaml.safe_load(value) for value in values]

    def test_one_list_is_one_value(self):
        overrides = ["heads.projector=[8,4]", "optimizer.lr=0.01,0.1", "data.options={examples: 100, classes: 3}"]
        grid = parse_grid(TINY, "fedavg", overrides)
        assert len(grid.points) == 2
        assert {str(grid.output), *(config.output for config in grid.configs)} == {"runs-tune"}  # beside the runs

    def test_a_grid_over_what_makes_another_scenario(self, call, tmp_path):
        assert call("tune", TINY, "fedavg", "training.epochs=1,2", "federation.rounds=1")[0] == 0
        assert len(self.ranked(tmp_path)["tried"]) == 2

    def test_a_point_that_diverges_is_last_and_the_others_count(self, call, tmp_path):
        rates = "optimizer.lr=1e30,0.01"
        code, out, _ = call("tune", TINY, "fedavg", rates, "federation.rounds=1")
        assert (code, "best: optimizer.lr=0.01" in out) == (0, True)
        assert "fedavg+optimizer.lr=1e_30 seed 0: stopped: the loss of client" in out
        last = self.ranked(tmp_path)["tried"][-1]
        assert last == {"point": ["optimizer.lr=1e30"], "score": None, "alignment": None, "uniformity": None}
        err = call("tune", TINY, "fedavg", "optimizer.lr=1e30,2e30", "federation.rounds=1")[2]
        assert "every point of the grid failed" in err
        # the loss of an only step and its weights are finite, but the features of its encoder are not
        words = (rates, "training.steps=1", "training.batch_size=9", "federation.rounds=1")
        code, out, err = call("tune", TINY, "fedavg", *words, where="features")
        assert code == 0, err
        assert re.search("stopped: .*the encoder diverged", out)
        assert self.ranked(tmp_path, "features")["best"] == ["optimizer.lr=0.01"]

    def test_every_point_is_looked_at_before_the_first_is_played(self, refused, tmp_path):
        line = refused("tune", TINY, "fedavg", "federation.participation=0.5,abc", "federation.rounds=1")
        assert "federation.participation" in line
        assert not list(tmp_path.rglob("config.yaml"))
