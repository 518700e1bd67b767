"""Exported encoders: ten images have the features of the run's encoder, in plain torch, torchvision, timm and ONNX."""

import io
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import onnxruntime
import pytest
import safetensors.torch
import timm
import torch
from rich.console import Console
from torchvision import models

from benchmark.cli.main import main
from benchmark.configuration.partitions import sha256
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.folder import load_folder
from benchmark.tracking.progress import Display
from leaderboards import store
from tests.run_helpers import TINY, same

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "export.md"
SECTIONS = {
    "convnet": "{class: methods.networks.convnet, widths: [6, 8], strides: [2, 2]}",
    "resnet18": "{class: methods.networks.resnet18, stem: imagenet}",
    "cifar": "{class: methods.networks.resnet18, norm: group}",
    "torchvision": "{class: methods.networks.torchvision, name: mobilenet_v3_small, width_mult: 0.25}",
    "timm": "{class: methods.networks.timm, name: mobilenetv3_small_050}",
    "vit": "{class: methods.networks.vit_tiny, patch_size: 8}",
    "timm-vit": "{class: methods.networks.timm, name: vit_tiny_patch16_224, patch_size: 8, embed_dim: 48, depth: 2}",
}
(CODE,) = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
exec(CODE, NAMES := {})
fulcrum_loader = NAMES["fulcrum_loader"]


def finished(folder, section, *overrides, method="fedavg"):
    """The folder of a finished run with this encoder."""
    words = [f"output={folder}/runs", f"data.cache={folder}/cache", "logger=csv", "accelerator=cpu", "threads=1"]
    words += ["row=it", "scenario=tiny", "federation.rounds=1", "training.steps=2", f"encoder={section}"]
    words += ["evaluation.protocols=[geometry/v1]"]
    assert main(["run", TINY, method, *words, *overrides]) == 0
    return folder / "runs" / "tiny" / "it" / "seed0"


def export(folder, file, *words):
    """Exports the run's encoder and returns its description."""
    assert main(["export", str(folder), str(file), *words]) == 0
    return json.loads(Path(f"{file}.json").read_text())


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Kind of encoder -> the folder of a finished run with it; each is made once."""

    @cache
    def make(kind):
        views = ("views.mean=[0.5,0.4,0.3]", "views.std=[0.2,0.2,0.3]")
        return finished(tmp_path_factory.mktemp(kind), SECTIONS[kind], *views)

    return make


def ten_images(folder):
    """Ten images as the run's encoder reads them, and its features of them, as they are evaluated."""
    experiment = Experiment(load_folder(folder), Display(Console(file=io.StringIO())), path=folder)
    with experiment.open() as run:
        run.loop.restore()
        encoder = run.evaluator.encoder(run.loop.export()["global"])
        images = run.evaluator.plain(torch.from_numpy(run.data.source.test.images[:10].copy()))
        with torch.no_grad():
            return images, encoder(images).clone()


def check_features(folder, file):
    """The guide's network of the file, whose features of ten images are the run's, as the card describes them."""
    (images, expected), (network, card) = ten_images(folder), fulcrum_loader(file)
    assert expected.std() > 0
    assert expected.shape == (10, card["features"])
    with torch.no_grad():
        torch.testing.assert_close(network(images), expected, rtol=1e-6, atol=1e-6)
    return network


@pytest.mark.parametrize("kind", SECTIONS)
def test_ten_images_have_the_same_features_by_the_guides_loader(run_folder, tmp_path, kind):
    export(run_folder(kind), tmp_path / "encoder.pt")
    check_features(run_folder(kind), tmp_path / "encoder.pt")


def test_the_formats_hold_the_same_numbers_without_a_classifier_alone(run_folder, tmp_path):
    """Of torchvision's; a model of timm's that is made without a classifier lacks nothing."""
    kinds = {"resnet18": models.resnet18, "torchvision": lambda: models.mobilenet_v3_small(width_mult=0.25)}
    for kind, build in kinds.items():
        head = export(run_folder(kind), tmp_path / kind)["architecture"]["model"]["classifier"]
        keys = build().load_state_dict(one := torch.load(tmp_path / kind, weights_only=True), strict=False)
        assert (set(keys.missing_keys), keys.unexpected_keys) == ({f"{head}.weight", f"{head}.bias"}, [])
    export(run_folder("torchvision"), tmp_path / "a.safetensors")
    assert same(one, safetensors.torch.load_file(tmp_path / "a.safetensors"))
    export(run_folder("timm"), tmp_path / "it")
    network = timm.create_model("mobilenetv3_small_050", num_classes=0)
    network.load_state_dict(torch.load(tmp_path / "it", weights_only=True))


@pytest.mark.parametrize("kind", ["convnet", pytest.param("torchvision", marks=pytest.mark.long)])
def test_ten_images_have_the_same_features_by_onnx(run_folder, tmp_path, kind):
    export(run_folder(kind), file := tmp_path / "encoder.onnx")
    images, expected = ten_images(run_folder(kind))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for rows in (10, 1):  # the batch is free
        (features,) = session.run(["features"], {"images": images[:rows].numpy()})
        torch.testing.assert_close(torch.from_numpy(features), expected[:rows], rtol=1e-5, atol=1e-5)


def test_a_torchvision_model_is_loaded_without_this_suite(run_folder, tmp_path):
    """In a process whose path has no package of the suite."""
    export(run_folder("torchvision"), file := tmp_path / "encoder.pt")
    script = f"{CODE}\nnetwork, card = fulcrum_loader({str(file)!r})\nprint(card['features'])\nimport sys\n"
    script += "assert not {'methods', 'benchmark'} & set(sys.modules)"
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "256\n"), done.stderr


def test_the_description_is_complete(run_folder, tmp_path, capsys):
    folder, file = run_folder("resnet18"), tmp_path / "encoder.pt"
    card, record = export(folder, file), store.read(folder / "result.json")
    assert card["sha256"] == sha256(file, "x")
    assert card["architecture"] == {
        "class": "methods.networks.resnet18",
        "arguments": {"in_channels": 3, "stem": "imagenet"},
        "model": {"library": "torchvision", "name": "resnet18", "options": {}, "classifier": "fc"},
    }
    assert card["input"] == {"channels": 3, "size": 8, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.3]}
    assert card["run"]["identity"] == record["provenance"]["config"]
    assert card["run"]["scores"] == record["encoders"]["global"]
    assert "epsilon" not in capsys.readouterr().out


def test_statistics_are_written_as_they_are_evaluated(tmp_path, capsys):
    """Noise does not cover them, which is told."""
    noise = ("privacy.mechanism=central", "privacy.clip=1", "privacy.noise_multiplier=1")
    folder = finished(tmp_path, SECTIONS["convnet"], "federation.batch_norm=local", *noise)
    export(folder, tmp_path / "encoder.pt")
    assert "epsilon does not cover this encoder" in capsys.readouterr().out
    network = check_features(folder, tmp_path / "encoder.pt")
    means = [value for name, value in network.named_buffers() if name.endswith("running_mean")]
    assert means
    assert all(value.any() for value in means)


def test_a_run_of_double_precision_is_written_in_single(tmp_path):
    folder = finished(tmp_path, SECTIONS["convnet"], "training.precision=64-true")
    export(folder, tmp_path / "encoder.pt")
    check_features(folder, tmp_path / "encoder.pt")


def test_an_exported_file_is_what_another_run_starts_from(run_folder, tmp_path, call, refused):
    export(run_folder("convnet"), file := tmp_path / "encoder.pt")
    section = SECTIONS["convnet"].replace("}", f", weights: {file}}}")
    words = ("run", TINY, "fedavg", f"encoder={section}", "federation.rounds=0", "evaluation.protocols=[geometry/v1]")
    views = "views.mean=[0.5,0.4,0.3] views.std=[0.2,0.2,0.3]"
    assert f"set {views}" in refused(*words)
    assert call(*words, *views.split())[0] == 0


def test_an_architecture_of_some_clients_is_described_as_its_own(tmp_path):
    small = "{class: methods.networks.convnet, widths: [4, 5], strides: [2, 2], clients: [1]}"
    words = ("public.name=client", "public.client=0", f"federation.encoders={{small: {small}}}")
    folder = finished(tmp_path, SECTIONS["convnet"], *words, method="flesd")
    for name, width in {"global": 8, "small": 5}.items():
        card = export(folder, tmp_path / f"{name}.pt", f"encoder={name}")
        network, _ = fulcrum_loader(tmp_path / f"{name}.pt")
        assert network(torch.rand(2, 3, 8, 8)).shape == (2, card["features"]) == (2, width)


def test_a_clients_encoder_is_chosen_by_its_name(tmp_path, refused):
    folder = finished(tmp_path, SECTIONS["convnet"], "federation.participation=1", method="local")
    names, file = list(store.read(folder / "result.json")["encoders"]), tmp_path / "x.pt"
    line = f"it has several encoders: choose one of this run's: encoder=NAME of {names[0]}"
    assert line in refused("export", str(folder), str(file))
    assert export(folder, file, f"encoder={names[1]}")["encoder"] == names[1]


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["format=onx"], "format=onx: choose torch, safetensors, onnx (did you mean 'onnx'?)"),
            (["encoder=globl"], "(did you mean 'global'?): choose one of this run's: encoder=NAME of global"),
            (["--format", "onnx"], "overrides have no dashes: format=onnx"),
            (["optimizer.lr=3"], "cannot be resumed or evaluated with a changed config"),
            (["more"], "usage: python -m benchmark export RUN_DIR FILE"),
        ],
    )  # fmt: skip
    def test_a_wrong_word_is_one_line(self, run_folder, tmp_path, refused, words, line):
        assert line in refused("export", str(run_folder("convnet")), str(tmp_path / "x.pt"), *words)
        assert list(tmp_path.iterdir()) == []

    def test_where_no_file_can_be_and_a_missing_package_are_named(self, run_folder, tmp_path, refused, monkeypatch):
        words = ("export", str(run_folder("convnet")))
        assert f"{tmp_path} is a folder: give the name of a file in it" in refused(*words, str(tmp_path))
        nowhere = tmp_path / "nowhere"
        assert f"there is no folder {nowhere}: make it first" in refused(*words, str(nowhere / "x.pt"))
        for package, ending in {"safetensors.torch": "safetensors", "onnxscript": "onnx"}.items():
            monkeypatch.setitem(sys.modules, package, None)
            line = "install this suite with its extra: pip install 'fulcrum-ful[export]'"
            assert line in refused(*words, str(tmp_path / f"x.{ending}"))
        assert list(tmp_path.iterdir()) == []

    def test_an_unfinished_run_is_refused(self, folder, tmp_path, refused):
        words = ("export", str(folder), str(tmp_path / "x.pt"))
        (folder / "result.json").unlink()
        assert "has no scores yet: evaluate it first" in refused(*words)
        shutil.rmtree(folder / "checkpoint")
        assert "has done 0 of 3 rounds: finish it first with `resume" in refused(*words)

    def test_an_older_file_survives_an_export_that_fails(self, run_folder, tmp_path, monkeypatch):
        file, folder = tmp_path / "x.pt", run_folder("convnet")  # before a file can no longer be saved
        file.write_text("older")
        monkeypatch.setattr(torch, "save", Mock(side_effect=OSError(28, "No space left on device", str(file))))
        assert main(["export", str(folder), str(file)]) == 2
        assert file.read_text() == "older"
        assert [each.name for each in tmp_path.iterdir()] == ["x.pt"]
