"""The command `data`: its words, and its lines without npm."""

import fcntl
import json
import shlex

import numpy as np
import pytest

from datamodules import rebuilt


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
    arrays = {f"{split}_labels": np.array(["a", "b"]) for split in ("train", "test")}
    arrays |= {f"{split}_images": np.arange(8, dtype=np.uint8).reshape(2, 2, 2) for split in ("train", "test")}
    arrays |= {f"{split}_clients": np.array(["x", "y"]) for split in ("train", "test")}
    facts = rebuilt.listed("icons") | {"sha256": rebuilt.sha256(arrays), "arrays": rebuilt.whole_sha256(arrays)}
    monkeypatch.setattr(rebuilt, "listed", lambda name: facts)
    images, written = tmp_path / "icons.npz", tmp_path / "icons.json"
    np.savez(images, **arrays)
    written.write_text(json.dumps(facts))
    code, out, _ = call("data", "icons", f"data.root={tmp_path}")
    assert (code, "with the listed content" in out) == (0, True)
    written.write_text(json.dumps(facts | {"tools": {"resvg": "0"}}))  # that draws the same
    assert rebuilt.is_built("icons", tmp_path)
    for other in (json.dumps(facts | {"sha256": "0"}), json.dumps(facts | {"lock": "0"}), "{"):
        written.write_text(other)
        assert not rebuilt.is_built("icons", tmp_path)
    written.write_text(json.dumps(facts))
    whole = images.read_bytes()
    for damaged in (whole[:-30], whole[:100], b"", b"no archive"):
        images.write_bytes(damaged)
        assert not rebuilt.is_built("icons", tmp_path)
    for byte in range(len(whole)):  # of a bit that nothing depends on, as a date's, the content is as it was
        flipped = bytearray(whole)
        flipped[byte] ^= 1 << byte % 8
        images.write_bytes(flipped)
        if rebuilt.is_built("icons", tmp_path):
            with np.load(images) as read:
                assert all((read[key] == value).all() for key, value in arrays.items())
    none = {key: value for key, value in arrays.items() if not key.endswith("clients")}
    pixels = arrays["test_images"].copy()
    pixels[1, 1, 1] = 9
    other = {"test_images": pixels}, {"train_clients": np.array(["y", "x"])}, {"test_labels": np.array(["a", "c"])}
    for damaged in (none, *(arrays | each for each in other)):
        np.savez(images, **damaged)
        assert not rebuilt.is_built("icons", tmp_path)
    assert call("data", "icons", f"data.root={tmp_path}")[0] == 2


@pytest.mark.parametrize(("other", "line"), [({}, "as listed"), ({"arrays": "0"}, "not the listed one, which resvg")])
def test_a_set_is_as_listed_in_all_that_it_has(call, monkeypatch, tmp_path, other, line):
    monkeypatch.setattr(rebuilt, "build", lambda name, *_: (None, rebuilt.listed(name) | other))
    monkeypatch.setattr("benchmark.cli.data.write", lambda *_: None)
    code, out, _ = call("data", "icons", f"data.root={tmp_path}")
    assert (code, line in out) == (0, True)


def test_two_processes_do_not_build_a_set_in_one_folder(call, tmp_path):
    with (tmp_path / ".icons.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, error = call("data", "icons", f"data.root={tmp_path}")
    assert (code, len(error.splitlines())) == (75, 1)
    assert f"another process builds icons in {tmp_path}: wait for it, or stop it" in error


def test_a_run_without_the_images_names_the_command_that_builds_them(call, tmp_path):
    for root in (tmp_path, tmp_path / "none or one"):
        code, _, error = call("run", "icons", "fedavg", f"data.root={root}")
        assert (code, error.count("\n")) == (2, 1)
        word = shlex.quote(f"data.root={root}")
        assert f"`python -m benchmark data icons {word}` builds it; or set data.root=" in error
    file = tmp_path / "file"
    file.touch()
    assert f"data.root={file} is no folder" in call("run", "icons", "fedavg", f"data.root={file}")[2]
    assert "(did you mean 'icons'?)" in call("run", "icons", "fedavg", "data.name=icon", f"data.root={tmp_path}")[2]
