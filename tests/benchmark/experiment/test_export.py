"""Exported encoders: ten images have the features of the run's encoder, in plain torch, torchvision, timm and ONNX."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import safetensors.torch
import timm
import torch
import yaml
from rich.console import Console
from torchvision import models

from benchmark.cli.main import main
from benchmark.configuration.partitions import sha256
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.folder import load_folder
from benchmark.tracking.progress import Display
from leaderboards import store
from tests.run_helpers import TINY

GUIDE = Path(__file__).parents[3] / "docs" / "export.md"
SECTIONS = {
    "convnet": "{class: methods.networks.convnet, widths: [6, 8], strides: [2, 2]}",
    "resnet18": "{class: methods.networks.resnet18, stem: imagenet}",
    "cifar": "{class: methods.networks.resnet18, norm: group}",
    "torchvision": "{class: methods.networks.torchvision, name: mobilenet_v3_small, width_mult: 0.25}",
    "timm": "{class: methods.networks.timm, name: mobilenetv3_small_050}",
    "vit": "{class: methods.networks.vit_tiny, patch_size: 8}",
    "timm-vit": "{class: methods.networks.timm, name: vit_tiny_patch16_224, patch_size: 8, embed_dim: 48, depth: 2}",
}


def finished(folder: Path, section: str, *overrides: str, method: str = "fedavg") -> Path:
    """The folder of a finished run with this encoder."""
    words = [f"output={folder}/runs", f"data.cache={folder}/cache", "logger=csv", "accelerator=cpu", "threads=1"]
    words += [
        "row=it",
        "scenario=tiny",
        "federation.rounds=1",
        "training.steps=2",
        "evaluation.protocols=[geometry/v1]",
        f"encoder={section}",
    ]
    assert main(["run", TINY, method, *words, *overrides]) == 0
    return folder / "runs" / "tiny" / "it" / "seed0"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Kind of encoder -> the folder of a finished run with it; each is made once."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            views = ("views.mean=[0.5,0.4,0.3]", "views.std=[0.2,0.2,0.3]")
            made[kind] = finished(tmp_path_factory.mktemp(kind), SECTIONS[kind], *views)
        return made[kind]

    return make


def ten_images(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten images as the run's encoder reads them, and its features of them, as they are evaluated."""
    experiment = Experiment(load_folder(folder), Display(Console(file=io.StringIO())), path=folder)
    with experiment.open() as run:
        run.loop.restore()
        encoder = run.evaluator.encoder(run.loop.export()["global"], recalibrated=run.recalibrated)
        images = run.evaluator._plain(torch.from_numpy(run.data.source.test.images[:10].copy()))
        with torch.no_grad():
            return images, encoder(images).clone()


def check_features(loader: Any, folder: Path, file: Path) -> tuple[Any, dict, torch.Tensor]:
    """The guide's network and card of the file, whose features of ten images are the run's, and those features."""
    (images, expected), (network, card) = ten_images(folder), loader(file)
    with torch.no_grad():
        torch.testing.assert_close(network(images), expected, rtol=1e-6, atol=1e-6)
    return network, card, expected


@pytest.fixture(scope="module")
def loader() -> Any:
    """`fulcrum_loader` as the guide has it."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["fulcrum_loader"]


@pytest.mark.parametrize("kind", SECTIONS)
def test_ten_images_have_the_same_features_by_the_guides_loader(run_folder, loader, tmp_path, kind):
    folder, file = run_folder(kind), tmp_path / "encoder.pt"
    assert main(["export", str(folder), str(file)]) == 0
    _, card, expected = check_features(loader, folder, file)
    assert expected.std() > 0
    assert expected.shape == (10, card["features"])


def test_the_formats_hold_the_same_numbers(run_folder, tmp_path):
    for file in ("a.pt", "a.safetensors"):
        assert main(["export", str(run_folder("torchvision")), str(tmp_path / file)]) == 0
    one, other = (
        torch.load(tmp_path / "a.pt", weights_only=True),
        safetensors.torch.load_file(tmp_path / "a.safetensors"),
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_torchvision_model_lacks_its_classifier_alone(run_folder, tmp_path):
    for kind, build in {
        "resnet18": models.resnet18,
        "torchvision": lambda: models.mobilenet_v3_small(width_mult=0.25),
    }.items():
        assert main(["export", str(run_folder(kind)), str(tmp_path / kind)]) == 0
        keys = build().load_state_dict(torch.load(tmp_path / kind, weights_only=True), strict=False)
        head = json.loads((tmp_path / f"{kind}.json").read_text())["architecture"]["model"]["classifier"]
        assert set(keys.missing_keys) == {f"{head}.weight", f"{head}.bias"}
        assert keys.unexpected_keys == []


def test_a_timm_model_lacks_nothing(run_folder, tmp_path):
    assert main(["export", str(run_folder("timm")), str(tmp_path / "it")]) == 0
    network = timm.create_model("mobilenetv3_small_050", num_classes=0)
    network.load_state_dict(torch.load(tmp_path / "it", weights_only=True))


@pytest.mark.parametrize("kind", ["convnet", pytest.param("torchvision", marks=pytest.mark.long)])
def test_ten_images_have_the_same_features_by_onnx(run_folder, tmp_path, kind):
    file = tmp_path / "encoder.onnx"
    assert main(["export", str(run_folder(kind)), str(file)]) == 0
    images, expected = ten_images(run_folder(kind))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for rows in (10, 1):  # the batch is free
        (features,) = session.run(["features"], {"images": images[:rows].numpy()})
        torch.testing.assert_close(torch.from_numpy(features), expected[:rows], rtol=1e-5, atol=1e-5)


def test_a_torchvision_model_is_loaded_without_this_suite(run_folder, tmp_path):
    """In a process whose path has no package of the suite."""
    file = tmp_path / "encoder.pt"
    assert main(["export", str(run_folder("torchvision")), str(file)]) == 0
    (code,) = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    script = f"{code}\nnetwork, card = fulcrum_loader({str(file)!r})\nprint(card['features'])\nimport sys\n"
    script += "assert not {'methods', 'benchmark'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "256\n"), done.stderr


def test_the_description_is_complete(run_folder, tmp_path, capsys):
    folder, file = run_folder("resnet18"), tmp_path / "encoder.pt"
    assert main(["export", str(folder), str(file)]) == 0
    card, record = json.loads((tmp_path / "encoder.pt.json").read_text()), store.read(folder / "result.json")
    assert card["sha256"] == sha256(file, "x")
    assert card["architecture"] == {
        "class": "methods.networks.resnet18",
        "arguments": {"in_channels": 3, "stem": "imagenet"},
        "model": {"library": "torchvision", "name": "resnet18", "options": {}, "classifier": "fc"},
    }
    assert card["input"] == {"channels": 3, "size": 8, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.3]}
    assert card["features"] == 512
    assert card["run"]["identity"] == record["provenance"]["config"]
    assert card["run"]["scores"] == record["encoders"]["global"]
    assert "epsilon" not in capsys.readouterr().out


def test_statistics_are_written_as_they_are_evaluated(tmp_path, loader, capsys):
    """Noise does not cover them, which is told."""
    noise = ("privacy.mechanism=central", "privacy.clip=1", "privacy.noise_multiplier=1")
    folder = finished(tmp_path, SECTIONS["convnet"], "federation.batch_norm=local", *noise)
    assert main(["export", str(folder), str(tmp_path / "encoder.pt")]) == 0
    assert "epsilon does not cover this encoder" in capsys.readouterr().out
    network, *_ = check_features(loader, folder, tmp_path / "encoder.pt")
    means = [value for name, value in network.named_buffers() if name.endswith("running_mean")]
    assert means
    assert all(value.any() for value in means)


def test_a_run_of_double_precision_is_written_in_single(tmp_path, loader):
    folder = finished(tmp_path, SECTIONS["convnet"], "training.precision=64-true")
    assert main(["export", str(folder), str(tmp_path / "encoder.pt")]) == 0
    check_features(loader, folder, tmp_path / "encoder.pt")


def test_an_exported_file_is_what_another_run_starts_from(run_folder, tmp_path, capsys):
    file = tmp_path / "encoder.pt"
    assert main(["export", str(run_folder("convnet")), str(file)]) == 0
    section = SECTIONS["convnet"].replace("}", f", weights: {file}}}")
    words = ["run", TINY, "fedavg", f"encoder={section}", "federation.rounds=0", f"output={tmp_path}", "logger=csv"]
    capsys.readouterr()
    assert main(words) == 2
    assert "set views.mean=[0.5,0.4,0.3] views.std=[0.2,0.2,0.3]" in capsys.readouterr().err
    assert (
        main([*words, "views.mean=[0.5,0.4,0.3]", "views.std=[0.2,0.2,0.3]", "evaluation.protocols=[geometry/v1]"]) == 0
    )


def test_an_architecture_of_some_clients_is_described_as_its_own(tmp_path, loader):
    small = "{class: methods.networks.convnet, widths: [4, 5], strides: [2, 2], clients: [1]}"
    words = ("public.name=client", "public.client=0", f"federation.encoders={{small: {small}}}")
    folder = finished(tmp_path, SECTIONS["convnet"], *words, method="flesd")
    for name, width in {"global": 8, "small": 5}.items():
        assert main(["export", str(folder), str(tmp_path / f"{name}.pt"), f"encoder={name}"]) == 0
        network, card = loader(tmp_path / f"{name}.pt")
        assert network(torch.rand(2, 3, 8, 8)).shape == (2, width)
        assert card["features"] == width


def test_a_clients_encoder_is_chosen_by_its_name(tmp_path, capsys):
    folder = finished(tmp_path, SECTIONS["convnet"], "federation.participation=1", method="local")
    names = list(store.read(folder / "result.json")["encoders"])
    capsys.readouterr()
    assert main(["export", str(folder), str(tmp_path / "x.pt")]) == 2
    assert f"it has several encoders: choose one of this run's: encoder=NAME of {names[0]}" in capsys.readouterr().err
    assert main(["export", str(folder), str(tmp_path / "x.pt"), f"encoder={names[1]}"]) == 0
    assert json.loads((tmp_path / "x.pt.json").read_text())["encoder"] == names[1]


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
    def test_a_wrong_word_is_one_line(self, run_folder, tmp_path, capsys, words, line):
        capsys.readouterr()
        assert main(["export", str(run_folder("convnet")), str(tmp_path / "x.pt"), *words]) == 2
        err = capsys.readouterr().err
        assert line in err
        assert err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    def test_where_no_file_can_be_is_named(self, run_folder, tmp_path, capsys):
        assert main(["export", str(run_folder("convnet")), str(tmp_path)]) == 2
        assert f"{tmp_path} is a folder: give the name of a file in it" in capsys.readouterr().err
        assert main(["export", str(run_folder("convnet")), str(tmp_path / "nowhere" / "x.pt")]) == 2
        assert f"there is no folder {tmp_path / 'nowhere'}: make it first" in capsys.readouterr().err

    def test_a_missing_package_is_named(self, run_folder, tmp_path, capsys, monkeypatch):
        for package, ending in {"safetensors.torch": "safetensors", "onnxscript": "onnx"}.items():
            monkeypatch.setitem(sys.modules, package, None)
            assert main(["export", str(run_folder("convnet")), str(tmp_path / f"x.{ending}")]) == 2
            assert "install this suite with its extra: pip install -e '.[export]'" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_an_unfinished_run_is_refused(self, tmp_path, capsys):
        folder = finished(tmp_path, SECTIONS["convnet"])
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "result.json").unlink()
        assert main(["export", str(folder), str(tmp_path / "x.pt")]) == 2
        assert "has no scores yet: evaluate it first" in capsys.readouterr().err
        config["federation"]["rounds"] = 2
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        shutil.rmtree(folder / "checkpoint")
        capsys.readouterr()
        assert main(["export", str(folder), str(tmp_path / "x.pt")]) == 2
        assert "has done 0 of 2 rounds: finish it first with `resume" in capsys.readouterr().err

    def test_an_older_file_survives_an_export_that_fails(self, run_folder, tmp_path, monkeypatch):
        file = tmp_path / "x.pt"
        file.write_text("older")
        folder = run_folder("convnet")  # before a file can no longer be saved

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device", str(file))

        monkeypatch.setattr(torch, "save", fail)
        assert main(["export", str(folder), str(file)]) == 2
        assert file.read_text() == "older"
        assert [each.name for each in tmp_path.iterdir()] == ["x.pt"]
