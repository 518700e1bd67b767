"""The command `data`: its words, and its lines without npm."""

import json

import pytest

from datamodules import packages, rebuilt


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "usage: python -m benchmark data typefaces|icons"),
        (["typeface"], "there is no set 'typeface' to build (did you mean 'typefaces'?): choose typefaces, icons"),
        (["icons", "data.name=x"], "data takes data.root only, and not data.name=x"),
        (["icons"], "and there is no npm: install Node.js"),
    ],
)
def test_mistakes_and_a_machine_without_npm_are_one_line(call, monkeypatch, tmp_path, words, line):
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    code, _, error = call("data", *words)
    assert (code, len(error.splitlines())) == (2, 1)
    assert line in error
    assert not (tmp_path / "data" / "icons.npz").exists()


def test_a_listed_set_is_not_built_again(call, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    (tmp_path / "icons.npz").touch()
    (tmp_path / "icons.json").write_bytes((packages.LOCKS / "icons.json").read_bytes())
    code, out, _ = call("data", "icons", f"data.root={tmp_path}")
    assert (code, "with the listed content" in out) == (0, True)
    facts = json.loads((tmp_path / "icons.json").read_text())
    (tmp_path / "icons.json").write_text(json.dumps(facts | {"tools": {"resvg": "0"}}))  # that draws the same
    assert rebuilt.is_built("icons", tmp_path)
    (tmp_path / "icons.json").write_text(json.dumps(facts | {"sha256": "0"}))
    assert not rebuilt.is_built("icons", tmp_path)
    (tmp_path / "icons.json").write_text("{")
    assert not rebuilt.is_built("icons", tmp_path)
    assert call("data", "icons", f"data.root={tmp_path}")[0] == 2
