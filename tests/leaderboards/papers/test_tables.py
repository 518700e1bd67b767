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
from leaderboards.pages.reproduction import laid_out, remarks
from leaderboards.papers import computed
from leaderboards.papers.tables import Ours, collect, read
from leaderboards.papers.verdicts import differences, judged
from leaderboards.schema import RecordError

ROOT = Path(__file__).parents[3]

COUNTS = {  # numbers per table, counted in the papers: rows times columns, minus blank cells
    "fedsc": {"claims": 2, "theory": 5, "decomposition": 2},
    "ldawa": {"README CIFAR-100": 3 * 6, "README Tiny-ImageNet": 3 * 2, "README supervised": 4 * 3},
    "fedx": {
        **{"1": 10 * 6, "2": 4 * 6, "3a": 4 * 4, "3b": 4 * 4, "3c": 4 * 4, "4": 3 * 10},
        **{"section 4.3": 2, "figure 5": 1, "section 4.1": 3, "section 4, claims": 8, "section 1, claims": 1},
    },
    "flesd": {
        **{"1": 5 * 15 + 5, "2": 4 * 9, "3": 33 * 8, "4": 6 * 6, "5": 6 * 12, "6": 6 * 4, "7": 3 * 5, "8": 3 * 6},
        **{"9": 3 * 6, "10": 3 * 5, "11": 3 * 4, "3, of its clients": 33 * 2, "1, Min-Local": 9},
        **{"section 2": 11, "section 4.2": 3, "section 4.3": 6, "section 4, claims": 9, "conclusion, claims": 1},
    },
    "lwfedssl": {"abstract": 4, "abstract, operations and memory": 3},
    "orchestra": {
        **{"1": 7 * 12, "2 (G)": 8, "2 (L)": 8, "3": 6 * 6, "4": 4 * 6 - 4, "5": 7 * 12, "6": 2 * 3, "7": 5},
        **{"section 6, claims": 3, "section E.1": 2, "section E.2": 4, "section D.4": 2},
        **{"section E.1, claim": 1, "section 6.3": 1, "section 6.3, operations": 1, "section 4, claims": 2},
    },
    "ssd": {
        **{"main": 6 * 12, "ablation": 4 * 4, "transfer": 6 * 6, "projector": 4 * 2, "separation": 3 * 3 - 2},
        **{"claims": 4, "projector, summary": 1, "communication": 2},
    },
}


@pytest.fixture(scope="module")
def cells():
    return collect()


def test_every_table_has_all_its_numbers_and_says_why_we_do_not_measure_one(cells):
    expected = {(paper, table): count for paper, tables in COUNTS.items() for table, count in tables.items()}
    assert Counter((cell.paper, cell.table) for cell in cells) == expected
    ways = [[each.computed, each.ours, each.no_run] for each in cells]
    assert not [each.place for each, found in zip(cells, ways, strict=True) if sum(map(bool, found)) != 1]
    assert {each.place for each in cells if each.computed} == computed.read(
        ROOT / "leaderboards" / computed.FILE
    ).keys()


def test_values_of_one_run_that_contradict_each_other_are_named_in_a_remark(cells):
    groups: dict[tuple, list] = {}
    for cell in cells:
        if cell.ours is not None and not isinstance(cell.value, str) and cell.unit == "%":
            setting = tuple(sorted((key, str(value)) for key, value in cell.setting.items()))
            groups.setdefault((cell.ours, setting), []).append(cell)
    ranges = [(max(c.value for c in group) - min(c.value for c in group), group) for group in groups.values()]
    far = [group for width, group in ranges if width > 1]
    assert far
    for group in far:
        for cell in group:
            assert any(all(str(other.value) in remark for other in group) for remark in cell.remarks), cell.place
    said = f"up to {max(width for width, _ in ranges):.0f} points for the same setting"
    assert any(said in remark for remark in far[0][0].remarks)


def test_the_page_shows_every_number_in_its_place(cells):
    """The page of published numbers, read again: a digit that differs from the files is found."""
    page, shown = (ROOT / "docs" / "reproduction.md").read_text(), {}
    for section in page.split("\n### ")[1:]:
        heading, *lines = section.split("\n")
        head, *rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")] or [[]]
        shown |= {(heading, row[0], column): text for row in rows for column, text in zip(head, row, strict=False)}
    for cell in cells:
        text = shown[escape(f"{cell.name}, {cell.where}"), escape(cell.row), escape(cell.column)]
        value = f"{cell.value}" if cell.spread is None else f"{cell.value} ± {cell.spread}"
        assert text.partition("; ours")[0] == escape(value), cell.place


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
    scenarios = {name: name for name in available("scenario")}
    scenarios |= {line.rpartition("scenario=")[2] or line: line for each in suites for line in each["scenarios"]}
    lines = [line for each in suites for line in (*each["methods"], *each.get("more", []))]
    rows = {line.rpartition("row=")[2]: line for line in reversed(lines) if "row=" in line}  # the first of a name
    for method, objective in itertools.product(available("method"), available("objective")):
        rows.setdefault(f"{method}-{objective}", f"{method} objective={objective}")
    rows = {method: method for method in available("method")} | rows

    @functools.cache
    def composed(scenario, row):
        name, *changes = scenarios[scenario].split()
        method, *overrides = rows[row].split()
        config = compose(name, method, [*changes, *overrides])
        assert config.row == row
        return {"settings": {**defaults(config), **settings_of(config)}}

    return composed


@pytest.mark.parametrize("all_first_tables", [False, pytest.param(True, marks=pytest.mark.long)])
def test_our_run_for_a_cell_has_the_setting_of_the_cell(cells, shipped, all_first_tables):
    """The protocol has the metric, and a run of the scenario and row would be compared.

    Every scenario and every row is composed at least once; before a release those of all cells in the first tables.
    """
    compared, composed = [cell for cell in cells if cell.ours is not None], set()
    assert len(compared) > 500
    for cell in compared:
        protocol, metric = cell.ours.score.split(" ")
        assert find(protocol).unit(metric) == cell.unit, cell.place
        scenario, row, _ = cell.ours
        if (all_first_tables and cell.table in ("1", "main")) or not {scenario, row} <= composed:
            assert differences(cell, shipped(scenario, row)) == [], cell.place
        composed |= {scenario, row}


def paper(**changes):
    """A paper of one table of two cells; how it trained is open."""
    rows = {"r": {"values": [1.5, [2.5, 0.1]]}}
    table = {"title": "t", "unit": "%", "columns": {"a": {"alpha": 1}, "b": {"alpha": 2}}, "rows": rows, **changes}
    table = {key: value for key, value in table.items() if value is not None}
    training = {"training": {"*": {"open": "not said"}}} if "scenario" in table else {}
    return {"paper": "p", "name": "P", "cite": "c", **training, "tables": {"1": table}}


def of_row(values=(1.5, 2.5), **changes):
    """The same paper with another row."""
    return {"rows": {"r": {"values": [*values] if isinstance(values, tuple) else values, **changes}}}


@pytest.fixture
def read_content(tmp_path):
    """Reads a paper of this content."""

    def reading(content):
        text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        (tmp_path / "p.yaml").write_text(text)
        return read(tmp_path / "p.yaml")

    return reading


def test_a_cell_has_what_its_paper_table_row_and_column_give(read_content):
    row = of_row((1.5, [2.5, 0.1]), row="fedavg", remarks={"b": "odd"})
    content = paper(scenario="s-a{alpha}", score="knn/v1 accuracy", remark="of the table", **row)
    first, second = read_content(content | {"setting": {"rounds": 3}})
    assert (first.value, first.spread, first.setting) == (1.5, None, {"alpha": 1, "rounds": 3})
    assert (second.value, second.spread, second.remarks) == (2.5, 0.1, ("of the table", "odd"))
    assert (second.ours, second.place) == (Ours("s-a2", "fedavg", "knn/v1 accuracy"), "p, table 1, r, b")
    row = of_row(row=["fedavg", None], epochs=[3, 4], alpha=None)  # a list of settings; null removes one
    first, second = read_content(paper(scenario="s-e{epochs}", score="knn/v1 accuracy", **row))
    ours = Ours("s-e3", "fedavg", "knn/v1 accuracy")
    assert (first.setting, first.ours, first.column_index) == ({"epochs": 3}, ours, 0)
    assert (second.setting, second.ours, second.column_index) == ({"epochs": 4}, None, 1)
    rows = {"r": {"values": [None, 2.5], "remark": "of r"}, "q": {"values": [1, 2]}}  # the first row lacks a column
    group = judged(read_content(paper(rows=rows, remark="of all")), [])
    assert laid_out(group)[1] == ["a", "b"]
    assert remarks(group) == ["of all", "r, b: of r"]


def test_a_table_may_have_the_values_of_anothers_rows_under_some_of_its_headings(read_content):
    content = paper(rows={"r": {"values": [1.5, 2.5], "remark": "of r"}, "q": {"values": [3, None]}})
    derived = {"title": "d", "unit": "points", "columns": {"b": {}}, "rows_of": "1", "computed": "own/x", "within": 0.5}
    *_, cell = read_content({**content, "tables": {**content["tables"], "d": derived}})
    assert (cell.row, cell.column, cell.value, cell.computed, cell.within) == ("r", "b", 2.5, "own/x", 0.5)
    assert cell.remarks == ()
    *_, cell = read_content({**content, "tables": {**content["tables"], "d": {**derived, "rows": ["q"]}}})
    assert cell.where == "table 1", "q has no b"
    with pytest.raises(RecordError, match="table d: table 1 has no 'x'"):
        read_content({**content, "tables": {**content["tables"], "d": {**derived, "rows": ["x"]}}})


COMPARED = {"scenario": "s", "score": "knn/v1 a"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({key: value for key, value in paper().items() if key != "cite"}, "p.yaml: cite is missing"),
        ([1], "is not a mapping"),
        (paper(title=""), "table 1: title is empty"),
        (paper(unit=None), "table 1, r, a: no unit"),
        (paper(**of_row((1.5,))), "table 1, r: 1 values under 2 headings"),
        (paper(**of_row((1.5, "x"))), "table 1, r, b: 'x' is not a value in %"),
        (paper(**of_row((1.5, True))), "r, b: True is not a value in %"),
        (paper(**of_row((1.5, [2, "x"]))), r"r, b: \[2, 'x'\] is not a value in %"),
        (paper(**of_row((1.5, float("nan")))), "r, b: nan is not a value in %"),
        (paper(**of_row((1.5, 101))), "r, b: 101 is not from 0 to 100 %"),
        (paper(**of_row((1.5, [2, -1]))), r"r, b: the spread of \[2, -1\] is below 0"),
        (paper(unit="percent"), "r, a: unit is 'percent'; there are %, bytes"),
        (paper(within=-1), "r, a: within is -1, expected a number, at least 0"),
        (paper(agrees="about"), "r, a: agrees is 'about'; there are equal, at most, at least"),
        (paper(rows_of="2"), "table 1: rows_of is '2', which is no table of the file"),
        (paper(rows_of="1"), "table 1: rows_of is '1', which is no table of the file with rows"),
        (paper(unit="claim"), "r, a: 1.5 is not a value in claim"),
        (paper(setting={"clients": "ten"}), "r, a: clients is 'ten', expected a number"),
        (paper(setting={"rounds": True}), "r, a: rounds is True, expected a number"),
        (paper(setting={"data": 10}), "r, a: data is 10, expected words"),
        (paper(**of_row(5)), "r: values 5 are not a list"),
        (paper(**of_row(row=["a"])), "1 row under 2 headings"),
        (paper(**of_row(alhpa=3)), "alhpa is unknown"),
        (paper(**COMPARED, **of_row(row="f", pick="best")), "pick best"),
        (paper(**COMPARED, **of_row(row="f", labels=5)), "labels 5 is not"),
        (paper(**of_row(remarks={"c": "?"})), "a remark on 'c', which is no heading"),
        (paper(scenario="s{rounds}", score="k a", **of_row(row="f")), "'rounds' is used in"),
        ("{paper: p, name: P, cite: c, tables: {'1': {}, '1': {}}}", "'1' stands twice"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_of_the_error(content, message, read_content):
    with pytest.raises(RecordError, match=message):
        read_content(content)


def test_two_papers_of_one_name_are_refused(tmp_path):
    for file, cite in (("a", "one"), ("b", "another")):
        (tmp_path / f"{file}.yaml").write_text(yaml.safe_dump({**paper(), "cite": cite}))
    with pytest.raises(RecordError, match="two papers are called p: one; another"):
        collect(tmp_path)
