"""Published numbers: their tables are complete, and an invalid file is refused with the place of the error."""

import functools
import itertools
from collections import Counter
from pathlib import Path

import pytest
import yaml

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from benchmark.configuration.files import read as read_config
from benchmark.configuration.identity import settings as settings_of
from benchmark.configuration.instantiate import defaults
from eval.protocol import find
from leaderboards.markdown import escape
from leaderboards.papers.tables import Ours, collect, read
from leaderboards.papers.verdicts import differences
from leaderboards.schema import RecordError
from leaderboards.store import read_table

ROOT = Path(__file__).parents[3]

COUNTS = {  # numbers per table, counted in the papers: rows times columns, minus blank cells
    ("fedsc", "claims"): 5,
    ("ldawa", "README CIFAR-100"): 3 * 6,
    ("ldawa", "README Tiny-ImageNet"): 3 * 2,
    ("ldawa", "README supervised"): 4 * 3,
    ("fedx", "1"): 10 * 6,
    ("fedx", "2"): 4 * 6,
    ("fedx", "3a"): 4 * 4,
    ("fedx", "3b"): 4 * 4,
    ("fedx", "3c"): 4 * 4,
    ("fedx", "4"): 3 * 10,
    ("fedx", "section 4.3"): 2,
    ("fedx", "figure 5"): 1,
    ("flesd", "1"): 5 * 15 + 5,
    ("flesd", "2"): 4 * 9,
    ("flesd", "3"): 33 * 8,
    ("flesd", "4"): 6 * 6,
    ("flesd", "5"): 6 * 12,
    ("flesd", "6"): 6 * 4,
    ("flesd", "7"): 3 * 5,
    ("flesd", "8"): 3 * 6,
    ("flesd", "9"): 3 * 6,
    ("flesd", "10"): 3 * 5,
    ("flesd", "11"): 3 * 4,
    ("orchestra", "1"): 7 * 12,
    ("orchestra", "2 (G)"): 8,
    ("orchestra", "2 (L)"): 8,
    ("orchestra", "3"): 6 * 6,
    ("orchestra", "4"): 4 * 6 - 4,
    ("orchestra", "5"): 7 * 12,
    ("orchestra", "6"): 2 * 3,
    ("orchestra", "7"): 5,
    ("ssd", "main"): 6 * 12,
    ("ssd", "ablation"): 4 * 4,
    ("ssd", "transfer"): 6 * 6,
    ("ssd", "projector"): 4 * 2,
    ("ssd", "separation"): 3 * 3 - 2,
}


@pytest.fixture(scope="module")
def cells():
    return collect()


def test_every_table_has_all_its_numbers(cells):
    assert Counter((cell.paper, cell.table) for cell in cells) == COUNTS


def test_means_and_minima_of_flesds_table_3_are_those_of_its_clients(cells):
    rows = {}
    for cell in cells:
        if (cell.paper, cell.table) == ("flesd", "3"):
            inconsistent = "a client is below it" in " ".join(cell.remarks)  # as the paper prints it
            rows.setdefault(cell.row, {})[cell.column] = None if inconsistent else cell.value
    assert len(rows) == 33
    assert sum(row["Min"] is None for row in rows.values()) == 2
    for name, row in rows.items():
        clients = [row[f"C{k}"] for k in range(6)]
        assert row["Min"] in (min(clients), None), name
        assert row["Mean"] == pytest.approx(sum(clients) / 6, abs=0.11), name


def test_values_of_one_run_that_contradict_each_other_are_named_in_a_remark(cells):
    groups: dict[tuple, list] = {}
    for cell in cells:
        if cell.ours is not None and not isinstance(cell.value, str) and cell.unit == "%":
            setting = tuple(sorted((key, str(value)) for key, value in cell.setting.items()))
            groups.setdefault((cell.ours, setting), []).append(cell)
    far = [group for group in groups.values() if max(c.value for c in group) - min(c.value for c in group) > 1]
    assert far
    for group in far:
        for cell in group:
            assert any(all(str(other.value) in remark for other in group) for remark in cell.remarks), cell.place
    largest = max(max(c.value for c in group) - min(c.value for c in group) for group in far)
    assert any(f"up to {largest:.0f} points for the same setting" in remark for remark in far[0][0].remarks)


def test_a_number_without_a_run_of_ours_says_why(cells):
    measured = set(read_table(ROOT / "leaderboards" / "measured.json", dict[str, list[float]], "measured cells", ""))
    unexplained = [cell.place for cell in cells if cell.ours is None and not cell.no_run and cell.place not in measured]
    assert not unexplained
    assert not [cell.place for cell in cells if cell.ours is not None and cell.no_run]


def test_the_page_shows_every_number_in_its_place(cells):
    """The page of published numbers, read again: a digit that differs from the files is found."""
    page, tables = (ROOT / "docs" / "reproduction.md").read_text(), {}
    for section in page.split("\n### ")[1:]:
        lines = [line[2:-2].split(" | ") for line in section.split("\n") if line.startswith("| ")]
        if lines:
            heading = section.partition("\n")[0]
            tables[heading] = {
                (line[0], column): text
                for line in lines[1:]
                for column, text in zip(lines[0][1:], line[1:], strict=False)
            }
    for cell in cells:
        shown = tables[escape(f"{cell.name}, {cell.where}")][escape(cell.row), escape(cell.column)]
        value = f"{cell.value}" if cell.spread is None else f"{cell.value} ± {cell.spread}"
        assert shown.partition("; ours")[0] == escape(value), cell.place


def test_numbers_that_a_paper_prints_twice_are_the_same(cells):
    printed = {(cell.paper, cell.table, cell.row, cell.column): cell.value for cell in cells}
    for (paper, table, row, column), value in printed.items():
        if (paper, table) == ("orchestra", "5"):
            assert value == printed["orchestra", "1", row, column]
        if (paper, table, row) in (("fedx", "3b", "10"), ("fedx", "3c", "100"), ("fedx", "3a", "100%")):
            name = "FedSimCLR + FedX" if "FedX" in column else "FedSimCLR"
            assert value == printed["fedx", "1", name, f"CIFAR-10 {column.rpartition(' ')[2]}"]


@pytest.fixture(scope="module")
def shipped():
    """(scenario, row) -> settings, for everything that the suites and METHOD objective=NAME give."""
    suites = [read_config("suite", name) for name in available("suite")]
    settings = {line.rpartition("scenario=")[2] or line: line for suite in suites for line in suite["scenarios"]}
    scenarios = {name: name for name in available("scenario")}
    scenarios |= {
        (line.rpartition("scenario=")[2] if "scenario=" in line else line): line for line in settings.values()
    }
    rows = {}
    for line in (line for suite in suites for line in (*suite["methods"], *suite.get("more", []))):
        method, *overrides = line.split()
        row = line.rpartition("row=")[2] if "row=" in line else compose("digits", method, overrides).row
        rows.setdefault(row, line)
    for method, objective in itertools.product(available("method"), available("objective")):
        rows.setdefault(f"{method}-{objective}", f"{method} objective={objective}")

    @functools.cache
    def composed(scenario, row):
        name, *changes = scenarios[scenario].split()
        method, *overrides = rows[row].split()
        config = compose(name, method, [*changes, *overrides])
        assert config.row == row
        return {"settings": {**defaults(config), **settings_of(config)}}

    return composed


def test_our_run_for_a_cell_has_the_setting_of_the_cell(cells, shipped):
    """The protocol has the metric, and a run of the scenario and row would be compared.

    Every scenario and every row is composed at least once, and those of all cells in the papers' first tables.
    """
    compared, composed = [cell for cell in cells if cell.ours is not None], set()
    assert len(compared) > 500
    for cell in compared:
        protocol, metric = cell.ours.score.split(" ")
        assert find(protocol).unit(metric) == cell.unit, cell.place
        scenario, row, _ = cell.ours
        if cell.table in ("1", "main") or not {scenario, row} <= composed:
            assert differences(cell, shipped(scenario, row)) == [], cell.place
        composed |= {scenario, row}


def paper(**changes):
    """A paper of one table of two cells; how it trained is open."""
    table = {
        "title": "t",
        "unit": "%",
        "columns": {"a": {"alpha": 1}, "b": {"alpha": 2}},
        "rows": {"r": {"values": [1.5, [2.5, 0.1]]}},
    }
    table |= changes
    training = {"training": {"*": {"open": "not said"}}} if "scenario" in table else {}
    return {"paper": "p", "name": "P", "cite": "c", **training, "tables": {"1": table}}


def test_a_cell_has_what_its_paper_table_row_and_column_give(tmp_path):
    content = paper(scenario="s-a{alpha}", score="knn/v1 accuracy", remark="of the table")
    content["setting"] = {"rounds": 3}
    content["tables"]["1"]["rows"] = {"r": {"values": [1.5, [2.5, 0.1]], "row": "fedavg", "remarks": {"b": "odd"}}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    first, second = read(tmp_path / "p.yaml")
    assert (first.value, first.spread, first.setting) == (1.5, None, {"alpha": 1, "rounds": 3})
    assert (second.value, second.spread, second.remarks) == (2.5, 0.1, ("of the table", "odd"))
    assert second.ours == Ours("s-a2", "fedavg", "knn/v1 accuracy")
    assert second.place == "p, table 1, r, b"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({key: value for key, value in paper().items() if key != "cite"}, "p.yaml: cite is missing"),
        ([1], "is not a mapping"),
        (paper(title=""), "table 1: title is missing"),
        (paper(unit=None), "'1.5' is not"),
        (paper(rows={"r": {"values": [1.5]}}), "table 1, r: 1 values under 2 headings"),
        (paper(rows={"r": {"values": [1.5, "x"]}}), "table 1, r, b: 'x' is not a value in %"),
        (paper(rows={"r": {"values": [1.5, True]}}), "r, b: True is not a value in %"),
        (paper(rows={"r": {"values": [1.5, [2, "x"]]}}), r"r, b: \[2, 'x'\] is not a value in %"),
        (paper(rows={"r": {"values": [1.5, float("nan")]}}), "r, b: nan is not a value in %"),
        (paper(rows={"r": {"values": [1.5, 101]}}), "r, b: 101 is not from 0 to 100 %"),
        (paper(rows={"r": {"values": [1.5, [2, -1]]}}), r"r, b: the spread of \[2, -1\] is below 0"),
        (paper(unit="percent"), "r, a: unit is 'percent'; there are %, classes"),
        (paper(setting={"clients": "ten"}), "r, a: clients is 'ten', expected a number"),
        (paper(setting={"rounds": True}), "r, a: rounds is True, expected a number"),
        (paper(setting={"data": 10}), "r, a: data is 10, expected words"),
        (paper(rows={"r": {"values": 5}}), "r: values 5 are not a list"),
        (paper(rows={"r": {"values": [1, 2], "row": ["a"]}}), "1 row under 2 headings"),
        (paper(rows={"r": {"values": [1, 2], "alhpa": 3}}), "alhpa is unknown"),
        (
            paper(scenario="s", score="knn/v1 a", rows={"r": {"values": [1, 2], "row": "f", "pick": "best"}}),
            "pick best",
        ),
        (
            paper(scenario="s", score="knn/v1 a", rows={"r": {"values": [1, 2], "row": "f", "labels": 5}}),
            "labels 5 is not",
        ),
        (paper(rows={"r": {"values": [1, 2], "remarks": {"c": "?"}}}), "a remark on 'c', which is no heading"),
        (paper(scenario="s{rounds}", score="k a", rows={"r": {"values": [1, 2], "row": "f"}}), "'rounds' is used in"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_of_the_error(content, message, tmp_path):
    if isinstance(content, dict) and content.get("tables", {}).get("1", {}).get("unit", "") is None:
        del content["tables"]["1"]["unit"]
        message = "table 1, r, a: no unit"
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(RecordError, match=message):
        read(tmp_path / "p.yaml")


def test_a_key_given_twice_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text("{paper: p, name: P, cite: c, tables: {'1': {}, '1': {}}}")
    with pytest.raises(RecordError, match="'1' stands twice"):
        read(tmp_path / "p.yaml")


def test_a_row_may_give_a_list_of_settings_and_null_removes_one(tmp_path):
    rows = {"r": {"values": [1.5, 2.5], "row": ["fedavg", None], "epochs": [3, 4], "alpha": None}}
    content = paper(scenario="s-e{epochs}", score="knn/v1 accuracy", rows=rows)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    first, second = read(tmp_path / "p.yaml")
    assert (first.setting, first.ours, first.column_index) == (
        {"epochs": 3},
        Ours("s-e3", "fedavg", "knn/v1 accuracy"),
        0,
    )
    assert (second.setting, second.ours, second.column_index) == ({"epochs": 4}, None, 1)


def test_columns_keep_the_papers_order_where_the_first_row_lacks_some(tmp_path):
    from leaderboards.pages.reproduction import laid_out, remarks
    from leaderboards.papers.verdicts import judged

    rows = {"r": {"values": [None, 2.5], "remark": "of r"}, "q": {"values": [1, 2]}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(paper(rows=rows, remark="of all"), sort_keys=False))
    group = judged(read(tmp_path / "p.yaml"), [])
    assert laid_out(group)[1] == ["a", "b"]
    assert remarks(group) == ["of all", "r, b: of r"]


def test_two_papers_of_one_name_are_refused(tmp_path):
    for file, cite in (("a", "one"), ("b", "another")):
        (tmp_path / f"{file}.yaml").write_text(yaml.safe_dump({**paper(), "cite": cite}))
    with pytest.raises(RecordError, match="two papers are called p: one; another"):
        collect(tmp_path)
