"""Weights that an encoder starts from: what is loaded, what is refused, and what they mean for a run's identity."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import yaml
from torchvision import models
from torchvision.transforms._presets import ImageClassification

from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.configuration.identity import folder, identity
from benchmark.configuration.partitions import sha256
from benchmark.errors import ConfigError
from benchmark.experiment import factory
from benchmark.experiment.data import source
from benchmark.experiment.initial_weights import load_state, read_state, start_from_weights
from benchmark.tracking.provenance import weights_hashes
from leaderboards import store
from methods import libraries, networks
from tests.run_helpers import TINY, build_run

NORMALISED = ("views.mean=null", "views.std=null")


@pytest.fixture
def convnet(tmp_path: Path) -> Path:
    """A file of the weights of the tiny scenario's encoder, from another draw."""
    file = tmp_path / "convnet.pt"
    torch.save(networks.convnet(widths=(6, 8), strides=(2, 2)).backbone.state_dict(), file)
    return file


def initial(config: Any) -> dict[str, torch.Tensor]:
    """The state of the encoder that a config builds."""
    return factory.method(config, source(config)).part("encoder").backbone.state_dict()


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class TestLoading:
    def test_the_encoder_starts_from_the_file_and_the_heads_as_without(self, convnet):
        plain, loaded = (compose(TINY, "fedavg", [*NORMALISED, *more]) for more in ([], [f"encoder.weights={convnet}"]))
        assert equal(initial(loaded), torch.load(convnet, weights_only=True))
        assert not equal(initial(plain), initial(loaded))
        heads = [factory.method(config, source(config)).part("projector").state_dict() for config in (plain, loaded)]
        assert equal(*heads)

    def test_every_client_and_the_server_start_from_it(self, convnet, tmp_path):
        run = build_run(tmp_path, "fedavg", *NORMALISED, f"encoder.weights={convnet}")
        run.loop.restore()
        sent = run.loop.server["weights"]["encoder"]
        weights = torch.load(convnet, weights_only=True)
        assert all(torch.equal(value, weights[name.removeprefix("backbone.")]) for name, value in sent.items())

    def test_the_names_may_be_those_of_the_encoder_or_of_its_backbone(self):
        source_of, target = networks.convnet(), networks.convnet()
        for state in (source_of.state_dict(), source_of.backbone.state_dict()):
            load_state(target, state, "x")
            assert equal(target.state_dict(), source_of.state_dict())

    def test_a_safetensors_file_is_the_same_weights(self, convnet, tmp_path):
        state = torch.load(convnet, weights_only=True)
        safetensors.torch.save_file(state, tmp_path / "convnet.safetensors")
        assert equal(read_state(tmp_path / "convnet.safetensors", "x"), state)

    def test_the_classifier_of_torchvisions_file_is_left_out_and_nothing_else(self):
        plain = models.resnet18()
        for encoder in (networks.resnet18(stem="imagenet"), networks.torchvision(name="resnet18", image_size=32)):
            load_state(encoder, plain.state_dict(), "x")
            images = torch.rand(2, 3, 32, 32)
            features = torch.nn.Sequential(*list(plain.children())[:-1], torch.nn.Flatten()).eval()
            assert torch.equal(encoder.eval()(images), features(images))

    def test_an_encoder_that_is_no_librarys_model_leaves_nothing_out(self):
        encoder = networks.resnet18()
        state = {**encoder.backbone.state_dict(), "fc.weight": torch.ones(1), "fc.bias": torch.ones(1)}
        with pytest.raises(ConfigError, match=r"unexpected: fc\.weight, fc\.bias"):
            load_state(encoder, state, "x")

    def test_timms_classifier_is_left_out_too(self):
        plain, encoder = timm.create_model("resnet18"), networks.timm(name="resnet18", image_size=32)
        load_state(encoder, plain.state_dict(), "x")
        assert torch.equal(encoder.backbone.conv1.weight, plain.conv1.weight)

    @pytest.mark.parametrize(
        ("change", "line"),
        [
            (lambda state: [state.pop(name) for name in list(state)[:5]], "missing: 0.weight, 1.weight, 1.bias and"),
            (lambda state: state.update(a=torch.ones(1)), "unexpected: a"),
            (
                lambda state: [state.update({f"module.{name}": state.pop(name)}) for name in list(state)],
                "all its names begin with 'module.': save the state dict of the network inside",
            ),
            (lambda state: state.update({"0.weight": torch.ones(2)}), "0.weight [2] instead of [6, 3, 3, 3]"),
            (lambda state: state.update({"1.bias": torch.ones(6).int()}), "1.bias [6] instead of [6]"),
            (lambda state: state["1.bias"].fill_(torch.nan), "not finite: 1.bias"),
        ],
    )  # fmt: skip
    def test_weights_of_another_network_are_named_in_one_line(self, convnet, tmp_path, change, line):
        state = torch.load(convnet, weights_only=True)
        change(state)
        with pytest.raises(ConfigError) as caught:
            load_state(networks.convnet(widths=(6, 8), strides=(2, 2)), state, "encoder.weights=x")
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "line"),
        [
            (b"", "cannot be read as a state dict without running code"),
            (b"no weights at all", "cannot be read as a state dict without running code"),
            ({"state_dict": {}}, "it holds a mapping with state_dict"),
            ([1], "it holds a list"),
            (networks.convnet(widths=(2,), strides=(1,)), "cannot be read as a state dict without running code"),
        ],
    )
    def test_a_file_of_something_else_is_one_line_and_runs_nothing(self, tmp_path, content, line):
        file = tmp_path / "x.pt"
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(ConfigError, match=line):
            read_state(file, "encoder.weights=x")

    def test_an_architecture_of_some_clients_starts_from_a_file_of_its_own(self, convnet):
        section = (
            f"{{class: methods.networks.convnet, widths: [6,8], strides: [2,2], clients: [1], weights: {convnet}}}"
        )
        public = ("public.name=client", "public.client=0")
        config = compose(TINY, "flesd", [*NORMALISED, *public, f"federation.encoders={{small: {section}}}"])
        method = factory.method(config, source(config))
        other = method.others["small"].part("encoder").backbone.state_dict()
        assert equal(other, torch.load(convnet, weights_only=True))
        assert not equal(method.part("encoder").backbone.state_dict(), other)
        assert config.federation.encoders.small.weights_sha256 == sha256(convnet, "x")


class TestNormalisation:
    @pytest.mark.parametrize("views", [[], ["views.mean=[0.5]"]])
    def test_it_has_to_be_set_beside_weights(self, convnet, views):
        config = compose(TINY, "fedavg", [f"encoder.weights={convnet}", *views])
        with pytest.raises(ConfigError, match=r"views.std (is|are) not set: set those that the weights were trained"):
            start_from_weights(networks.convnet(), config.encoder, "encoder", config.views)

    def test_torchvisions_weights_name_theirs(self):
        section = {"class": "methods.networks.torchvision", "name": "resnet18", "weights": "IMAGENET1K_V1"}
        with pytest.raises(ConfigError) as caught:
            start_from_weights(networks.convnet(), section, "encoder", {})
        assert "set views.mean=[0.485,0.456,0.406] views.std=[0.229,0.224,0.225]" in str(caught.value)


class TestIdentity:
    def test_it_is_that_of_the_content_wherever_the_file_lies(self, convnet, tmp_path, monkeypatch):
        shutil.copy(convnet, elsewhere := tmp_path / "elsewhere.bin")
        monkeypatch.chdir(tmp_path)
        configs = [compose(TINY, "fedavg", [f"encoder.weights={file}"]) for file in (convnet, elsewhere, "convnet.pt")]
        assert len({identity(config) for config in configs}) == 1
        assert len({folder(config) for config in configs}) == 1
        networks_of_other_draw = networks.convnet(widths=(6, 8), strides=(2, 2)).backbone.state_dict()
        torch.save(networks_of_other_draw, elsewhere)
        assert identity(compose(TINY, "fedavg", [f"encoder.weights={elsewhere}"])) != identity(configs[0])

    def test_null_is_no_weights(self):
        plain, null = (compose(TINY, "fedavg", more) for more in ([], ["encoder.weights=null"]))
        assert identity(plain) == identity(null)

    @pytest.mark.parametrize(
        ("overrides", "line"),
        [
            (["encoder.weights=missing.pt"], "encoder.weights=missing.pt: there is no such file"),
            (["encoder.weights=/dev/zero"], "encoder.weights=/dev/zero: there is no such file"),
            (["encoder.weights=https://x.org/a.pt"], "nothing is fetched from an address"),
            (["encoder.weights=IMAGENET1K_V1"], "methods.networks.convnet takes no name"),
            (["encoder.weights=3"], "encoder.weights=3: methods.networks.convnet takes no name: give a file"),
            (["encoder.weights_sha256=abc"], "there is no file whose content it could be"),
        ],
    )
    def test_what_is_no_file_is_one_line(self, overrides, line):
        with pytest.raises(ConfigError, match=line):
            compose(TINY, "fedavg", overrides)

    def test_another_class_or_model_drops_the_weights(self, convnet, tmp_path):
        scenario = tmp_path / "mine.yaml"
        encoder = {"class": "methods.networks.torchvision", "name": "resnet18", "weights": str(convnet)}
        content = {**yaml.safe_load(Path(TINY).read_text()), "encoder": {**encoder, "zero_init_residual": True}}
        scenario.write_text(yaml.safe_dump(content))
        config = compose(str(scenario), "fedavg", ["encoder.name=resnet34"])
        assert dict(config.encoder) == {"class": "methods.networks.torchvision", "name": "resnet34"}
        config = compose(str(scenario), "fedavg", ["encoder.class=methods.networks.convnet"])
        assert dict(config.encoder) == {"class": "methods.networks.convnet"}


class TestRuns:
    WORDS = ("federation.rounds=1", "row=it", "scenario=tiny", "threads=1", "logger=csv", *NORMALISED)

    @pytest.fixture
    def words(self, tmp_path, convnet):
        places = (f"output={tmp_path}/runs", f"data.cache={tmp_path}/cache")
        return ["run", TINY, "fedavg", *self.WORDS, *places, f"encoder.weights={convnet}"]

    @pytest.fixture
    def run_folder(self, tmp_path, words):
        assert main(words) == 0
        return tmp_path / "runs" / "tiny" / "it" / "seed0"

    @pytest.fixture
    def refused(self, capsys):
        """Runs a command that has to fail with a one-line error; returns that line."""

        def refusing(*words):
            capsys.readouterr()
            assert main(words) == 2
            err = capsys.readouterr().err
            assert (err.startswith("error: "), err.count("\n")) == (True, 1)
            return err

        return refusing

    def test_the_record_holds_the_hash_and_a_file_of_changed_content_is_another_run(
        self, run_folder, words, convnet, refused, tmp_path
    ):
        record = store.read(run_folder / "result.json")  # which validates it
        assert record["provenance"]["weights"] == {"encoder.weights": sha256(convnet, "x")}
        assert record["settings"]["encoder.weights_sha256"] == sha256(convnet, "x")
        assert "encoder.weights" not in record["settings"]
        moved = convnet.rename(tmp_path / "moved.pt")
        (run_folder / "result.json").unlink()
        assert "convnet.pt: there is no such file" in refused("resume", str(run_folder))
        assert main(["resume", str(run_folder), f"encoder.weights={moved}"]) == 0
        torch.save(networks.convnet(widths=(6, 8), strides=(2, 2)).backbone.state_dict(), convnet)
        assert "holds a run of another config (encoder.weights_sha256: " in refused(*words)
        (run_folder / "result.json").unlink()
        line = "its content is not that of encoder.weights_sha256"
        assert line in refused("resume", str(run_folder), f"encoder.weights={convnet}")

    def test_a_foreign_folder_fetches_nothing_unless_trusted(self, run_folder, tmp_path, monkeypatch, refused):
        file = run_folder / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config["encoder"] = {"class": "methods.networks.torchvision", "name": "resnet18", "weights": "IMAGENET1K_V1"}
        file.write_text(yaml.safe_dump(config))
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
        fetched: list[str] = []
        monkeypatch.setattr(torch.hub, "download_url_to_file", lambda url, *_, **__: fetched.append(url))
        assert "would fetch resnet18-f37072fd.pth" in refused("resume", str(run_folder))
        assert fetched == []

    def test_a_foreign_folder_cannot_make_a_pipe_or_a_pickle_be_read(self, run_folder, tmp_path, refused):
        file = run_folder / "config.yaml"
        config = yaml.safe_load(file.read_text())
        (run_folder / "result.json").unlink()
        torch.save(networks.convnet(), pickled := tmp_path / "pickled.pt")
        for path, line in {"/dev/zero": "no such file", str(pickled): "without running code"}.items():
            config["encoder"] |= {"weights": path, "weights_sha256": sha256(pickled, "x")}
            file.write_text(yaml.safe_dump(config))
            shutil.rmtree(run_folder / "checkpoint", ignore_errors=True)
            assert line in refused("resume", str(run_folder))


class TestTorchvisionsNames:
    """A name of torchvision's weights; its file is in the hub's folder, or is put there by torchvision."""

    @pytest.fixture
    def hub(self, tmp_path, monkeypatch):
        """The hub's folder, and an entry of weights for mobilenet_v3_small whose file is in it."""
        (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
        torch.save(models.mobilenet_v3_small(width_mult=0.25).state_dict(), tmp_path / "made.pth")
        name = f"small-{sha256(tmp_path / 'made.pth', 'x')[:8]}.pth"
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
        url = f"https://download.pytorch.org/models/{name}"

        def get_state_dict(**options):
            return torch.hub.load_state_dict_from_url(url, **options)

        preset = ImageClassification(crop_size=8)
        entry = SimpleNamespace(name="IMAGENET1K_V1", url=url, transforms=lambda: preset, get_state_dict=get_state_dict)
        monkeypatch.setattr(libraries.models, "get_model_weights", lambda name: [entry])
        return tmp_path / "hub" / "checkpoints" / name

    WORDS = (
        "encoder={class: methods.networks.torchvision, name: mobilenet_v3_small, width_mult: 0.25, "
        "weights: IMAGENET1K_V1}",
        "views.mean=[0.485,0.456,0.406]",
        "views.std=[0.229,0.224,0.225]",
        "federation.rounds=1",
    )

    def test_the_encoder_starts_from_the_file_in_the_hubs_folder(self, hub, tmp_path):
        shutil.copy(tmp_path / "made.pth", hub)
        run = build_run(tmp_path / "run", "fedavg", *self.WORDS)
        assert weights_hashes(run.config) == {"encoder.weights": sha256(hub, "x")}  # which the record holds
        loaded, state = run.loop.method.part("encoder").backbone.state_dict(), torch.load(hub, weights_only=True)
        assert all(torch.equal(value, state[name]) for name, value in loaded.items())
        assert run.config.encoder.get("weights_sha256") is None

    def test_a_damaged_file_is_named(self, hub, tmp_path):
        torch.save(models.mobilenet_v3_small(width_mult=0.25).state_dict(), hub)
        with pytest.raises(ConfigError, match="is damaged, its hash is not that in its name: delete it"):
            build_run(tmp_path / "run", "fedavg", *self.WORDS)

    def test_without_a_network_the_line_says_where_the_file_belongs(self, hub, tmp_path, monkeypatch):
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError("no network")

        monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
        with pytest.raises(ConfigError, match=r"cannot fetch .* \(no network\): put that file into .*checkpoints"):
            build_run(tmp_path / "run", "fedavg", *self.WORDS)
