"""`pretrain`: an encoder of the images that a later federation has at no client, which that federation starts from."""

import re

import numpy as np
import pytest
import torch

from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.configuration.partitions import WEIGHTS
from benchmark.errors import ConfigError
from benchmark.experiment import data
from benchmark.experiment.pretraining import pretraining
from datamodules.errors import PartitionError
from methods import networks
from tests.run_helpers import TINY, build_run

DOMAINS = ("data.name=domains", "data.options={}", "data.channels=1")
HELD_OUT = (*DOMAINS, "partition.held_out=0.3", "partition.seed=4")
SHORT = ("federation.rounds=1", "training.steps=2", "evaluation.protocols=[geometry/v1]", "logger=csv", "threads=1")


def trained_on(config):
    """The rows that somebody trains on."""
    return np.concatenate(data.clients_of(config, data.source(config)).parts)


@pytest.mark.parametrize("rule", [("partition.name=folders",), ("partition.name=folders", "partition.clients=3"), ()])
@pytest.mark.parametrize("given", ["0.3", "[display-1,handwriting-0]"])
def test_it_trains_on_all_images_of_those_who_are_held_out_and_no_other(rule, given):
    words = (*DOMAINS, f"partition.held_out={given}", "partition.seed=4", *rule)
    federations = [compose(TINY, "fedavg", [*words, f"seed={seed}"]) for seed in (0, 1)]
    for seed, federation in enumerate(federations):
        own, images = pretraining(TINY, "byol", [*words, f"seed={seed}"]), data.source(federation)
        held = data.clients_of(federation, images).held_out
        assert trained_on(own).tolist() == held.tolist() != []
        assert not np.intersect1d(trained_on(federation), held).size
        assert (own.method["name"], own.objective["name"], own.seed) == ("centralized", "byol", seed)


def test_the_command_writes_what_a_federation_starts_from(tmp_path, capsys):
    file, here = tmp_path / "of others.pt", (f"output={tmp_path}/runs", f"data.cache={tmp_path}/cache")
    words = ("pretrain", TINY, "simclr", f"into={file}", "accelerator=cpu", *HELD_OUT, *SHORT, *here)
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    start = (f"encoder.weights={file}", "views.mean=null", "views.std=null")
    assert f"run {TINY} METHOD encoder.weights='{file}' {' '.join(start[1:])}" in said
    before, again = file.stat().st_mtime_ns, main(words)
    assert again == 0  # nothing is trained a second time
    assert "already done" in capsys.readouterr().out
    assert file.stat().st_mtime_ns > before
    run = build_run(tmp_path, "fedavg", *HELD_OUT, *start)
    run.loop.restore()
    weights = torch.load(file, weights_only=True)
    for name, value in run.loop.server["weights"]["encoder"].items():
        assert torch.equal(value, weights[name.removeprefix("backbone.")])


def test_by_default_the_file_lies_in_the_run_folder(tmp_path):
    output = tmp_path / "runs"
    words = ("scenario=it", f"output={output}", f"data.cache={tmp_path}/cache", "accelerator=cpu")
    assert main(["pretrain", TINY, "simclr", *HELD_OUT, *SHORT, *words]) == 0
    assert (output / "it" / "pretrain-simclr" / "seed0" / "encoder.pt").is_file()


@pytest.mark.parametrize(
    ("words", "line"),
    [(DOMAINS, "hold some out, e.g. partition.held_out=0.2 partition.seed=0"),
     ((*DOMAINS, "partition.held_out=0.3"), "other clients under each seed: give partition.seed too"),
     ((*DOMAINS, "partition.held_out=[0]", f"partition.class={__name__}.halves"), "clients that the data name"),
     ((*DOMAINS, "partition.held_out=[anna]"), "no client 'anna'"),
     (("partition.held_out=[anna]",), "data set synthetic names no clients")],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line(words, line):
    with pytest.raises((ConfigError, PartitionError), match=re.escape(line)) as error:
        pretraining(TINY, "simclr", words)
    assert "\n" not in str(error.value)


def halves(labels):
    return np.array_split(np.arange(len(labels)), 2)


def test_a_file_of_the_suite_is_found_by_its_name_and_one_of_the_working_folder_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("views.mean=null", "views.std=null", "encoder.weights=adapt.pt")
    shipped = compose("adapt", "fedavg", words)
    torch.save(networks.convnet().backbone.state_dict(), "adapt.pt")
    own = compose("adapt", "fedavg", words)
    assert (WEIGHTS / "adapt.pt").is_file()
    assert own.encoder.weights_sha256 != shipped.encoder.weights_sha256
    with pytest.raises(ConfigError, match="no such file"):
        compose("adapt", "fedavg", [*words[:2], "encoder.weights=elsewhere/adapt.pt"])


def test_timms_dinov2_starts_from_a_file_with_an_adapter(tmp_path):
    """Of random weights and small images, as the page says."""
    timm = pytest.importorskip("timm")
    pytest.importorskip("peft")
    network = timm.create_model("vit_small_patch14_dinov2", num_classes=0, img_size=28)
    torch.save(network.state_dict(), file := tmp_path / "dinov2.pt")
    section = f"{{class: methods.networks.timm, name: vit_small_patch14_dinov2, weights: {file}}}"
    words = ("data.image_size=28", "data.channels=3", "views.size=28", "views.mean=[0.5]", "views.std=[0.5]")
    adapter = "encoder.adapter={name: lora, rank: 8, targets: [qkv]}"
    method = build_run(tmp_path, "fedavg", f"encoder={section}", adapter, *words).loop.method
    assert sum(value.numel() for value in method.weights()["encoder"].values()) == 12 * 8 * (384 + 3 * 384)
    frozen = method.part("encoder").backbone.get_submodule("blocks.11.mlp.fc2").weight
    assert torch.equal(frozen, network.blocks[11].mlp.fc2.weight)
