"""A change anywhere in a checkout's numbers is found where it shows, by its place."""

import json
import shutil
from pathlib import Path

import pytest

from leaderboards import generate, store
from leaderboards.generate import Moved, moved
from leaderboards.schema import RecordError
from tests.leaderboards.test_schema import record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path):
    """A small checkout: two records, one paper, a page."""
    folder, docs = tmp_path / "leaderboards", tmp_path / "docs"
    for seed, linear in enumerate((50.0, 51.0)):
        store.add_record(
            folder / "results" / f"cifar10-micro/ssd/seed{seed}.json", record("ssd", seed, linear, method="ssd")
        )
    (folder / "published").mkdir()
    (folder / "published" / "p.yaml").write_text(
        "{paper: p, name: P, cite: c, tables: {'1': {title: t, unit: '%', scenario: cifar10-micro, row: ssd, "
        "score: linear/v1 accuracy, columns: {a: {}}, rows: {r: {values: [50.5]}}}}}"
    )
    (docs / "methods").mkdir(parents=True)
    (docs / "studies").mkdir()
    for page in ("methods/ssd.md", "reproduction.md"):
        shutil.copy(ROOT / "docs" / page, docs / page)
    write(tmp_path)
    return tmp_path


def write(root):
    folder = root / "leaderboards"
    generate.write(store.collect(folder / "results"), folder, root / "docs")


def test_what_was_written_is_not_stale(root):
    assert generate.stale(root) == []


def test_a_changed_record_is_named_wherever_it_shows(root):
    file = root / "leaderboards" / "results" / "cifar10-micro" / "ssd" / "seed0.json"
    content = json.loads(file.read_text())
    content["scores"]["linear/v1"]["accuracy"] = 50.8
    file.write_text(json.dumps(content))
    found = generate.stale(root)
    assert (
        Moved("leaderboards/site/data.js runs cifar10-micro/ssd/seed0 scores linear/v1 accuracy", "50.0", "50.8")
        in found
    )
    where = {one.what.split(",")[0].split(" ")[0] for one in found}
    assert where == {
        "docs/methods/ssd.md", "docs/reproduction.md", "leaderboards/README.md",
        "leaderboards/figures/cifar10-micro.svg", "leaderboards/site/data.js",
    }  # fmt: skip
    (line,) = [one for one in found if one.what.startswith("leaderboards/README.md")]
    assert (line.old, line.new) == ("1: 50.5 ± 0.7", "50.9 ± 0.1")


def test_a_changed_paper_is_named(root):
    file = root / "leaderboards" / "published" / "p.yaml"
    file.write_text(file.read_text().replace("50.5", "50.9"))
    found = generate.stale(root)
    assert {one.what.split(",")[0].split(" ")[0] for one in found} == {
        "docs/reproduction.md",
        "leaderboards/site/data.js",
    }
    (line,) = [one for one in found if one.what.startswith("docs/")]
    assert line.old.startswith("r: 50.5; ours 50.50 ± 0.71")
    assert line.new.startswith("50.9; ours 50.50 ± 0.71")


def test_a_verdict_that_gets_worse_is_refused_and_nothing_is_written(root):
    file = root / "leaderboards" / "published" / "p.yaml"
    file.write_text(file.read_text().replace("50.5", "99.5"))
    before = (root / "docs" / "reproduction.md").read_bytes()
    with pytest.raises(RecordError, match=r"p, table 1, r, a was reproduced and is off: find out why"):
        write(root)
    assert (root / "docs" / "reproduction.md").read_bytes() == before


def test_pages_edited_by_hand_and_pictures_nobody_draws_are_named(root):
    page = root / "leaderboards" / "README.md"
    page.write_text(page.read_text().replace("| ssd |", "| ours |"))
    (root / "leaderboards" / "figures" / "gone.svg").write_text("<svg/>")
    assert [tuple(one) for one in generate.stale(root)] == [
        ("leaderboards/README.md, cifar10-micro", "1: ours", "ssd"),
        ("leaderboards/figures/gone.svg", "there", "not made any more"),
    ]


def test_nested_data_is_told_apart_by_its_places():
    old, new = {"a": [1, {"b": 2.0}], "c": "x", "e": [1]}, {"a": [1, {"b": 2.5}], "d": True, "e": [1, 2]}
    assert [tuple(one) for one in moved("f", old, new)] == [
        ("f a 1 b", "2.0", "2.5"), ("f c", "x", "–"), ("f e", "[1]", "[1, 2]"), ("f d", "–", "true"),
    ]  # fmt: skip


def test_data_that_means_the_same_in_other_bytes_is_named(root):
    file = root / "leaderboards" / "site" / "data.js"
    text = file.read_text()
    for changed, said in ((text.replace(",\n", ", \n"), "written otherwise"), (text + "alert(1)", "cannot be read")):
        file.write_text(changed)
        (line,) = generate.stale(root)
        assert line.what == "leaderboards/site/data.js"
        assert said in line.new


def test_a_line_more_moves_no_other_and_data_come_first(root):
    page = root / "leaderboards" / "README.md"
    page.write_text(page.read_text().replace("# Leaderboards\n", "# Leaderboards\n\nby hand\n"))
    file = root / "leaderboards" / "results" / "cifar10-micro" / "ssd" / "seed0.json"
    file.write_text(file.read_text().replace('"images": 100000', '"images": 100001'))
    first, *rest = generate.stale(root)
    assert first.what.startswith("leaderboards/site/data.js runs cifar10-micro/ssd/seed0")
    where = "leaderboards/README.md, Leaderboards"
    assert [one for one in rest if "README" in one.what] == [Moved(where, "", "–"), Moved(where, "by hand", "–")]
