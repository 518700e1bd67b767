"""Regression check: it lists exactly the changed numbers, each with its old and new value."""

import contextlib
import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmark.audit import golden, regression
from benchmark.cli.main import main
from benchmark.tracking.progress import Display
from leaderboards import store
from leaderboards.generate import Moved, moved
from leaderboards.papers import tables
from tests.leaderboards.test_schema import record as a_record

ROOT = Path(__file__).parents[3]

NUMBERS = {"loss": [1.0, None], "weights": {"global": {"norm": 100.0, "wave": 1e-10}}}


@pytest.mark.parametrize(
    ("loss", "norm", "wave", "lines"),
    [
        ([1.0, None], 100.0, 1e-10, []),
        ([1.0 + 9e-10, None], 100.0 + 9e-8, 9e-10, []),
        ([1.0 + 2e-9, None], 100.0, 1e-10, [("golden: r loss 0", "1.0", "1.000000002")]),
        ([1.0, 2.0], 100.0, 1e-10, [("golden: r loss 1", "null", "2.0")]),
        ([1.0, None], 101.0, 0.0, [("golden: r weights global norm", "100.0", "101.0")]),
    ],
)
def test_only_numbers_beyond_their_tolerance_are_listed(loss, norm, wave, lines):
    now = {"loss": loss, "weights": {"global": {"norm": norm, "wave": wave}}}
    assert list(moved("golden:", {"r": NUMBERS}, {"r": now}, golden.TOLERANCE)) == lines


def test_added_and_removed_rows_are_named_in_a_table_fit_for_a_comment():
    gone, new = moved("golden:", {"old": NUMBERS}, {"new": NUMBERS}, golden.TOLERANCE)
    assert (gone.what, gone.new, new.what, new.old) == ("golden: old", "–", "golden: new", "–")
    many = [Moved(f"golden: r|{k}", "1", "2") for k in range(regression.SHOWN + 3)]
    lines = regression.table(many).splitlines()
    assert (lines[2], len(lines)) == (r"| golden: r\|0 | 1 | 2 |", regression.SHOWN + 5)


def test_a_fingerprint_differs_for_weights_that_changed_places():
    weights, swapped = {"w": torch.tensor([1.0, 2.0, 3.0])}, {"w": torch.tensor([2.0, 1.0, 3.0])}
    assert golden.fingerprint(weights)["norm"] == golden.fingerprint(swapped)["norm"]
    assert golden.fingerprint(weights)["wave"] != pytest.approx(golden.fingerprint(swapped)["wave"], abs=1e-3)
    assert golden.fingerprint(weights) == golden.fingerprint({"w": weights["w"].clone()})
    assert golden.fingerprint({}) == {"norm": 0.0, "wave": 0.0}


def test_a_row_has_its_committed_numbers():
    """One row as a sample; `make regress` checks all rows."""
    with Display(Console(quiet=True)) as display:
        rows = golden.measure(display, "fedprox")
    committed = {"fedprox": golden.read(ROOT / golden.FILE)["fedprox"]}
    assert list(moved("golden:", committed, rows, golden.TOLERANCE)) == []
    assert len(set(rows["fedprox"]["loss"])) == 3


def test_every_row_of_the_suite_has_golden_numbers_of_its_own_that_the_changelog_names():
    rows, runs = golden.read(ROOT / golden.FILE), golden.configs("all", ".")
    assert set(rows) == {run.row for run in runs}, "add what is missing: make pages"
    assert len({json.dumps(numbers) for numbers in rows.values()}) == len(rows)
    assert set(golden.OWN_SETTINGS) <= {name for run in runs for name in golden.names(run)}
    assert golden.mark(rows) in (ROOT / golden.CHANGELOG).read_text(), "give the reason there, or make pages"
    assert golden.mark(rows) != golden.mark({**rows, "fedavg": rows["fedprox"]})


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A checkout with two records and their rendered pages, not to be changed."""
    made = tmp_path_factory.mktemp("rendered")
    shutil.copytree(ROOT / "leaderboards" / "published", made / "leaderboards" / "published")
    (made / "docs" / "studies").mkdir(parents=True)
    (made / "docs" / "methods").mkdir()
    copied = ["leaderboards/golden.json", "leaderboards/measured.json", "docs/methods/ssd.md", "docs/reproduction.md"]
    for name in (*copied, "CHANGELOG.md"):
        shutil.copy(ROOT / name, made / name)
    for seed, linear in enumerate((50.0, 51.0)):
        file = made / f"leaderboards/results/cifar10-micro/ssd/seed{seed}.json"
        store.write(file, a_record("ssd", seed, linear, method="ssd"))
    with contextlib.chdir(made):
        assert main(["board"]) == 0
    return made


@pytest.fixture
def checkout(rendered, tmp_path, monkeypatch):
    """A copy of that checkout, in which committed numbers take the place of training."""
    shutil.copytree(rendered, tmp_path, dirs_exist_ok=True)
    measured = (tmp_path / "leaderboards" / "measured.json").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(golden, "measure", lambda *_: golden.read())
    monkeypatch.setattr(regression, "measured", lambda _: json.loads(measured))
    return tmp_path


def replace_in(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_rows_that_did_not_move_keep_their_last_digit_and_only_moved_ones_ask_for_a_reason(checkout, capsys):
    before, log = golden.read(), golden.CHANGELOG.read_text()
    ssd = before["ssd"]
    nearly = before | {"ssd": {**ssd, "loss": [loss * (1 + 1e-14) for loss in ssd["loss"]]}, "new": ssd}
    moved_row = nearly | {"new": {**ssd, "loss": [loss + 1 for loss in ssd["loss"]]}}
    assert nearly["ssd"] != ssd
    with Display(Console()) as display:
        golden.write(nearly, display)
        assert golden.read() == before | {"new": ssd}
        assert golden.CHANGELOG.read_text() == log.replace(golden.mark(before), golden.mark(golden.read())) != log
        assert "1 of" in (said := capsys.readouterr().out)
        assert "reason" not in said
        golden.write(moved_row, display)
    assert "the reason for" in capsys.readouterr().out
    assert golden.read()["new"] == moved_row["new"]


def test_capture_writes_the_golden_and_computed_numbers(checkout, monkeypatch):
    rows, cells = golden.read(), json.loads((checkout / "leaderboards" / "measured.json").read_text())
    rows["ssd"]["loss"][0] += 0.5
    cell, *_ = cells
    cells[cell] = [9.0, *cells[cell][1:]]
    monkeypatch.setattr(golden, "measure", lambda *_: rows)
    monkeypatch.setattr(regression, "measured", lambda _: cells)
    assert main(["regress", "capture=true"]) == 0
    assert golden.read() == rows
    assert json.loads((checkout / "leaderboards" / "measured.json").read_text()) == cells


def test_nothing_moved(checkout, capsys):
    assert main(["regress", "table=moved.md"]) == 0
    assert "Nothing moved." in capsys.readouterr().out
    assert (checkout / "moved.md").read_text() == "Nothing moved.\n"
    for words in ("capture=why", "x", "tabel=x", "capture=true table=moved.md"):
        assert main(["regress", *words.split()]) == 2
        assert "regress takes capture=true or table=FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("leaderboards/results/cifar10-micro/ssd/seed0.json", "50.0", "50.7", "cifar10-micro/ssd/seed0"),
        ("leaderboards/published/ssd.yaml", "80.84", "80.85", "80.85"),
        ("CHANGELOG.md", golden.mark(golden.read(ROOT / golden.FILE)), "golden", "CHANGELOG.md"),
        ("leaderboards/verdicts.json", '"off"', '"reproduced"', "verdict: fedsc, theory"),
        ("leaderboards/README.md", "50.5", "50.6", "leaderboards/README.md"),
        ("docs/reproduction.md", "80.84", "80.85", "docs/reproduction.md"),
    ],
)
def test_one_number_changed_is_named(checkout, capsys, file, old, new, named):
    replace_in(checkout / file, old, new)
    assert main(["regress", "table=moved.md"]) == 2
    assert named in (checkout / "moved.md").read_text()
    assert re.search("[0-9]+ numbers? moved, the first", capsys.readouterr().err)


def test_a_golden_number_and_a_measured_one_are_named(checkout, monkeypatch):
    rows, cells = golden.read(), json.loads((checkout / "leaderboards" / "measured.json").read_text())
    rows["ssd"]["loss"][0] += 0.5
    cell, *_ = cells
    monkeypatch.setattr(golden, "measure", lambda *_: rows)
    monkeypatch.setattr(regression, "measured", lambda _: {**cells, cell: [9.0, *cells[cell][1:]]})
    assert main(["regress", "table=moved.md"]) == 2
    table = (checkout / "moved.md").read_text()
    assert "golden: ssd loss 0" in table
    assert f"{cell} 0" in table


def test_records_at_two_settings_and_a_page_that_lost_its_mark_or_is_gone_are_named(checkout, capsys):
    records = checkout / "leaderboards/results/cifar10-micro/ssd"
    replace_in(records / "seed1.json", '"optimizer.lr": 0.1', '"optimizer.lr": 0.2')
    assert main(["regress"]) == 2
    assert "ssd/seed1 are not one setting of a row (optimizer.lr is 0.1 and 0.2)" in capsys.readouterr().err
    replace_in(records / "seed1.json", '"optimizer.lr": 0.2', '"optimizer.lr": 0.1')
    replace_in(checkout / "docs/methods/ssd.md", "<!-- ours", "<!-- Ours")
    assert main(["regress"]) == 2
    assert "docs/methods/ssd.md: no mark <!-- ours" in capsys.readouterr().err
    for page in ("methods/ssd.md", "reproduction.md"):
        (checkout / "docs" / page).unlink()
    assert main(["regress"]) == 2
    assert "reproduction.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "old", "new"), [("row", "ssd", "sdd"), ("scenario", "ssd/cifar10-cross-silo", "ssd/cifar10-cros-silo")]
)
def test_a_misspelt_row_of_a_published_cell_ends_in_one_line_that_names_the_nearest(
    checkout, monkeypatch, capsys, key, old, new
):
    published = checkout / "leaderboards" / "published"
    replace_in(published / "ssd.yaml", f"{key}: {old},", f"{key}: {new},")
    monkeypatch.setattr(tables, "collect", partial(tables.collect, published))
    assert main(["regress"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(words in line for words in (f"(did you mean '{old}'?)", f"'{new}'", "ssd, main, "))
