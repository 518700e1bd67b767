"""Generated files of a checkout: a changed number is reported with every place that shows it."""

import shutil
from pathlib import Path

import pytest

from leaderboards import generate, store
from leaderboards.generate import Moved, moved
from leaderboards.schema import RecordError
from tests.leaderboards.test_schema import record

ROOT = Path(__file__).parents[2]
RECORDS = "leaderboards/results/cifar10-micro/ssd"


@pytest.fixture
def root(tmp_path):
    """A small checkout: two rows (a lone one is on its paper's page), one paper, a page."""
    folder, docs = tmp_path / "leaderboards", tmp_path / "docs"
    for seed, linear in enumerate((50.0, 51.0)):
        store.write(tmp_path / RECORDS / f"seed{seed}.json", record("ssd", seed, linear, method="ssd"))
    store.write(tmp_path / RECORDS.replace("ssd", "local") / "seed0.json", record("local", 0, 40.0, method="local"))
    (folder / "published").mkdir()
    (folder / "published" / "p.yaml").write_text(
        "{paper: p, name: P, cite: c, training: {'*': {open: not said}}, "
        "tables: {'1': {title: t, unit: '%', scenario: cifar10-micro, row: ssd, "
        "score: linear/v1 accuracy, columns: {a: {}}, rows: {r: {values: [50.5]}}}}}"
    )
    for inner in ("methods", "studies"):
        (docs / inner).mkdir(parents=True)
    for page in ("methods/ssd.md", "reproduction.md"):
        shutil.copy(ROOT / "docs" / page, docs / page)
    write(tmp_path)
    return tmp_path


def write(root):
    folder = root / "leaderboards"
    generate.write(store.collect(folder / "results"), folder, root / "docs")


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_checkout_that_was_just_written_is_not_stale_and_data_of_the_same_meaning_in_other_bytes_are_named(root):
    (root / "leaderboards" / "site" / "data.js").unlink()  # not committed
    assert generate.stale(root) == []
    file = root / "leaderboards" / "record_hashes.json"
    before = file.read_text()
    for old, new in (('",\n', '", \n'), ("\n}", "\n}\n")):
        edit(file, old, new)
        assert {difference.what for difference in generate.stale(root)} == {"leaderboards/record_hashes.json, top"}
        file.write_text(before)


def test_a_changed_record_is_named_wherever_it_shows(root):
    edit(root / RECORDS / "seed0.json", '"accuracy": 50.0', '"accuracy": 50.8')
    edit(root / RECORDS / "seed0.json", '"accuracy": 50.0', '"accuracy": 50.8')  # of the encoder, and of all of them
    differences = generate.stale(root)
    assert {difference.what.split(",")[0] for difference in differences} == {
        "docs/methods/ssd.md", "docs/reproduction.md", "leaderboards/README.md",
        "leaderboards/figures/cifar10-micro.svg", "leaderboards/record_hashes.json",
    }  # fmt: skip
    assert '"cifar10-micro/ssd/seed0"' in differences[0].old
    (line,) = [difference for difference in differences if difference.what.startswith("leaderboards/README.md")]
    assert (line.old, line.new) == ("–: 50.5 ± 0.7", "50.9 ± 0.1")


def test_a_changed_number_that_no_page_shows_is_named_by_its_record_and_a_changed_paper_by_its_page(root):
    edit(root / RECORDS / "seed1.json", '"images": 100000', '"images": 1')
    edit(root / "leaderboards" / "published" / "p.yaml", "50.5", "50.9")
    record, page = generate.stale(root)
    assert record.what.startswith("leaderboards/record_hashes.json")
    assert all('"cifar10-micro/ssd/seed1"' in line for line in (record.old, record.new))
    assert page.what.startswith("docs/reproduction.md")
    assert page.old.startswith("r: 50.5; ours 50.50 ± 0.71")
    assert page.new.startswith("50.9; ours 50.50 ± 0.71")


def test_a_verdict_that_gets_worse_is_refused_and_nothing_is_written(root):
    edit(root / "leaderboards" / "published" / "p.yaml", "50.5", "99.5")
    before = (root / "docs" / "reproduction.md").read_bytes()
    with pytest.raises(RecordError, match=r"p, table 1, r, a was reproduced and is off: find out why"):
        write(root)
    assert (root / "docs" / "reproduction.md").read_bytes() == before


def test_pages_edited_by_hand_and_figures_that_are_no_longer_drawn_are_named(root):
    edit(root / "leaderboards" / "README.md", "| ssd |", "| ours |")
    (root / "leaderboards" / "figures" / "gone.svg").write_text("<svg/>")
    assert [tuple(difference) for difference in generate.stale(root)] == [
        ("leaderboards/README.md, cifar10-micro", "–: ours", "ssd"),
        ("leaderboards/figures/gone.svg", "there", "not made any more"),
    ]


def test_differences_of_nested_data_are_named_by_their_places():
    old, new = {"a": [1, {"b": 2.0}], "c": "x", "e": [1]}, {"a": [1, {"b": 2.5}], "d": True, "e": [1, 2]}
    assert [tuple(difference) for difference in moved("f", old, new)] == [
        ("f a 1 b", "2.0", "2.5"), ("f c", "x", "–"), ("f e", "[1]", "[1, 2]"), ("f d", "–", "true"),
    ]  # fmt: skip


def test_an_added_line_moves_no_other_and_records_come_before_pages(root):
    edit(root / "leaderboards" / "README.md", "# Leaderboards\n", "# Leaderboards\n\nby hand\n")
    edit(root / RECORDS / "seed0.json", "100000", "100001")
    first, *rest = generate.stale(root)
    assert first.what.startswith("leaderboards/record_hashes.json")
    where = "leaderboards/README.md, Leaderboards"
    assert rest == [Moved(where, "", "–"), Moved(where, "by hand", "–")]
