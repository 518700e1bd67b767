"""Our rows along an axis, next to the paper's numbers."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.configuration.files import read
from benchmark.configuration.suites import suite
from leaderboards.pages import studies
from leaderboards.rank import Cell
from tests.leaderboards.test_schema import marks, record, records

LINES = {"A": {1: "t1 a", 2: "t2 a", 10: "t10 a"}, "B": {"flat": "t1 b"}, "C": {1: "t1 c"}}
STUDY = {
    **{"page": "rounds", "title": "How many rounds?", "axis": "rounds T", "ours": {"title": "small", "lines": LINES}},
    "paper": {"title": "large, Table 4", "lines": {"A": {1: 10.9, 4: [42.5, 0.5]}}},
}
RECORDS = [
    *records({"a": [48.0, 50.0, 52.0]}, scenario="t1"),
    *records({"a": [53.0, 54.0]}, scenario="t2"),
    *records({"b": [40.0, 42.0, 77.0]}, scenario="t1"),
]


def curves(study, records):
    return studies.our_curves(study, studies._rows(study, records))


def epsilons(study, records):
    return studies.epsilons(study, studies._rows(study, records))


def test_lines_are_over_the_seeds_that_all_rows_have_and_leave_out_what_has_no_record():
    assert curves(STUDY, RECORDS) == {
        "A": {1: Cell(49.0, pytest.approx(2**0.5), 2), 2: Cell(53.5, pytest.approx(0.5**0.5), 2)},
        "B": {"flat": Cell(41.0, pytest.approx(2**0.5), 2)},
    }
    apart = [*RECORDS[:2], record("a", 7, 53.0, scenario="t2")]  # that share no seed keep their own
    assert curves(STUDY, apart)["A"] == {1: Cell(49.0, pytest.approx(2**0.5), 2), 2: Cell(53.0, None, 1)}
    ends = studies.positions([{float("inf"): Cell(1.0, None, 1), 8: Cell(2.0, None, 1)}])
    assert [studies.label(x) for x in ends] == ["8", "∞"]


def test_the_papers_numbers_are_next_to_ours_and_epsilon_has_a_column_where_a_line_has_spent_any():
    """The column shows the largest epsilon of any client and seed."""
    head, _, *lines = studies.table(STUDY, curves(STUDY, RECORDS), {}).splitlines()
    assert head == "| rounds T | A, ours | B, ours | A, paper |"
    assert lines[:3] == [
        "| 1 | 49.0 ± 1.4 | 41.0 ± 1.4 | 10.9 |",
        "| 2 | 53.5 ± 0.7 | 41.0 ± 1.4 | – |",
        "| 4 | – | 41.0 ± 1.4 | 42.5 ± 0.5 |",
    ]
    assert "2 seeds" in lines[4]
    assert studies.table(STUDY, {}, {}) == "No row of it has been recorded yet.\n"
    study = {**STUDY, "ours": {**STUDY["ours"], "epsilon": "A"}}
    noisy = [{**entry, "epsilon": 1.0 + entry["seed"]} if entry["scenario"] == "t2" else entry for entry in RECORDS]
    assert (epsilons(STUDY, noisy), epsilons(study, noisy)) == ({}, {2: 2.0})
    head, _, *more = studies.table(study, curves(study, noisy), epsilons(study, noisy)).splitlines()
    assert head.endswith("| A, paper | epsilon |")
    assert more[:2] == [f"{lines[0]} – |", f"{lines[1]} 2 |"]


def test_words_on_the_axis_keep_their_order_and_are_not_joined(tmp_path, monkeypatch):
    lines = {"A": {"as it is": "t1 a", "half": "t2 a"}, "B": {"flat": "t1 b"}}
    words = {"page": "words", "title": "What does it cost?", "axis": "sent", "ours": {"title": "small", "lines": lines}}
    text = studies.table(words, curves(words, RECORDS), {})
    assert [line.split(" |")[0] for line in text.splitlines()[2:4]] == ["| as it is", "| half"]
    assert "Paper" not in text
    (tmp_path / "words.md").write_text(marks("ours"))
    drawn = []
    monkeypatch.setattr(studies, "STUDIES", [words])
    monkeypatch.setattr(studies, "save", lambda draw, file: drawn.append(draw()))
    studies.write(RECORDS, tmp_path)
    (axes,) = drawn[0].axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["as it is", "half"]
    (points,) = (line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 2)
    assert points.get_linestyle() == "None"


def test_costs_have_a_table_of_the_first_line_and_a_panel_each(tmp_path, monkeypatch):
    lines = {"A": {"all": "t1 a", "few": "t1 c"}, "B": {"flat": "t1 b"}}
    ours = {"title": "small", "lines": lines, "against": ["bytes", "flops", "seconds"]}
    study = {"page": "cost", "title": "What does it cost?", "axis": "what", "ours": ours}
    rows = studies._rows(study, [*RECORDS, *records({"c": [45.0, 46.0, 47.0]}, scenario="t1")])
    rows["t1 c"] = replace(rows["t1 c"], bytes_up=1e6, bytes_down=2e6, flops=5e9, client_seconds=2.5)
    rows["t1 a"] = replace(rows["t1 a"], bytes_up=None, bytes_down=None, flops=None, client_seconds=2.0)
    monkeypatch.setattr(studies, "STUDIES", [study])
    monkeypatch.setattr(studies, "_rows", lambda *_: rows)
    drawn = []
    monkeypatch.setattr(studies, "save", lambda draw, file: drawn.append(draw()))
    (tmp_path / "cost.md").write_text(marks("ours"))
    studies.write([], tmp_path)
    text = (tmp_path / "cost.md").read_text()
    assert "| all | – | – | 2 |\n| few | 3 | 5 | 2.5 |\n\nWhat a client pays, under A.\n" in text
    _, *panels = drawn[0].axes
    assert [axes.get_xlabel() for axes in panels] == [studies.AGAINST[key].label for key in ours["against"]]
    marked = [sorted(float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o") for axes in panels]
    assert marked[:2] == [[3.0], [5.0]]
    assert {2.0, 2.5} <= set(marked[2])


@pytest.mark.parametrize("paper", [STUDY["paper"], {"title": "no table"}])
def test_pages_and_figures_are_written_and_depend_on_the_records_only(paper, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "STUDIES", [{**STUDY, "paper": paper}, {**STUDY, "page": "elsewhere"}])
    page = tmp_path / "rounds.md"
    page.write_text(f"# Rounds\n\n{marks('ours', 'stale')}\n\nby hand\n")
    studies.write(RECORDS, tmp_path)
    text, drawn = page.read_text(), (tmp_path / "rounds.svg").read_bytes()
    assert "stale" not in text
    assert text.endswith("by hand\n")
    assert "| 1 | 49.0 ± 1.4 |" in text
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    studies.write(RECORDS, tmp_path)
    assert (page.read_text(), (tmp_path / "rounds.svg").read_bytes()) == (text, drawn)
    assert not (tmp_path / "elsewhere.svg").exists()


SUITES = ("study-orchestra", "study-flesd", "study-epsilon", "study-uplink", "adapt")


@pytest.fixture(scope="module")
def planned():
    """The scenarios and rows of the suites; rows that their lines do not name are composed, in the first scenario."""
    found = set()
    for name in ("cifar10-micro", *SUITES):
        content = read("suite", name)
        lines = [*content["methods"], *(content.get("more", []) if name == "adapt" else [])]
        unnamed = [line for line in lines if "row=" not in line]
        only = {"seeds": [0], "scenarios": content["scenarios"][:1], "methods": unnamed}
        rows = {config.row for config in suite(name, only, [])} if unnamed else set()
        rows |= {line.rpartition("row=")[2].split()[0] for line in lines if "row=" in line}
        scenarios = {line.rpartition("scenario=")[2].split()[0] for line in content["scenarios"]}
        found |= {f"{scenario} {row}" for scenario in scenarios for row in rows}
    return found


def test_a_shipped_study_names_rows_of_the_suites(planned):
    for study in studies.STUDIES:
        assert {where for curve in study["ours"]["lines"].values() for where in curve.values()} <= planned
        assert (Path(__file__).parents[3] / "docs" / "studies" / f"{study['page']}.md").exists()
