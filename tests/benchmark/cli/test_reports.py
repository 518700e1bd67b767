"""Commands that print or write what there is: list, cite, privacy, board."""

import re
import shutil

import pytest
import yaml

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from eval.protocol import PROTOCOLS
from leaderboards import store
from leaderboards.pages import privacy
from tests.leaderboards.test_schema import marks
from tests.run_helpers import TINY


def listed(call, *group):
    code, out, err = call("list", *group)
    assert (code, err) == (0, "")
    return set(out.split())


def test_list_names_everything_or_one_group(call):
    words = listed(call)
    for group in ("suite", "campaign", "scenario", "method", "objective"):
        assert set(available(group)) <= words
    assert {*PROTOCOLS, "methods.server.Yogi", "set>/v1", "set>/v2"} <= words  # transfer-<data set>/v1
    words = listed(call, "server_optimizers")
    assert {f"methods.server.{name}" for name in ("Momentum", "Adam", "Yogi")} <= words
    assert not set(available("method")) & words
    words = listed(call, "encoders")  # all constructors of one
    named = {word.removeprefix("methods.networks.") for word in words if word.startswith("methods.networks.")}
    assert {"resnet18", "vit_tiny", "vit_small", "mobilenet_v3", "convnext_tiny", "timm", "torchvision"} <= named
    assert not named & {"mlp", "normalisation", "timm_model"}


def test_the_help_names_groups_and_keys_that_there_are(call):
    titles = re.findall(r"^(\w+) *$", call("list")[1], re.MULTILINE)
    assert f"list [{' | '.join(titles)}]" in call("list", "--help")[1]
    code, out, _ = call("run", "--help")
    assert code == 0
    words = set(re.findall(r"[\w.]+=", out)) - {"key=", "suite=", "methods=", "seeds=", "jobs="}
    assert {"objective=", "data.root=", "output=", "logger=", "devices=", "row=", "scenario="} <= words
    sections = {key.rpartition(".")[::2] for key in (word.strip("=") for word in words) if "KEY" not in key}
    config = compose("digits", "ssd", [])
    assert not [(section, key) for section, key in sections if key not in (config[section] if section else config)]


def test_the_papers_and_the_suite_are_cited_each_once(call, refused):
    code, out, _ = call("cite", "ssd", "fedavg-byol", "fedx/cifar10", "ssd", "methods.server.Yogi")
    assert (code, "Fang, Hung-Chieh" in out) == (0, True)
    keys = re.compile(r"^@\w+\{(\w+),$", re.MULTILINE)
    assert keys.findall(out) == ["ssd", "fedavg", "byol", "fedx", "fedopt", "fulcrum"]
    assert keys.findall(call("cite", "scaffold-fedx")[1]) == ["fedx", "scaffold", "fulcrum"]  # a method over two papers
    assert call("cite", "untrained")[1].startswith("% untrained: no paper\n@misc{fulcrum,")  # a baseline
    assert "unknown name 'sdd' (did you mean 'ssd'?)" in refused("cite", "sdd")
    assert "usage: python -m benchmark cite" in refused("cite")


class TestPrivacy:
    SMALL = "encoder.class=methods.networks.convnet"

    def test_named_methods_are_shown(self, call, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        code, out, _ = call("privacy", "fedsc", "scaffold", self.SMALL)
        assert code == 0
        assert {"correlate", "delta_w", "delta_c", "1,048,576"} <= set(out.split())
        assert "fedsc: spectral, networks of fedsc/cifar10; stays with the client: nothing" in out
        assert "stays with the client: c, " in out
        assert not list(tmp_path.iterdir())

    def test_without_a_name_the_pages_are_written(self, call, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("benchmark.cli.reports.available", lambda group: ["fedsc", "untrained"])
        (tmp_path / "leaderboards" / "results").mkdir(parents=True)
        (tmp_path / "docs" / "reference").mkdir(parents=True)
        guide = tmp_path / "docs" / "reference" / "privacy-sheet.md"
        guide.write_text(f"before\n{marks('sheet', 'old')}\nafter\n")
        (tmp_path / "docs" / "reproduction.md").write_text(marks("published"))
        assert call("privacy")[0] == 0
        whole = privacy.read(tmp_path / "leaderboards" / "privacy.json")
        assert [method.name for method in whole.methods] == ["fedsc", "untrained"]
        assert re.fullmatch(r"before\n(?s:.*)after\n", page := guide.read_text())
        assert ("old" in page, "| fedsc | correlate | R | 512 x 512 | 1,048,576 |" in page) == (False, True)
        board = (tmp_path / "leaderboards" / "README.md").read_bytes()
        assert b"What leaves a client" in board
        assert call("board")[0] == 0
        assert (tmp_path / "leaderboards" / "README.md").read_bytes() == board

    def test_mistakes(self, refused, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert "unknown method 'fedvag' (did you mean 'fedavg'?)" in refused("privacy", "fedvag")
        assert "digits is a scenario, and a sheet is of a method alone" in refused("privacy", "digits", "fedsc")
        assert "of which method?" in refused("privacy", "method.sigma=1")
        assert "docs/reference/privacy-sheet.md" in refused("privacy")


class TestBoard:
    def test_finished_runs_are_taken_in(self, call, tmp_path):
        for method in ("fedavg", "ssd"):
            assert call("run", TINY, method, "federation.rounds=1", "scenario=tiny")[0] == 0
        folder = tmp_path / "boards"
        (tmp_path / "docs" / "methods").mkdir(parents=True)
        beside = tmp_path / "docs" / "methods" / "ssd.md"
        beside.write_text(marks("ours", "of another board"))
        code, out, _ = call("board", f"collect={tmp_path / 'runs'}", f"folder={folder}")
        assert (code, "2 runs in" in out, "of another board" in beside.read_text()) == (0, True, True)
        for method in ("fedavg", "ssd"):
            kept = store.read(folder / "results" / "tiny" / method / "seed0.json")
            assert kept == store.read(tmp_path / "runs" / "tiny" / method / "seed0" / "result.json")
            assert method in out
            assert method in (folder / "README.md").read_text()
        page = (folder / "README.md").read_bytes()
        shutil.rmtree(tmp_path / "runs")
        assert call("board", f"folder={folder}")[0] == 0
        assert (folder / "README.md").read_bytes() == page

    @pytest.mark.usefixtures("folder")
    def test_collected_runs_have_a_board_beside_them_and_the_repository_is_as_it_was(self, call, tmp_path, monkeypatch):
        checkout = tmp_path / "checkout"
        (checkout / "leaderboards" / "results").mkdir(parents=True)
        monkeypatch.chdir(checkout)
        code, out, _ = call("board", f"collect={tmp_path / 'runs'}")
        assert (code, "1 run in" in out) == (0, True)
        assert (tmp_path / "runs-board" / "results" / "tiny" / "fedavg" / "seed0.json").is_file()
        assert "fedavg" in (tmp_path / "runs-board" / "README.md").read_text()
        assert not [file for file in checkout.rglob("*") if file.is_file()]
        (checkout / "docs").mkdir()
        (checkout / "docs" / "reproduction.md").write_text(marks("published"))
        assert call("board", f"collect={tmp_path / 'runs'}", "into=repository")[0] == 0  # where that is asked for
        assert (checkout / "leaderboards" / "results" / "tiny" / "fedavg" / "seed0.json").is_file()

    def test_where_a_board_cannot_be_is_one_line(self, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert "give into=repository" in refused("board", "collect=runs", "into=here")
        assert "give one of them" in refused("board", "into=repository", "folder=mine")
        assert "run this from a checkout" in refused("board", "collect=runs", "into=repository")
        assert "give folder=BOARD" in refused("board", "collect=/")

    def test_what_the_board_would_refuse_is_not_taken_in(self, call, refused, tmp_path):
        folder = tmp_path / "boards"
        assert call("run", TINY, "fedavg", "federation.rounds=1", "scenario=short")[0] == 0
        assert call("board", f"collect={tmp_path / 'runs'}", f"folder={folder}")[0] == 0
        before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        other = ("federation.rounds=2", "scenario=short", "seed=1")
        assert call("run", TINY, "fedavg", *other, where="more")[0] == 0
        line = refused("board", f"collect={tmp_path / 'more'}", f"folder={folder}")
        assert "short/fedavg/seed1 are not one setting of a row" in line
        assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before

    def test_a_suite_ends_in_its_board(self, call, tmp_path):
        suite = tmp_path / "mine.yaml"
        content = {"scenarios": [TINY], "methods": ["fedavg", "ssd method.alpha=5"], "seeds": [0, 1, 2]}
        suite.write_text(yaml.safe_dump(content))
        code, out, _ = call("run", f"suite={suite}", "seeds=1", "federation.rounds=1", "scenario=short")
        assert code == 0
        rows = {file.parent.relative_to(tmp_path / "runs").as_posix() for file in tmp_path.rglob("result.json")}
        assert rows == {"short/fedavg/seed1", "short/ssd+alpha=5/seed1"}
        assert "ssd+alpha=5" in out.split("ssd+alpha=5 seed 1: knn/v1")[-1]
