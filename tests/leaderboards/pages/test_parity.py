from pathlib import Path

import pytest

from leaderboards.pages.parity import END, FILE, START, Effect, Parity, Precision, Result, filled, read, write
from leaderboards.schema import RecordError
from leaderboards.store import collect
from tests.leaderboards.test_schema import record

ROOT = Path(__file__).parents[3]
SSD = Result(
    file="ssd",
    method="ssd",
    objective="align_uniform",
    scenario="ssd/cifar10-cross-silo",
    paper="Fang | Yang",
    repository="a/b",
    commit="abc",
    driven="fit",
    clients=2,
    rounds=3,
    steps=10,
    slips="",
    precisions={"float32": Precision(2.8e-7, 5e-6, 1e-3)},
    met=True,
    effects=(Effect("training.views", "separate", "joint", 0.2, 0.25, 0.01),),
)
LDAWA = Result(
    **{
        **vars(SSD),
        "file": "ldawa",
        "precisions": {"float64": Precision(None, None, 3e-9)},
        "met": False,
        "slips": "scaled",
        "effects": (),
    }
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / FILE, [SSD, LDAWA])
    assert read(tmp_path / FILE) == Parity((SSD, LDAWA))


@pytest.mark.parametrize("content", ["{", '{"results": 1}', '{"results": [], "more": 1}'])
def test_another_file_is_an_error_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(RecordError, match=r"parity.json: no parity table .*python -m benchmark parity"):
        read(tmp_path / FILE)


def test_the_page_has_a_line_for_each_file_and_each_setting() -> None:
    page = filled(f"before\n{START}\nold\n{END}\nafter\n", Parity((SSD, LDAWA)))
    assert page.startswith(f"before\n{START}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "| ssd | ssd, align\\_uniform | 2, 3, 10 | 2.8e-07 | 5.0e-06 | 1.0e-03 | – | – | yes |" in page
    assert "| ldawa | ssd, align\\_uniform | 2, 3, 10 | – | – | – | – | 3.0e-09 | no |" in page
    assert "| ldawa | Fang \\| Yang | a/b @abc | fit | ssd/cifar10-cross-silo | scaled |" in page
    assert "| training.views | ssd | separate | joint | 2.0e-01 | 2.5e-01 | 1.0e-02 |" in page
    assert "old" not in page
    with pytest.raises(RecordError, match="no mark"):
        filled("a page without", Parity(()))


def test_the_committed_table_has_every_file_and_is_on_its_page() -> None:
    parity = read(ROOT / "leaderboards" / FILE)
    files = {file.stem for file in (ROOT / "tests" / "parity").glob("*.json")}
    assert len(parity.results) == len(files)
    assert {result.file for result in parity.results} == files
    assert all(result.met for result in parity.results)
    page = (ROOT / "docs" / "parity.md").read_text()
    assert page == filled(page, parity, collect(ROOT / "leaderboards" / "results")), "make parity"


def test_accuracies_of_rows_with_and_without_a_setting_of_the_authors() -> None:
    scores = {
        ("cifar10-micro", "fedavg-simclr"): {0: 48.0, 1: 90.0, 2: 50.0},
        ("cifar10-micro", "ssd"): {0: 50.0},
        ("cifar10-micro-settings", "fedavg-simclr+training.views=separate"): {0: 47.0, 2: 48.0},
        ("cifar10-micro-settings", "gone+training.views=separate"): {0: 47.0},
    }
    made = [
        record(row, seed, score, scenario=scenario)
        for (scenario, row), seeds in scores.items()
        for seed, score in seeds.items()
    ]
    page = filled(f"{START}\n{END}\n", Parity(()), made)
    assert "| training.views=separate | fedavg-simclr | 2 | 49.0 ± 1.4 | 47.5 ± 0.7 | -1.5 ± 0.7 |" in page
    assert "| ssd |" not in page
    assert "| gone |" not in page
