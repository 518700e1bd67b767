import os
import re
import resource
import zipfile

import pytest
import torch

from benchmark.errors import exit_code, message, names_full_disk
from benchmark.federation import checkpoint
from benchmark.federation.checkpoint import Checkpoint, CheckpointError
from tests.run_helpers import same

STATE = {
    "round": 3,
    "server": {"weights": {"encoder": {"w": torch.randn(4, 2), "n": torch.tensor(1.5)}}, "scales": {0: torch.ones(2)}},
    "history": [{"round": 1, "loss": None, "bytes_up": {"weights": 8}}],
    "memory": {0: "client0-round0-fit.pt"},
    "ledger": {"lines": [[0, "fit", "up", "weights", 8]], "visits": [(0, 2)]},
    "account": {"releases": [[0, 1.5, 2]], "covers": ["R"]},
    "environments": [{"commit": "abc", "numerical_deviations": []}],
}


@pytest.fixture
def saved(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run" / "checkpoint", "abc")
    checkpoint.save(STATE)
    return checkpoint


class PulledPlug(BaseException):
    """A simulated power failure; no `except Exception` catches it."""


def test_a_state_comes_back_bit_for_bit_also_one_of_an_earlier_version_without_a_seal_and_of_other_names(saved):
    assert Checkpoint(saved.file.parent.parent / "nowhere", "abc").load() is None
    assert same(Checkpoint(saved.file.parent, "abc").load(), {**STATE, "config": "abc"})
    assert zipfile.ZipFile(saved.file).comment.startswith(b"sha256=")
    assert list(saved.file.parent.parent.iterdir()) == [saved.file.parent]
    torch.save({**STATE, "config": "abc"}, saved.file)
    assert same(saved.load(), {**STATE, "config": "abc"})
    named = {key: value for key, value in STATE.items() if key not in ("account", "environments")}
    saved.save({**named, "played": [{"commit": "abc", "otherwise": []}]})
    state = saved.load()
    assert (state["environments"], state["account"]) == (STATE["environments"], {"releases": [], "covers": []})


@pytest.mark.parametrize("moment", ["while writing", "before the rename"])
def test_a_crash_leaves_the_old_one(saved, monkeypatch, moment):
    def crash(state, stream):
        if "writing" in moment:
            stream.write(b"half of it")
        raise PulledPlug

    monkeypatch.setattr(*((checkpoint.torch, "save") if "writing" in moment else (checkpoint.os, "replace")), crash)
    with pytest.raises(PulledPlug):
        saved.save({**STATE, "round": 4})
    assert saved.load()["round"] == 3
    monkeypatch.undo()
    saved.save({**STATE, "round": 5})
    assert saved.load()["round"] == 5
    assert [file.name for file in saved.file.parent.iterdir()] == ["state.pt"]


def test_the_file_is_on_disk_before_it_is_renamed(saved, monkeypatch):
    """Without the sync a power cut after the rename can leave an empty file under the right name."""
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(checkpoint.os, "fsync", lambda handle: calls.append("sync") or sync(handle))
    monkeypatch.setattr(checkpoint.os, "replace", lambda *names: calls.append("rename") or replace(*names))
    saved.save(STATE)
    assert calls.index("sync") < calls.index("rename")


def refused(saved, config_hash="abc"):
    with pytest.raises(CheckpointError) as error:
        Checkpoint(saved.file.parent, config_hash).load()
    line = str(error.value)
    assert "\n" not in line
    assert str(saved.file) in line
    return line


def test_a_changed_config_a_broken_file_and_one_of_another_make_are_refused_in_one_line(saved):
    assert re.search(f"{saved.file.parent.parent / 'config.yaml'}.*row=NAME", refused(saved, "another"))
    for content in (b"", b"garbage", saved.file.read_bytes()[:-200]):
        saved.file.write_bytes(content)
        assert f"delete {saved.file.parent}" in refused(saved)
    for content in ({"state_dict": {}}, [1, 2], torch.ones(2), {"config": "abc", "round": Harm()}):
        torch.save(content, saved.file)
        assert f"delete {saved.file.parent}" in refused(saved)


class Harm:
    """Nothing is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_a_flipped_byte_is_refused_wherever_it_would_change_the_state(saved):
    content = saved.file.read_bytes()
    intact, refusals = saved.load(), 0
    for position in range(0, len(content), 4):
        saved.file.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        try:
            assert same(saved.load(), intact), position  # a byte of the seal itself
        except CheckpointError:
            refusals += 1
    assert refusals >= (len(content) - checkpoint.SEAL_SIZE) // 4
    saved.file.write_bytes(content.replace(b"sha256=", b"sha255="))  # not taken for an earlier version's without one
    assert "its seal has changed" in refused(saved)


@pytest.mark.parametrize("field", ["round", "server", "history", "memory", "ledger"])
@pytest.mark.parametrize("value", [None, "text", 1.5])
def test_a_missing_or_unreadable_field_is_one_line(saved, field, value):
    saved.save({**STATE, field: value} if value is not None else {key: STATE[key] for key in STATE if key != field})
    assert f"has no '{field}'" in refused(saved)


def test_a_full_disk_names_the_folder_and_leaves_the_old_one(saved):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error, names_full_disk(saved.file.parent):
            saved.save({**STATE, "server": {"weights": torch.zeros(100_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    line = f"{saved.file.parent}: File too large: free some space and run the same command again"
    assert (exit_code(error.value), message(error.value)) == (2, line)
    assert same(saved.load(), {**STATE, "config": "abc"})
