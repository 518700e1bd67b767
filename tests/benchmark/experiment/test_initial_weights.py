"""Weights that an encoder starts from: what is loaded, what is refused, and what they mean for a run's identity."""

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import safetensors.torch
import timm
import torch
import yaml
from torchvision import models
from torchvision.transforms._presets import ImageClassification

from benchmark.configuration.compose import compose
from benchmark.configuration.identity import folder, identity
from benchmark.configuration.partitions import sha256
from benchmark.errors import ConfigError
from benchmark.experiment import factory
from benchmark.experiment.data import source
from benchmark.experiment.initial_weights import load_state, read_state, start_from_weights
from benchmark.tracking.provenance import weights_hashes
from leaderboards import store
from methods import networks
from methods.networks import libraries
from tests.run_helpers import TINY, build_run

NORMALISED = ("views.mean=null", "views.std=null")


def draw():
    """Weights of the tiny scenario's encoder, each time others."""
    return networks.convnet(widths=(6, 8), strides=(2, 2)).backbone.state_dict()


@pytest.fixture
def convnet(tmp_path):
    torch.save(draw(), file := tmp_path / "convnet.pt")
    return file


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class TestLoading:
    def test_the_encoder_starts_from_the_file_and_the_heads_as_without(self, convnet):
        plain, loaded = (
            factory.method(config, source(config))
            for more in ([], [f"encoder.weights={convnet}"])
            for config in [compose(TINY, "fedavg", [*NORMALISED, *more])]
        )
        states = [method.part("encoder").backbone.state_dict() for method in (plain, loaded)]
        assert equal(states[1], torch.load(convnet, weights_only=True))
        assert not equal(*states)
        assert equal(*(method.part("projector").state_dict() for method in (plain, loaded)))

    def test_every_client_and_the_server_start_from_it(self, convnet, tmp_path):
        run = build_run(tmp_path, "fedavg", *NORMALISED, f"encoder.weights={convnet}")
        run.loop.restore()
        weights = torch.load(convnet, weights_only=True)
        for name, value in run.loop.server["weights"]["encoder"].items():
            assert torch.equal(value, weights[name.removeprefix("backbone.")])

    def test_the_names_may_be_those_of_the_encoder_or_of_its_backbone(self, tmp_path):
        source_of, target = networks.convnet(), networks.convnet()
        for state in (source_of.state_dict(), source_of.backbone.state_dict()):
            load_state(target, state, "x")
            assert equal(target.state_dict(), source_of.state_dict())
        safetensors.torch.save_file(state, tmp_path / "convnet.safetensors")
        assert equal(read_state(tmp_path / "convnet.safetensors", "x"), state)

    def test_the_classifier_of_a_librarys_file_is_left_out_and_nothing_else(self):
        plain = models.resnet18()
        for encoder in (networks.resnet18(stem="imagenet"), networks.torchvision(name="resnet18", image_size=32)):
            load_state(encoder, plain.state_dict(), "x")
            images = torch.rand(2, 3, 32, 32)
            features = torch.nn.Sequential(*list(plain.children())[:-1], torch.nn.Flatten()).eval()
            assert torch.equal(encoder.eval()(images), features(images))
        plain, encoder = timm.create_model("resnet18"), networks.timm(name="resnet18", image_size=32)
        load_state(encoder, plain.state_dict(), "x")
        assert torch.equal(encoder.backbone.conv1.weight, plain.conv1.weight)
        encoder = networks.resnet18()  # no library's model
        state = {**encoder.backbone.state_dict(), "fc.weight": torch.ones(1), "fc.bias": torch.ones(1)}
        with pytest.raises(ConfigError, match=r"unexpected: fc\.weight, fc\.bias"):
            load_state(encoder, state, "x")

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
    def test_weights_of_another_network_are_named_in_one_line(self, change, line):
        change(state := draw())
        with pytest.raises(ConfigError) as caught:
            load_state(networks.convnet(widths=(6, 8), strides=(2, 2)), state, "encoder.weights=x")
        assert (line in str(caught.value), "\n" in str(caught.value)) == (True, False)

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
        words = ("public.name=client", "public.client=0", f"federation.encoders={{small: {section}}}")
        config = compose(TINY, "flesd", [*NORMALISED, *words])
        method = factory.method(config, source(config))
        other = method.others["small"].part("encoder").backbone.state_dict()
        assert equal(other, torch.load(convnet, weights_only=True))
        assert not equal(method.part("encoder").backbone.state_dict(), other)
        assert config.federation.encoders.small.weights_sha256 == sha256(convnet, "x")

    @pytest.mark.parametrize("views", [[], ["views.mean=[0.5]"]])
    def test_normalisation_has_to_be_set_beside_weights(self, convnet, views):
        config = compose(TINY, "fedavg", [f"encoder.weights={convnet}", *views])
        with pytest.raises(ConfigError, match=r"views.std (is|are) not set: set those that the weights were trained"):
            start_from_weights(networks.convnet(), config.encoder, "encoder", config.views)
        section = {"class": "methods.networks.torchvision", "name": "resnet18", "weights": "IMAGENET1K_V1"}
        with pytest.raises(
            ConfigError, match=r"set views\.mean=\[0\.485,0\.456,0\.406\] views\.std=\[0\.229,0\.224,0\.2"
        ):
            start_from_weights(networks.convnet(), section, "encoder", {})


class TestIdentity:
    def test_it_is_that_of_the_content_wherever_the_file_lies(self, convnet, tmp_path, monkeypatch):
        shutil.copy(convnet, elsewhere := tmp_path / "elsewhere.bin")
        torch.save(draw(), other := tmp_path / "other.pt")
        monkeypatch.chdir(tmp_path)
        plain, null, *configs, of_other_draw = (
            compose(TINY, "fedavg", [f"encoder.weights={file}"] if file else [])
            for file in (None, "null", convnet, elsewhere, "convnet.pt", other)
        )
        assert len({(identity(config), folder(config)) for config in configs}) == 1
        assert identity(plain) == identity(null)
        assert len({identity(config) for config in (plain, configs[0], of_other_draw)}) == 3

    @pytest.mark.parametrize(
        ("override", "line"),
        [
            ("encoder.weights=missing.pt", "encoder.weights=missing.pt: there is no such file"),
            ("encoder.weights=/dev/zero", "encoder.weights=/dev/zero: there is no such file"),
            ("encoder.weights=https://x.org/a.pt", "nothing is fetched from an address"),
            ("encoder.weights=IMAGENET1K_V1", "methods.networks.convnet takes no name"),
            ("encoder.weights=3", "encoder.weights=3: methods.networks.convnet takes no name: give a file"),
            ("encoder.weights_sha256=abc", "there is no file whose content it could be"),
        ],
    )
    def test_what_is_no_file_is_one_line(self, override, line):
        with pytest.raises(ConfigError, match=line):
            compose(TINY, "fedavg", [override])

    def test_another_class_or_model_drops_the_weights(self, convnet, tmp_path):
        scenario = tmp_path / "mine.yaml"
        encoder = {"class": "methods.networks.torchvision", "name": "resnet18", "weights": str(convnet)}
        content = {**yaml.safe_load(Path(TINY).read_text()), "encoder": {**encoder, "zero_init_residual": True}}
        scenario.write_text(yaml.safe_dump(content))
        for override, kept in {
            "encoder.name=resnet34": {"class": encoder["class"], "name": "resnet34"},
            "encoder.class=methods.networks.convnet": {"class": "methods.networks.convnet"},
        }.items():
            assert dict(compose(str(scenario), "fedavg", [override]).encoder) == kept


class TestRuns:
    @pytest.fixture
    def words(self, convnet):
        return (
            "run", TINY, "fedavg", "federation.rounds=1", "scenario=tiny", *NORMALISED, f"encoder.weights={convnet}",
        )  # fmt: skip

    @pytest.fixture
    def run_folder(self, tmp_path, words, call):
        assert call(*words, "row=it")[0] == 0
        return tmp_path / "runs" / "tiny" / "it" / "seed0"

    def test_the_record_holds_the_hash_and_a_file_of_changed_content_is_another_run(
        self, run_folder, words, convnet, call, refused, tmp_path
    ):
        record, digest = store.read(run_folder / "result.json"), sha256(convnet, "x")  # which validates it
        assert record["provenance"]["weights"] == {"encoder.weights": digest}
        assert record["settings"]["encoder.weights_sha256"] == digest
        assert "encoder.weights" not in record["settings"]
        moved = convnet.rename(tmp_path / "moved.pt")
        (run_folder / "result.json").unlink()
        assert "convnet.pt: there is no such file" in refused("resume", str(run_folder))
        assert call("resume", str(run_folder), f"encoder.weights={moved}")[0] == 0
        torch.save(draw(), convnet)
        assert "holds a run of another config (encoder.weights_sha256: " in refused(*words, "row=it")
        (run_folder / "result.json").unlink()
        line = "its content is not that of encoder.weights_sha256"
        assert line in refused("resume", str(run_folder), f"encoder.weights={convnet}")

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
        url, preset = f"https://download.pytorch.org/models/{name}", ImageClassification(crop_size=8)
        load = partial(torch.hub.load_state_dict_from_url, url)
        entry = SimpleNamespace(name="IMAGENET1K_V1", url=url, transforms=lambda: preset, get_state_dict=load)
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

    def test_a_damaged_file_and_one_that_cannot_be_fetched_are_named(self, hub, tmp_path, monkeypatch):
        torch.save(models.mobilenet_v3_small(width_mult=0.25).state_dict(), hub)
        with pytest.raises(ConfigError, match="is damaged, its hash is not that in its name: delete it"):
            build_run(tmp_path / "run", "fedavg", *self.WORDS)
        hub.unlink()
        monkeypatch.setattr(torch.hub, "download_url_to_file", Mock(side_effect=OSError("no network")))
        with pytest.raises(ConfigError, match=r"cannot fetch .* \(no network\): put that file into .*checkpoints"):
            build_run(tmp_path / "run", "fedavg", *self.WORDS)
