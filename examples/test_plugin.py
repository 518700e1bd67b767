"""The package in `plugin/`: its names are known by its entry points, and its row gets onto a board by a bundle."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.configuration.files import plugins
from leaderboards import store
from leaderboards.bundles import Code
from tests.run_helpers import TINY

FOLDER = Path(__file__).parent / "plugin"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
EXPECTED = {
    "methods": ("cautious", "fulcrum_example.methods.Cautious"),
    "objectives": ("agree", "fulcrum_example.objectives.Agree"),
    "protocols": ("spread", "fulcrum_example.protocols.spread"),
    "sources": ("stripes", "fulcrum_example.sources.Stripes"),
}


def installed(folder: Path, name: str = "fulcrum_example", **further: str) -> None:
    """What an install writes beside a package: its name, version and entry points."""
    metadata = folder / f"{name}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
    groups = PROJECT["entry-points"] if not further else {"fulcrum.methods": further}
    lines = (
        line for group, names in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    )
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The package on the path, as an editable install has it."""
    installed(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)
    plugins.cache_clear()
    yield tmp_path
    plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("fulcrum_example")]:
        del sys.modules[name]


def test_list_knows_the_names_and_imports_nothing(plugin, capsys):
    assert main(["list", *EXPECTED]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name, path in EXPECTED.values():
        assert f"{name} {path}, of fulcrum-example 0.1.0" in out
    assert not [name for name in sys.modules if name.startswith("fulcrum_example")]


def test_the_names_stand_for_import_paths(plugin):
    config = compose(TINY, "cautious", ["objective=agree", "data.name=stripes", "evaluation.protocols=[spread:rows=9]"])
    assert (config.row, config.data.name) == ("cautious-agree", "stripes")
    paths = (config.method["class"], config.objective["class"], config.evaluation.protocols[0], config.data["class"])
    expected = [path for _, path in EXPECTED.values()]
    assert [path.partition(":")[0] for path in paths] == expected


def test_its_row_gets_onto_a_board_and_its_code_needs_trust(plugin, capsys, monkeypatch):
    monkeypatch.setattr("benchmark.experiment.run.commit", lambda: "0123abc")

    def call(*words: str) -> str:
        code = main(list(words))
        printed = capsys.readouterr()
        assert code == (2 if printed.err else 0), printed
        return printed.err or printed.out

    run = ("logger=csv", "scenario=tiny", "evaluation.protocols=[knn/v1,spread]", "data.cache=cache", "devices=1")
    call("run", TINY, "cautious", *run)
    record = json.loads(Path("runs/tiny/cautious/seed0/result.json").read_text())
    assert "fulcrum_example.methods.Cautious is code from outside the packages: sha256 " in record["deviations"][0]
    assert "tiny-cautious.zip: 1 run" in call(
        "submit", "runs/tiny/cautious/seed0", "chosen=its author", "output=rows/tiny-cautious.zip"
    )
    assert "names code from outside the suite" in call("verify", "rows/tiny-cautious.zip")
    assert "replayed" in call("verify", "rows/tiny-cautious.zip", "replay=0", "trust=true")
    call("board", "collect=rows", "folder=board")
    (record,) = store.collect(Path("board/results"))
    assert (record["row"], record["submission"]["mark"]) == ("cautious", "replayed")
    other = {"fulcrum_example.methods.Cautious": Code("0" * 64, "")}
    monkeypatch.setattr("benchmark.submission.verification.code_of", lambda _: other)
    line = call("verify", "rows/tiny-cautious.zip", "trust=true")
    assert "was other code than is here: install fulcrum-example 0.1.0" in line


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"cautious": "other:Cautious"}, "both have 'cautious' among their methods: uninstall one of them"),
        ({"half": "other"}, "fulcrum.methods half=other: give module:NAME"),
    ],
)
def test_entries_that_cannot_be_used_are_named(entry, message, plugin, capsys):
    installed(plugin, "other", **entry)
    assert main(["list", "methods"]) == 2
    assert message in capsys.readouterr().err


def test_a_shipped_name_stays_the_suites(plugin):
    installed(plugin, "other", fedavg="other:FedAvg")
    assert compose(TINY, "fedavg").method["class"] == "methods.fedavg.FedAvg"
