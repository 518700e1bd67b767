"""The suite from Python, as the module's own example uses it."""

import hashlib
import json
import linecache
import sys
import types

import pytest
import torch

from benchmark import api
from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity
from benchmark.errors import ConfigError, count
from benchmark.tracking import provenance
from examples.fedexp import FedExP
from leaderboards import store
from leaderboards.schema import RecordError
from methods.objectives.spectral import Spectral
from tests.run_helpers import TINY


class Wide(Spectral):
    """An objective of one's own."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run: its config, record, and folder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("api")
    overrides = {"output": str(folder / "runs"), "data.cache": str(folder / "cache"), "logger": "csv"}
    config = api.compose(TINY, "fedavg", {**overrides, "federation.rounds": 2, "scenario": "mine"})
    return config, api.run(config, progress=False), folder / "runs" / "mine" / "fedavg" / "seed0"


class TestCompose:
    def test_a_mapping_and_words_are_one_config(self):
        values = {
            "optimizer.lr": 0.5, "evaluation.protocols": ["knn/v1"], "training.steps": None, "row": "1", "seed": 3,
        }  # fmt: skip
        words = ["optimizer.lr=0.5", "evaluation.protocols=[knn/v1]", "training.steps=null", "row=1", "seed=3"]
        expected = compose(TINY, "fedavg", words)
        assert api.compose(TINY, "fedavg", values) == api.compose(TINY, "fedavg", words) == expected

    def test_a_class_is_named_by_its_import_path_and_a_row_by_its_name(self):
        row = api.compose("digits", "fedavg-byol")  # of a suite
        assert (row.row, row.objective.name) == ("fedavg-byol", "byol")
        config = api.compose(TINY, FedExP, {"objective": Wide, "objective.mu": 3})
        words = [f"objective={__name__}.Wide", "objective.mu=3"]
        assert config == api.compose(TINY, "examples.fedexp.FedExP", words)
        assert config.row == "fedexp-wide+objective.mu=3"
        assert config.method["class"] == "examples.fedexp.FedExP"
        assert config.objective == {"name": f"{__name__}.Wide", "class": f"{__name__}.Wide", "mu": 3}

    def test_a_class_that_no_path_leads_to_or_that_would_be_taken_for_a_shipped_one_is_refused(self):
        class Inner(Spectral):
            pass

        own, shipped = "mine.FedAvg", "methods.objectives.simclr.SimCLR"
        for method, overrides, line in (
            (own, {}, f"{own} has the name of the shipped method .*give yours another name"),
            (
                "fedavg",
                {"objective": shipped},
                f"{shipped} has the name of the shipped objective .*give yours anoth",
            ),
            ("fedavg", {"objective": Inner}, "is within a function or a class: define it in a module or a cell"),
        ):
            with pytest.raises(ConfigError, match=line):
                api.compose(TINY, method, overrides)
        with pytest.raises(ConfigError, match=r"objective.class=nowhere.Loss: No module named 'nowhere'"):
            api.run(api.compose(TINY, "fedavg", {"objective": "nowhere.Loss"}))


class TestRun:
    def test_its_record_is_that_of_the_folder_and_it_prints_nothing_unless_asked(self, run, capsys):
        config, record, folder = run
        assert api.folder_of(config) == folder
        assert store.read(folder / "result.json") == record
        assert record["provenance"]["config"] == identity(config)
        capsys.readouterr()
        assert api.run(config, progress=False) == record
        assert capsys.readouterr() == ("", "")
        assert api.run(config) == record
        assert "already done" in capsys.readouterr().out

    def test_without_a_monitor_its_curve_has_the_loss_of_each_round(self, run):
        lines = [json.loads(line) for line in (run[2] / "rounds.jsonl").read_text().splitlines()]
        curve = run[1]["curve"]
        assert [(point["round"], point["loss"]) for point in curve] == [(line["round"], line["loss"]) for line in lines]
        assert len(curve) == 2
        assert set(curve[0]) == {"round", "bytes", "seconds", "loss"}

    def test_callbacks_see_every_hook_and_what_they_add_to_a_line_is_kept(self, tmp_path):
        called = []

        class Counting(api.Callback):
            def on_visit_end(self, loop, result):
                called.append((loop.round, result.visit.client.id))

            def on_round_trained(self, loop, line):
                line["visits"] = len(called) if "monitor" in line else None

        config = api.compose(TINY, "fedavg", {**self.where(tmp_path), "evaluation.every": 1})
        record = api.run(config, callbacks=[Counting()], progress=False)
        lines = [json.loads(line) for line in (api.folder_of(config) / "rounds.jsonl").read_text().splitlines()]
        assert [line["visits"] for line in lines] == [2, 4, 6]
        assert sorted(called) == [(line["round"] - 1, client) for line in lines for client in line["drawn"]]
        assert [point["loss"] for point in record["curve"]] == [line["loss"] for line in lines]
        api.run(config, callbacks=[Counting()], progress=False)  # is finished
        assert len(called) == 6

    def test_callbacks_of_another_kind_and_values_that_no_file_holds_are_refused_in_a_line(self, tmp_path):
        class Tensors(api.Callback):
            def on_round_trained(self, loop, line):
                line["norm"] = torch.ones(())

        config = api.compose(TINY, "fedavg", self.where(tmp_path))
        for wrong in (api.Callback(), [api.Callback], [print], None):
            with pytest.raises(ConfigError, match=r"callbacks=\[Mine\(\)\]"):
                api.run(config, callbacks=wrong, progress=False)
        with pytest.raises(ConfigError, match="a callback has put a Tensor into the round's line as 'norm'"):
            api.run(config, callbacks=[Tensors()], progress=False)
        assert api.run(config, progress=False)["rounds"]["done"] == 3  # nothing is lost

    def where(self, tmp_path):
        return {"output": str(tmp_path / "runs"), "data.cache": str(tmp_path / "cache"), "logger": "csv"}

    def test_more_protocols(self, run, tmp_path):
        _, record, folder = run
        scored = api.evaluate(folder, ["geometry/v1"], progress=False)
        assert scored["scores"].keys() == record["scores"].keys() | {"geometry/v1"}
        assert store.read(folder / "result.json")["scores"] == scored["scores"]
        with pytest.raises(ConfigError, match="is not a run folder"):
            api.evaluate(tmp_path)

    def test_its_encoder_is_in_eval_mode_and_its_features_are_the_outputs(self, run):
        folder = run[2]
        features, encoder = api.features_of(folder), api.encoder_of(folder)
        assert not encoder.training
        with api.opened(folder, api._display(False)) as opened, torch.no_grad():
            images = torch.from_numpy(opened.evaluator.images.train.images[:5].copy()) / 255
        torch.testing.assert_close(features.train_x[:5], encoder(images), rtol=1e-5, atol=1e-6)
        assert torch.equal(encoder(images), api.encoder_of(folder, name="global")(images))
        assert (features.test_x.shape, features.num_classes) == ((len(features.test_y), encoder.dim), 3)
        with pytest.raises(ConfigError, match=r"encoder=locl.*: choose one of this run's"):
            api.encoder_of(folder, name="locl")


def cell(source):
    """What a cell of a notebook defines; its module has no file."""
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
    module = types.ModuleType("cell")
    module.torch = torch
    exec(compile(source, "<cell>", "exec"), module.__dict__)
    return module


def test_an_edited_class_of_a_notebook_is_not_taken_for_its_finished_run(tmp_path, monkeypatch):
    overrides = {"output": str(tmp_path), "data.cache": str(tmp_path / "cache"), "logger": "csv"}

    def run(source):
        monkeypatch.setitem(sys.modules, "cell", made := cell(source))
        config = api.compose(TINY, "fedavg", {**overrides, "federation.rounds": 1, "objective": made.Own})
        return api.run(config, progress=False)

    source = "from methods.objectives.spectral import Spectral\nclass Own(Spectral):\n"
    source += "    def loss(self, out, batch):\n        return super().loss(out, batch)\n"
    record = run(source)
    assert record["row"] == "fedavg-own"
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert f"cell.Own is code from outside the packages: sha256 {digest}" in record["deviations"]
    assert run(source) == record
    with pytest.raises(ConfigError, match="Own"):
        run(source.replace("batch)\n", "batch) * 2\n"))


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("class Own:\n    @torch.no_grad()\n    def f(self):\n        return 1\n", ("return 1", "return 2")),
        ("class Own:\n    views = 1\n", ("views = 1", "views = 2")),
    ],
)
def test_a_cell_with_a_decorator_or_without_functions_is_told_from_its_change(source, change):
    texts = [provenance._cell(cell(each).Own) for each in (source, source, source.replace(*change))]
    assert texts[0] == texts[1] != texts[2]
    assert "_contextlib" not in texts[0]


class TestRecords:
    def test_the_committed_ones_and_those_of_a_folder(self, run):
        (record,) = api.load_records(run[2].parents[2])
        assert record["scenario"] == "mine"
        assert "cifar10-micro" in {record["scenario"] for record in api.load_records()}
        with pytest.raises(RecordError, match="no such folder"):
            api.load_records(run[2] / "none")

    def test_a_table_has_a_row_a_run(self):
        pandas = pytest.importorskip("pandas")
        records = [record for record in api.load_records() if record["scenario"] == "cifar10-micro"]
        table = api.to_dataframe(records)
        assert isinstance(table, pandas.DataFrame)
        assert len(table) == len(records)
        row = records[0]["row"]
        mine = [record["scores"]["linear/v1"]["accuracy"] for record in records if record["row"] == row]
        assert table.groupby("row")["linear/v1 accuracy"].mean()[row] == pytest.approx(sum(mine) / len(mine))
        assert table["bytes up"].iloc[0] == sum(records[0]["bytes"]["up"].values())


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (1200, "1,200 runs")])
def test_a_count_has_its_noun_in_the_right_number(number, text):
    assert count(number, "run") == text
