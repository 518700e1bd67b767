import csv
import hashlib
import io
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb
import yaml
from PIL import Image
from rich.console import Console

from benchmark.cli.main import main
from benchmark.configuration.compose import compose, load
from benchmark.configuration.identity import identity, settings
from benchmark.errors import ConfigError, DivergedError
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.monitor import measure
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.folder import load_folder
from benchmark.experiment.run import Run
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking import plots
from benchmark.tracking.callbacks import RoundLog
from benchmark.tracking.progress import Display
from datamodules.recipe import Recipe
from datamodules.views import augment
from eval.features import EvalError
from eval.inputs import Crop
from eval.knn import crowded
from leaderboards import store
from leaderboards.encoders import shown
from methods import trees
from tests.benchmark.cli.cli_helpers import checkpoint, stop
from tests.run_helpers import TINY, same

NEIGHBOURS = [crowded(200, 79)]
"""What every run of the tiny scenario notes."""


def experiment(tmp_path, *overrides, method="fedavg", scenario=TINY):
    """An experiment, and the file that its display prints to."""
    console = Console(file=io.StringIO(), width=300)
    common = [f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", "logger=csv", "accelerator=cpu"]
    given = {word.partition("=")[0]: word for word in (*common, *overrides)}
    return Experiment(compose(scenario, method, given.values()), Display(console)), console.file


def lines_of(run):
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def printed_by_wandb(run):
    """W&B's log of a run without the headers of 7 bytes of its blocks, which are also within a record (LevelDB)."""
    wandb.teardown()  # the file is written by W&B's own process, which may lag behind the run
    (log,) = run.folder.rglob("run-*.wandb")
    assert "offline" in log.parent.name
    content = log.read_bytes()
    return b"".join(content[start + 7 : start + 32_768] for start in range(0, len(content), 32_768))


ONE_ROUND = "federation.rounds=1"
KNN = "evaluation.protocols=[knn/v1]"


class TestGoingOn:
    def test_a_finished_run_is_only_read(self, tmp_path, monkeypatch):
        first, _ = experiment(tmp_path)
        result = first.execute()
        before = {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")}
        monkeypatch.setattr(FederatedLoop, "fit", lambda *_: pytest.fail("trained again"))
        again, printed = experiment(tmp_path)
        assert again.execute() == result
        assert "already done" in printed.getvalue()
        assert {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")} == before

    def test_a_finished_run_of_images_that_have_changed_is_not_taken_for_done(self, tmp_path):
        for split, label, index in itertools.product(("train", "test"), "ab", range(20)):
            file = tmp_path / "images" / "mine" / split / label / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (10 * index, 0, 0)).save(file)
        overrides = ["data.name=mine", f"data.root={tmp_path / 'images'}", "partition.clients=2"]
        overrides += ["federation.rounds=0", "evaluation.protocols=[knn/v1]"]
        first, _ = experiment(tmp_path, *overrides)
        result = first.execute()
        shutil.rmtree(tmp_path / "cache")
        again, printed = experiment(tmp_path, *overrides)
        assert again.execute() == result
        assert "already done" in printed.getvalue()
        Image.new("RGB", (8, 8), (255, 255, 255)).save(file)
        with pytest.raises(ConfigError, match=r"result\.json was made with other images, .* than data set mine"):
            again.execute()
        shutil.rmtree(tmp_path / "images")
        assert again.execute() == result  # it can be read without them
        assert "cannot be checked: no data set 'mine'" in printed.getvalue()

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory):
        torch.set_num_threads(1)
        run, _ = experiment(tmp_path_factory.mktemp("whole"), method="scaffold")
        return run, run.execute()

    @pytest.mark.parametrize(
        ("owner", "moment", "round", "safe"),
        [
            (Display, "on_visit_end", 1, 1),  # within the second round
            (RoundLog, "on_round_end", 2, 2),  # the second round's checkpoint is saved, its line not written yet
            (Display, "on_round_end", 3, 3),  # before the evaluation
        ],
    )
    def test_a_half_run_goes_on(self, tmp_path, monkeypatch, whole, owner, moment, round, safe):
        stop(experiment(tmp_path, method="scaffold")[0], round, owner, moment)
        again, _ = experiment(tmp_path, method="scaffold")
        began = []
        monkeypatch.setattr(Display, "on_phase_start", lambda self, loop, *_: began.append(loop.round))
        result = again.execute()
        assert began == list(range(safe, 3))
        unstopped, expected = whole
        drawn = [(line["round"], line["drawn"]) for line in lines_of(again)]
        assert drawn == [(line["round"], line["drawn"]) for line in lines_of(unstopped)]
        assert all(result[key] == expected[key] for key in ("scores", "bytes", "images"))
        assert same(checkpoint(again.folder)["server"], checkpoint(unstopped.folder)["server"])

    def test_a_line_names_the_clients_that_were_drawn_with_those_that_are_lost(self, tmp_path, monkeypatch):
        replied = {1: set(), 2: set(), 3: set()}

        def seen(self, loop, done):
            replied[done.visit.round + 1].add(done.visit.client.id)

        monkeypatch.setattr(Display, "on_visit_end", seen)
        run, _ = experiment(tmp_path, "federation.dropout=0.5")
        run.execute()
        lines = lines_of(run)
        assert [len(line["drawn"]) for line in lines] == [2, 2, 2]
        assert sum(line.get("lost", 0) for line in lines) == sum(2 - len(clients) for clients in replied.values()) > 0
        assert all(replied[line["round"]] <= set(line["drawn"]) for line in lines)
        assert "drawn" not in checkpoint(run.folder)["history"][0]  # each checkpoint has all rounds

    def test_the_csv_logger_keeps_the_rounds_before_a_stop(self, tmp_path):
        half, _ = experiment(tmp_path)
        stop(half, 2)

        def steps():
            (file,) = half.folder.rglob("metrics.csv")
            return [line["step"] for line in csv.DictReader(file.read_text().splitlines())]

        assert steps() == ["1", "2"]  # while the run goes on
        experiment(tmp_path)[0].execute()
        assert steps() == ["1", "2", "3"]

    def test_a_folder_of_another_config_is_refused(self, tmp_path):
        experiment(tmp_path, "row=mine", "optimizer.lr=0.1")[0].execute()
        with pytest.raises(ConfigError, match=r"holds a run of another config \(optimizer.lr: 0.1 -> 0.2\)") as error:
            experiment(tmp_path, "row=mine", "optimizer.lr=0.2")[0].execute()
        assert "\n" not in str(error.value)
        moved = experiment(tmp_path, "row=mine", "optimizer.lr=0.1")[0].folder.rename(tmp_path / "moved")
        again = Experiment(load_folder(moved), Display(Console(file=io.StringIO())), path=moved).build()
        again.loop.restore()
        assert same(again.loop.server, checkpoint(moved)["server"])

    def test_what_never_began_is_not_in_the_way_of_the_fixed_file(self, tmp_path):
        """A refused scenario runs once its file is fixed; no folder has to be deleted by hand."""
        scenario = tmp_path / "mine.yaml"
        content = yaml.safe_load(Path(TINY).read_text())
        scenario.write_text(yaml.safe_dump(content | {"training": {"batch_size": 64}}))
        with pytest.raises(ConfigError, match="batch_size=64 is larger"):
            experiment(tmp_path, scenario=str(scenario))[0].execute()
        scenario.write_text(yaml.safe_dump(content))
        assert experiment(tmp_path, scenario=str(scenario))[0].execute()["rounds"]["done"] == 3

    def test_the_record_says_where_and_how_all_its_rounds_were_played(self, tmp_path, monkeypatch):
        exact = "benchmark.execution.sequential.SequentialExecutor.bitwise_exact"

        def on(machine):
            monkeypatch.setattr("benchmark.experiment.run.hardware", lambda device: machine)
            return experiment(tmp_path)[0]

        with monkeypatch.context() as patch:
            patch.setattr(exact, False)
            stop(on("A"), 1, RoundLog, "on_round_end")
        with monkeypatch.context() as patch:
            patch.setattr(Run, "evaluate", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                on("B").execute()
        result = on("where it is scored").execute()
        assert result["provenance"]["hardware"] == "B"
        assert {origin["hardware"] for origin in result["evaluated"].values()} == {"where it is scored"}
        assert result["deviations"] == [
            "clients were visited side by side by recorded steps, which round otherwise",
            "rounds were played by several kinds of device: A, B",
            *NEIGHBOURS,
        ]


class TestWhatARunLeaves:
    @pytest.fixture(scope="class")
    @classmethod
    def finished(cls, tmp_path_factory):
        torch.set_num_threads(1)
        run, _ = experiment(tmp_path_factory.mktemp("finished"), "evaluation.every=2", method="ssd")
        return run, run.execute()

    def test_files(self, finished):
        run, result = finished
        files = {file.relative_to(run.folder).as_posix() for file in run.folder.rglob("*.*")}
        assert {"config.yaml", "rounds.jsonl", "result.json", "checkpoint/state.pt"} <= files
        assert not [name for name in files if name.endswith((".tmp", ".new"))]
        assert sum(name.startswith("checkpoint/memory/") for name in files) == 4  # one file per client
        assert load(run.folder / "config.yaml") == run.config
        assert store.read(run.folder / "result.json") == result

    def test_the_record_and_a_line_a_round(self, finished):
        run, record = finished
        lines, weights = lines_of(run), trees.nbytes(checkpoint(run.folder)["server"]["weights"])
        assert [(line["round"], "monitor" in line) for line in lines] == [(1, False), (2, True), (3, True)]
        assert all(np.isfinite(line["loss"]) for line in lines)
        assert all(line[key] > 0 for line in lines for key in ("images", "seconds", "client_seconds"))
        assert [set(line["bytes_down"]) for line in lines[:2]] == [{"basis", "scale", "weights"}, {"weights"}]
        assert record["rounds"] == {"done": 3, "planned": 3}
        assert [(point["round"], point["loss"]) for point in record["curve"]] == [
            (k, lines[k - 1]["loss"]) for k in (2, 3)
        ]
        assert record["images"] == sum(line["images"] for line in lines)
        assert record["bytes"]["visits"] == 3 * 2  # the warm-up reaches all clients, and counts as no visit
        assert record["bytes"]["up"] == {"weights": 6 * weights}
        assert record["bytes"]["down"]["weights"] == 6 * weights
        assert (record["scenario"], record["row"], record["method"], record["seed"]) == ("tiny", "ssd", "ssd", 0)
        assert record["provenance"]["config"] == identity(run.config)
        expected = {key: value for key, value in settings(run.config).items() if key != "seed"}
        expected |= {"method.variant": "code", "method.weighting": "examples", "optimizer.nesterov": False}  # defaults
        assert {key: record["settings"][key] for key in expected} == expected
        assert "seed" not in record["settings"]
        assert set(record["evaluated"]) == set(record["scores"]) == {"knn/v1"}
        assert record["best"]["value"] == max(line["monitor"] for line in lines[1:])

    def test_figures_are_those_of_the_runs_history(self, finished, tmp_path):
        run, folders = finished[0].build(), (tmp_path, finished[0].folder / "figures")
        run.loop.restore()
        names = ("partition", "curves", "costs", "geometry", "plane")
        figures = plots.of_run(run.loop.history, run.data, {}, run.name)
        assert "clients" not in figures  # without a protocol that scores them
        plots.save({name: figures[name] for name in names}, tmp_path)
        for name in names:
            drawn, saved = (np.asarray(Image.open(folder / f"{name}.png")) for folder in folders)
            assert np.array_equal(drawn, saved)
            assert len(np.unique(saved.reshape(-1, saved.shape[2]), axis=0)) > 20  # not blank

    def test_code_from_elsewhere_is_named_with_its_hash(self, tmp_path, monkeypatch):
        """The commit does not identify code from outside the packages."""
        code = "from methods.fedprox import FedProx\n\n\nclass Mine(FedProx):\n    pass\n"
        (tmp_path / "elsewhere.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        words = ("method.class=elsewhere.Mine", ONE_ROUND)
        run, again = (experiment(tmp_path, *words, method="fedprox")[0] for _ in range(2))
        digest = hashlib.sha256(code.encode()).hexdigest()
        assert f"elsewhere.Mine is code from outside the packages: sha256 {digest}" in run.execute()["deviations"]
        (tmp_path / "elsewhere.py").write_text(code + "# edited since\n")
        with run.open() as opened:
            opened.loop.restore()
            deviations = opened.evaluate(["knn/v1"]).record["deviations"]
        assert any(digest in line for line in deviations)
        assert any(line.startswith("knn/v1 measured when elsewhere.Mine is code") for line in deviations)
        with pytest.raises(ConfigError, match=r"made by other code than today's .*elsewhere\.Mine"):
            again.execute()
        (tmp_path / "elsewhere.py").unlink()
        sys.modules.pop("elsewhere")
        assert again.execute()["deviations"]  # the record is only read: the code to compare it with is gone

    def test_settings_that_are_not_the_authors_are_named(self, tmp_path):
        file = tmp_path / "paper.yaml"
        file.write_text(f"like: {TINY}\nauthors: {{training.precision: 64-true, training.epochs: 1}}\n")
        paper, plain = (experiment(tmp_path, ONE_ROUND, scenario=name)[0] for name in (str(file), TINY))
        assert paper.execute()["deviations"] == ["training.precision=32-true, the authors have 64-true", *NEIGHBOURS]
        assert identity(paper.config) == identity(plain.config)

    def test_an_infinite_setting_is_recorded_by_its_word(self, tmp_path):
        run, _ = experiment(tmp_path, "method.threshold=.inf", ONE_ROUND, method="fedu")
        result = run.execute()
        assert result["settings"]["method.threshold"] == "inf"
        assert store.read(run.folder / "result.json") == result

    def test_a_run_without_a_round(self, tmp_path):
        run, _ = experiment(tmp_path, "federation.rounds=0")
        result = run.execute()
        assert (result["rounds"], lines_of(run)) == ({"done": 0, "planned": 0}, [])
        assert result["bytes"] == {"up": {}, "down": {}, "visits": 0}
        assert "pooled training images" in result["deviations"][0]


@pytest.mark.parametrize(
    ("overrides", "inputs"),
    [
        ((), {"tokens", "members", "projector"}),
        (("public.name=synthetic", "public.share=0.05"), {"tokens", "members", "projector"}),  # too few
        (("public.name=synthetic", "public.share=0.1"), {"tokens", "members", "projector", "held_out"}),
        (("federation.batch_norm=local",), {"tokens", "members"}),  # its BatchNorm has no statistics
        (("objective=supervised",), {"tokens", "members"}),
    ],
)
def test_inputs_that_not_every_run_has_for_its_protocols(tmp_path, overrides, inputs):
    assert experiment(tmp_path, *overrides)[0].build().scoring.inputs() == inputs


def test_crops_of_probes_are_resized_as_their_protocol_says(tmp_path):
    run = experiment(tmp_path)[0].build()
    images, crops = torch.from_numpy(run.data.source.train.images[:6].copy()), []
    for interpolation in ("bilinear", "bicubic"):
        crop = Crop((0.3, 0.6), flip=0.0, interpolation=interpolation)
        crops.append(run.evaluator._cropped(images, crop, torch.Generator().manual_seed(0)))
        recipe = Recipe(8, (0.3, 0.6), interpolation=interpolation, flip=0.0, jitter=(0, 0, 0, 0), grayscale=0)
        assert torch.equal(crops[-1], augment(images, recipe, torch.Generator().manual_seed(0)))
    assert not torch.equal(*crops)


BEST = "evaluation.best_on_test=knn/v1"


def test_of_several_encoders_the_best_round_has_the_worst_and_the_mean(tmp_path):
    run, _ = experiment(tmp_path, KNN, BEST, "federation.participation=1", method="local")
    record = run.execute()
    lines, scores = lines_of(run), record["scores"]["knn/v1"]
    each = [scores["knn/v1"]["accuracy"] for scores in record["encoders"].values()]
    assert lines[-1]["test_accuracy knn/v1"] == min(each)
    assert lines[-1]["test_accuracy_mean knn/v1"] == sum(each) / len(each)
    assert scores["accuracy_best_on_test"] == max(line["test_accuracy knn/v1"] for line in lines)
    assert scores["accuracy_best_on_test_mean"] == max(line["test_accuracy_mean knn/v1"] for line in lines)
    assert shown(record)["knn/v1"]["accuracy_best_on_test"] == scores["accuracy_best_on_test_mean"]


def test_a_round_that_the_protocol_cannot_score_ends_nothing(tmp_path, monkeypatch):
    """The run goes on, says so, and has no best round."""
    scores, calls = Evaluator.scores, []

    def failing(self, encoder, protocols, *args, **kwargs):
        calls.append(protocols)
        if len(calls) == 2:
            kwargs["failed"][protocols[0]] = "diverged"
            return {}
        return scores(self, encoder, protocols, *args, **kwargs)

    monkeypatch.setattr(Evaluator, "scores", failing)
    run, printed = experiment(tmp_path, KNN, BEST)
    record = run.execute()
    assert record["rounds"]["done"] == 3
    assert "accuracy_best_on_test" not in record["scores"]["knn/v1"]
    assert "it has no knn/v1 accuracy_best_on_test" in printed.getvalue()


def test_the_best_round_by_test_accuracy_is_recorded_beside_the_last(tmp_path):
    probed, plain = (experiment(tmp_path, KNN, more)[0] for more in (BEST, f"output={tmp_path / 'b'}"))
    scores = probed.execute()["scores"]["knn/v1"]
    accuracies = [line["test_accuracy knn/v1"] for line in lines_of(probed)]
    assert len(accuracies) == 3
    assert (scores["accuracy"], scores.pop("accuracy_best_on_test")) == (accuracies[-1], max(accuracies))
    assert plain.execute()["scores"]["knn/v1"] == scores  # it does not change the training


def test_the_projectors_outputs_are_scored_with_the_exported_projector(tmp_path):
    overrides = (ONE_ROUND, "evaluation.protocols=[projected/v1,transfer-synthetic/v2]")
    scores = experiment(tmp_path, *overrides)[0].execute()["scores"]
    other = scores["transfer-synthetic/v2"]
    for metric, value in scores["projected/v1"].items():  # the same images: the target is the run's own data set
        if metric != "accuracy":  # the probe draws its own batches
            assert other[f"{metric}_projected"] == pytest.approx(value, abs=1e-6)
    assert other["effective_rank"] != other["effective_rank_projected"]


def test_wandb_works_offline_without_a_key(tmp_path, monkeypatch):
    """Without login and network, all of W&B's files are written to the run's folder."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    long = "long" * 20  # longer than the 64 letters that W&B allows for a tag
    run, _ = experiment(tmp_path, "logger=wandb", f"row={long}")
    assert run.execute()["rounds"]["done"] == 3
    content = printed_by_wandb(run)
    scalars = ("train/loss", "comm/bytes_up", "sys/seconds", "knn/v1/accuracy", "figures/")
    assert [name for name in scalars if name.encode() not in content] == [], len(content)
    outside = {file.relative_to(tmp_path).parts[0] for file in tmp_path.rglob("*") if file.is_file()}
    assert outside <= {"runs", "cache", "home"}


def test_what_is_evaluated_later_reaches_wandb_too(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, _ = experiment(tmp_path, ONE_ROUND)  # logger=csv
    run.execute()
    assert main(["evaluate", str(run.folder), "protocols=spectrum/v1", "logger=wandb"]) == 0
    content = printed_by_wandb(run)
    assert [name for name in (b"figures/spectrum", b"spectrum/v1/dimensions_90") if name not in content] == []


def test_a_run_that_stops_leaves_wandb_to_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    late = ("method.class=tests.benchmark.cli.test_failures.Diverging", "federation.participation=1")  # in round 2
    broken, _ = experiment(tmp_path, "logger=wandb", *late)
    with pytest.raises(DivergedError):
        broken.execute()
    assert wandb.run is None
    whole, _ = experiment(tmp_path, "logger=wandb", ONE_ROUND)
    whole.execute()
    wandb.teardown()
    assert [len(list(run.folder.rglob("run-*.wandb"))) for run in (broken, whole)] == [1, 1]


def test_a_monitor_that_meets_no_numbers_ends_the_run_in_one_line(tmp_path):
    built = experiment(tmp_path)[0].build()
    encoder = built.evaluator.encoder(built.loop.method.weights(), recalibrated=False)
    with torch.no_grad():
        next(encoder.parameters()).fill_(float("nan"))
    with pytest.raises(EvalError, match="the monitor met features that are not finite"):
        measure(built.evaluator, encoder)
