"""A run folder that somebody else made: its config is read, but names no code that would run unasked."""

import socket
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml

from benchmark.cli.main import main
from benchmark.configuration.instantiate import locate
from leaderboards import store
from tests.benchmark.cli.cli_helpers import control_c, interrupt
from tests.run_helpers import TINY

OWN = """
from pathlib import Path
from methods.fedavg import FedAvg

Path(__file__).with_name("imported").touch()


class Own(FedAvg):
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `outside_module` with a method, which leaves a file when it is imported."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "outside_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.delitem(sys.modules, "outside_module", raising=False)
    return tmp_path / "code" / "imported"


def name_class(folder, where, path, **arguments):
    """Writes the import path, and arguments, into the folder's config."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    section = {"class": path, **arguments}
    if where == "method.addons":
        config["method"]["addons"] = [section]
    elif where.startswith("federation.encoders."):
        config["federation"]["encoders"][where.rpartition(".")[2]] = {**section, "clients": [0]}
    else:
        config[where] = section
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


class Decayed:
    """A server optimiser of one's own, with the functions of those of `methods.server`."""

    init = step = lambda self: None


def untyped(**_: object) -> Any:
    """A function that may return an encoder."""


def unresolved(**_: object) -> "Nowhere":  # type: ignore[name-defined] # noqa: F821
    """A function whose annotation is imported for type checkers only."""


def test_own_code_of_the_right_kind_is_taken():
    for kind, where in {Decayed: "server_optimizer", untyped: "encoder", unresolved: "encoder"}.items():
        assert locate({"class": f"{__name__}.{kind.__name__}"}, where) is kind


SECTIONS = (
    "method", "method.addons", "objective", "encoder", "optimizer", "server_optimizer", "federation.encoders.small",
)  # fmt: skip


@pytest.mark.parametrize("where", SECTIONS)
def test_code_from_outside_is_refused_before_it_is_imported(folder, own, refused, where):
    before = (folder / "config.yaml").read_text()
    for path in ("os.system", "builtins.exec", "torch.hub.load", "subprocess.Popen", "outside_module.Own"):
        (folder / "config.yaml").write_text(before)
        name_class(folder, where, path, command=f"touch {own}", args=f"touch {own}")
        for command in ("resume", "evaluate") if path == "outside_module.Own" else ("resume",):
            err = refused(command, str(folder))
            line = f"error: {folder}/config.yaml names code from outside the suite ({where}.class={path})"
            assert (err.startswith(line), "trust=true" in err, own.exists()) == (True, True, False)


OTHER_KINDS = {
    "method": ["methods.networks.resnet18"],
    "method.addons": ["methods.server.Adam", "methods.core.modules.partial"],
    "objective": ["methods.fedavg.FedAvg"],
    "encoder": [
        "methods.trees.map", "torch.optim.swa_utils.get_ema_multi_avg_fn", "torch.optim.swa_utils.update_bn",
        "methods.networks.convolutional._resnet", "methods.networks.convolutional.torch.hub.load",
        "methods.networks.convolutional.models.resnet18", "methods.networks.libraries.torchvision_model",
        "methods.networks.libraries.import_timm",
    ],
    "optimizer": ["torch.optim.lr_scheduler.LRScheduler"],
    "server_optimizer": ["methods.fedavg.FedAvg"],
}  # fmt: skip


@pytest.mark.parametrize("where", OTHER_KINDS)
def test_a_class_of_another_kind_is_refused_before_anything_is_called(folder, refused, where):
    before = (folder / "config.yaml").read_text()
    for path in OTHER_KINDS[where]:
        (folder / "config.yaml").write_text(before)
        name_class(folder, where, path)
        assert f"{where}.class={path}" in refused("resume", str(folder))


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"name": "resnet18", "pretrained": True}, "encoder.pretrained: torchvision's resnet18"),
        ({"name": "resnet18", "weights_backbone": "DEFAULT"}, "encoder.weights_backbone"),
        ({"name": "resnet18", "norm_layer": "https://example.org/x.pt"}, "no address and no path"),
        ({"name": "https://example.org/x"}, "torchvision has no model of this name"),
        ({"name": "resnet18", "weights": "https://example.org/x.pt"}, "nothing is fetched from an address"),
        ({"name": "resnet18", "weights": "IMAGENET1K_V1"}, "would fetch resnet18-f37072fd.pth"),
    ],
)
def test_no_argument_of_an_encoder_fetches_or_loads(folder, tmp_path, monkeypatch, refused, section, line):
    reached = Mock()
    monkeypatch.setattr(socket.socket, "connect", reached)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    name_class(folder, "encoder", "methods.networks.torchvision", **section)
    (folder / "result.json").unlink()
    assert line in refused("resume", str(folder))
    assert not reached.called


@pytest.mark.parametrize("link", ["checkpoint/memory", "result.json.tmp", "lock", "figures/curves.png"])
def test_a_link_out_of_the_folder_is_refused_before_anything_is_written(folder, tmp_path, refused, link):
    (outside := tmp_path / "outside").mkdir()
    (outside / "thesis.tex").write_text("all of it")
    path = folder / link
    path.unlink(missing_ok=True)
    path.symlink_to(outside if link == "checkpoint/memory" else outside / "thesis.tex")
    for command in ("resume", "evaluate"):
        assert f"{path} is a link out of its run folder" in refused(command, str(folder))
    assert (outside / "thesis.tex").read_text() == "all of it"


def test_the_link_of_wandb_to_its_own_log_is_no_such_link(folder, tmp_path):
    logs = folder / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "core.log")
    assert main(["evaluate", str(folder)]) == 0


@pytest.mark.parametrize("where", [where for where in SECTIONS if "encoder" not in where])  # theirs may be functions
def test_the_command_line_names_own_code_but_of_the_right_kind(refused, where):
    section = f"{where}=[{{class: os.system}}]" if where == "method.addons" else f"{where}.class=os.system"
    assert f"{where}.class=os.system is no " in refused("run", TINY, "flesd", section)


def test_own_code_resumes_with_trust(tmp_path, own, call, refused, monkeypatch):
    """What has changed between two sessions is recorded twice."""
    path = tmp_path / "runs" / "tiny" / "own" / "seed0"
    with monkeypatch.context() as patch:
        interrupt(patch, 3, control_c)  # in the second round
        assert call("run", TINY, "fedavg", "method.class=outside_module.Own", "scenario=tiny", "row=own")[0] == 130
    with (own.parent / "outside_module.py").open("a") as stream:
        stream.write("# another line\n")
    assert "trust=true" in refused("resume", str(path))
    assert "trust=maybe: give true or false" in refused("resume", str(path), "trust=maybe")
    assert call("resume", str(path), "trust=true")[0] == 0
    assert call("evaluate", str(path), "protocols=knn/v1", "trust=true")[0] == 0
    lines = [line for line in store.read(path / "result.json")["deviations"] if "outside_module.Own" in line]
    assert len(set(lines)) == 2


def test_a_record_of_another_config_and_a_lost_checkpoint_are_named(folder, call, refused):
    config, state = (folder / "config.yaml").read_text(), (folder / "checkpoint" / "state.pt").read_bytes()
    (folder / "config.yaml").write_text(config.replace("lr: 0.05", "lr: 0.9"))
    assert "result.json is the record of another config" in refused("resume", str(folder))
    (folder / "config.yaml").write_text(config)
    (folder / "checkpoint" / "state.pt").unlink()
    assert "its encoder is gone with" in refused("evaluate", str(folder))
    (folder / "result.json").write_text("{")
    assert "delete it, and the same command makes it again" in refused("resume", str(folder))
    (folder / "checkpoint" / "state.pt").write_bytes(state[:100] + b"x" + state[101:])
    (folder / "result.json").unlink()
    assert "it has changed since it was written" in refused("resume", str(folder))
    (folder / "checkpoint" / "state.pt").unlink()
    code, out, _ = call("resume", str(folder))
    assert (code, "starts over" in out) == (0, True)
