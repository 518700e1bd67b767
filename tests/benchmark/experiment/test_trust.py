"""A run folder that somebody else made: its config is read, but names no code that would run unasked."""

import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmark.cli.main import main
from benchmark.configuration.instantiate import locate
from benchmark.federation.loop import FederatedLoop
from leaderboards import store
from tests.run_helpers import TINY

OWN = """
from pathlib import Path
from methods.fedavg import FedAvg

Path(__file__).with_name("imported").touch()


class Own(FedAvg):
    pass
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of FedAvg, not to be changed."""
    place = tmp_path_factory.mktemp("finished")
    words = ["logger=csv", "threads=1", f"output={place}/runs", f"data.cache={place}/cache"]
    assert main(["run", TINY, "fedavg", "federation.rounds=1", "row=it", "scenario=tiny", *words]) == 0
    return place / "runs" / "tiny" / "it" / "seed0"


@pytest.fixture
def folder(tmp_path: Path, finished: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(finished, tmp_path / "runs" / "tiny" / "it" / "seed0")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module `outside_module` with a method, which leaves a file when it is imported."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "outside_module.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.delitem(sys.modules, "outside_module", raising=False)
    return tmp_path / "code" / "imported"


def refused(capsys: pytest.CaptureFixture, *words: str) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def name_class(folder: Path, where: str, path: str, **arguments: object) -> None:
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
    """A server optimiser of one's own."""

    def init(self) -> None:
        """As those of `methods.server`."""

    def step(self) -> None:
        """As those of `methods.server`."""


def untyped(**_: object) -> Any:
    """A function that may return an encoder."""


def unresolved(**_: object) -> "Nowhere":  # type: ignore[name-defined] # noqa: F821
    """A function whose annotation is imported for type checkers only."""


@pytest.mark.parametrize(
    ("name", "where"), [("Decayed", "server_optimizer"), ("untyped", "encoder"), ("unresolved", "encoder")]
)
def test_own_code_of_the_right_kind_is_taken(name: str, where: str) -> None:
    assert locate({"class": f"{__name__}.{name}"}, where) is globals()[name]


SECTIONS = (
    "method", "method.addons", "objective", "encoder", "optimizer", "server_optimizer", "federation.encoders.small",
)  # fmt: skip


@pytest.mark.parametrize("where", SECTIONS)
def test_code_from_outside_is_refused_before_it_is_imported(
    folder: Path, own: Path, capsys: pytest.CaptureFixture, where: str
) -> None:
    before = (folder / "config.yaml").read_text()
    for path in ("os.system", "builtins.exec", "torch.hub.load", "subprocess.Popen", "outside_module.Own"):
        (folder / "config.yaml").write_text(before)
        name_class(folder, where, path, command=f"touch {own}", args=f"touch {own}")
        for command in ("resume", "evaluate") if path == "outside_module.Own" else ("resume",):
            err = refused(capsys, command, str(folder))
            line = f"error: {folder}/config.yaml names code from outside the suite ({where}.class={path})"
            assert (err.startswith(line), "trust=true" in err) == (True, True)
            assert not own.exists()


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("method.addons", "methods.server.Adam"),
        ("method.addons", "methods.networks.partial"),
        ("method", "methods.networks.resnet18"),
        ("objective", "methods.fedavg.FedAvg"),
        ("encoder", "methods.trees.map"),
        ("encoder", "torch.optim.swa_utils.get_ema_multi_avg_fn"),
        ("encoder", "torch.optim.swa_utils.update_bn"),
        ("encoder", "methods.networks._resnet"),
        ("encoder", "methods.networks.torch.hub.load"),
        ("encoder", "methods.networks.models.resnet18"),
        ("encoder", "methods.networks.torchvision_model"),
        ("encoder", "methods.libraries.import_timm"),
        ("optimizer", "torch.optim.lr_scheduler.LRScheduler"),
        ("server_optimizer", "methods.fedavg.FedAvg"),
    ],
)
def test_a_class_of_another_kind_is_refused_before_anything_is_called(
    folder: Path, capsys: pytest.CaptureFixture, where: str, path: str
) -> None:
    name_class(folder, where, path)
    err = refused(capsys, "resume", str(folder))
    assert err.startswith("error: ")
    assert f"{where}.class={path}" in err


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
def test_no_argument_of_an_encoder_fetches_or_loads(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    section: dict,
    line: str,
) -> None:
    reached: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda *given: reached.append(given))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    name_class(folder, "encoder", "methods.networks.torchvision", **section)
    (folder / "result.json").unlink()
    assert line in refused(capsys, "resume", str(folder))
    assert reached == []


@pytest.mark.parametrize("link", ["checkpoint/memory", "result.json.tmp", "lock", "figures/curves.png"])
def test_a_link_out_of_the_folder_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, link: str
) -> None:
    (outside := tmp_path / "outside").mkdir()
    (outside / "thesis.tex").write_text("all of it")
    path = folder / link
    path.unlink(missing_ok=True)
    path.symlink_to(outside if link == "checkpoint/memory" else outside / "thesis.tex")
    for command in ("resume", "evaluate"):
        assert f"{path} is a link out of its run folder" in refused(capsys, command, str(folder))
    assert (outside / "thesis.tex").read_text() == "all of it"


def test_the_link_of_wandb_to_its_own_log_is_no_such_link(folder: Path, tmp_path: Path) -> None:
    logs = folder / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "core.log")
    assert main(["evaluate", str(folder)]) == 0


@pytest.mark.parametrize("where", [where for where in SECTIONS if "encoder" not in where])  # theirs may be functions
def test_the_command_line_names_own_code_but_of_the_right_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture, where: str
) -> None:
    section = f"{where}=[{{class: os.system}}]" if where == "method.addons" else f"{where}.class=os.system"
    words = ("run", TINY, "flesd", section, f"output={tmp_path}/runs", f"data.cache={tmp_path}/cache")
    assert f"{where}.class=os.system is no " in refused(capsys, *words)


def test_own_code_resumes_with_trust(
    tmp_path: Path, own: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has changed between two sessions is recorded twice."""
    words = ["logger=csv", "threads=1", f"output={tmp_path}/runs", f"data.cache={tmp_path}/cache", "row=own"]
    command = ["run", TINY, "fedavg", "method.class=outside_module.Own", "scenario=tiny", *words]
    path = tmp_path / "runs" / "tiny" / "own" / "seed0"

    def stop(self: FederatedLoop) -> None:
        save(self)
        raise KeyboardInterrupt

    save = FederatedLoop.save
    monkeypatch.setattr(FederatedLoop, "save", stop)
    assert main(command) == 130
    monkeypatch.setattr(FederatedLoop, "save", save)
    with (own.parent / "outside_module.py").open("a") as stream:
        stream.write("# another line\n")
    assert "trust=true" in refused(capsys, "resume", str(path))
    assert "trust=maybe: give true or false" in refused(capsys, "resume", str(path), "trust=maybe")
    assert main(["resume", str(path), "trust=true"]) == 0
    assert main(["evaluate", str(path), "protocols=knn/v1", "trust=true"]) == 0
    lines = [line for line in store.read(path / "result.json")["deviations"] if "outside_module.Own" in line]
    assert len(set(lines)) == 2


def test_a_record_of_another_config_and_a_lost_checkpoint_are_named(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    config, state = (folder / "config.yaml").read_text(), (folder / "checkpoint" / "state.pt").read_bytes()
    (folder / "config.yaml").write_text(config.replace("lr: 0.05", "lr: 0.9"))
    assert "result.json is the record of another config" in refused(capsys, "resume", str(folder))
    (folder / "config.yaml").write_text(config)
    (folder / "checkpoint" / "state.pt").unlink()
    assert "its encoder is gone with" in refused(capsys, "evaluate", str(folder))
    (folder / "result.json").write_text("{")
    assert "delete it, and the same command makes it again" in refused(capsys, "resume", str(folder))
    (folder / "checkpoint" / "state.pt").write_bytes(state[:100] + b"x" + state[101:])
    (folder / "result.json").unlink()
    assert "it has changed since it was written" in refused(capsys, "resume", str(folder))
    (folder / "checkpoint" / "state.pt").unlink()
    assert main(["resume", str(folder)]) == 0
    assert "starts over" in capsys.readouterr().out
