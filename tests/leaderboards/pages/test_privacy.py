"""The privacy sheet on the pages: a line for each entry, a line for each method, no text that can break a table."""

import json
from pathlib import Path

import pytest

from leaderboards.pages.board import markdown
from leaderboards.pages.privacy import END, START, Entry, Method, Sheet, filled, read, write
from leaderboards.schema import RecordError

NETS = Entry("fit", "weights", "encoder: 10 numbers", 46_300_000, "mean over clients", False, None, "every round")
ROWS = Entry("fit", "rows", "16 x 512", 32_768, "all rows together", True, "at least 5 | images", "every round")
HELLO = Entry("hello", "rows", "16 x 512", 32_768, "all rows together", True, None, "once, in round 1", recurs=False)
SECOND_WEIGHTS = Entry("fit", "weights", "encoder: 10 numbers", 46_300_000, "one by one", True, None, "from round 4 on")
SHEET = Sheet(
    "ResNet-18",
    5_000,
    (
        Method("a_b", "reference", "simclr", (HELLO, NETS, SECOND_WEIGHTS, ROWS), ("target", "d"), 1_500),
        Method("local", "reference", "simclr", (), (), 0),
    ),
)
PAGE = f"before\n\n{START}\nold\n{END}\n\nafter\n"


def test_a_sheet_is_read_as_it_was_written(tmp_path: Path):
    write(tmp_path / "privacy.json", SHEET)
    assert read(tmp_path / "privacy.json") == SHEET


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"methods": [{"entries": []}]}', '{"methods": [], "encoder": "x", "images": 1, "more": 2}'],
)
def test_a_file_without_a_sheet_is_refused_by_name(content: str, tmp_path: Path):
    (tmp_path / "privacy.json").write_text(content)
    with pytest.raises(RecordError, match=r"privacy.json: no privacy sheet .*python -m benchmark privacy"):
        read(tmp_path / "privacy.json")
    with pytest.raises(RecordError, match=r"missing\.json"):
        read(tmp_path / "missing.json")


def test_the_board_has_a_line_for_each_method():
    page = markdown([], SHEET)
    lines = page.splitlines()
    assert (
        r"| a\_b | weights 46.3 MB, rows 32.8 kB | rows 32.8 kB | rows, weights | rows: at least 5 \| images |" in lines
    )
    assert "| local | nothing | – | – | – |" in lines
    assert "counted at ResNet-18" in page
    assert "5,000 images" in page
    assert page.endswith("| local | nothing | – | – | – |\n")


def test_the_guide_has_a_line_for_each_entry_and_what_stays():
    page = filled(PAGE, SHEET)
    assert page.startswith(f"before\n\n{START}\n")
    assert page.endswith(f"{END}\n\nafter\n")
    assert "old" not in page
    lines = page.splitlines()
    first = r"| a\_b | fit | weights | encoder: 10 numbers | 46,300,000 | every round | mean over clients | the sum |"
    assert f"{first} sent as it is |" in lines
    second = r"| a\_b | fit | rows | 16 x 512 | 32,768 | every round | all rows together | each one |"
    assert rf"{second} at least 5 \| images |" in lines
    assert "| local | – | – | nothing | – | – | – | – | – |" in lines
    assert r"| a\_b | simclr | reference | target, d | 1.5 kB |" in lines
    assert "| local | simclr | reference | nothing | – |" in lines
    assert filled(page, SHEET) == page
    with pytest.raises(RecordError, match="no mark "):
        filled("a page without", SHEET)


def test_the_file_has_a_line_for_each_value(tmp_path: Path):
    write(tmp_path / "privacy.json", SHEET)
    text = (tmp_path / "privacy.json").read_text()
    assert '     "bytes": 46300000,' in text.splitlines()
    assert json.loads(text)["methods"][0]["entries"][1]["bytes"] == 46_300_000
