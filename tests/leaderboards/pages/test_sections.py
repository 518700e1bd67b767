"""What is written between the marks of a page: our numbers of a method, the parity table and the privacy sheet."""

from dataclasses import replace
from pathlib import Path

import pytest

from leaderboards.pages import methods, parity, privacy
from leaderboards.pages.board import boards, markdown
from leaderboards.pages.parity import Effect, Parity, Precision, Result
from leaderboards.pages.privacy import Entry, Method, Sheet
from leaderboards.papers.tables import Ours, Published
from leaderboards.schema import RecordError
from leaderboards.store import write_table
from tests.leaderboards.test_schema import marks, record, records

ROOT = Path(__file__).parents[3]
PAGE = f"# SSD\n\nby hand\n\n{marks('published')}\n\n{marks('ours', 'stale')}\n\nmore by hand\n"


def of_method(row, *linear, method=None, **changes):
    return records({row: linear}, method=method or row, **changes)


RECORDS = [
    *of_method("ssd", 50.0, 51.0, 52.0),
    *of_method("fedavg-align_uniform", 50.0, 50.0, 50.0, method="fedavg"),
    *of_method("fedu-fedx", 40.0, 40.0),
    *of_method("untrained", 30.25),
]


def cell(paper, table, row, ours=None):
    return Published(paper, paper.upper(), "cite", table, "t", row, "c", 1.0, None, "%", {}, (), ours, 0)


CELLS = [
    cell("ssd", "main", "without"),
    cell("ssd", "main", "with"),
    cell("fedx", "2", "SCAFFOLD", Ours("s", "scaffold-fedx", "linear/v1 accuracy")),
    cell("ldawa", "README", "FedU, E = 1"),
    cell("ldawa", "README", "FedU2"),
]


def filled(method, records=RECORDS, page=PAGE):
    return methods.filled(page, method, boards(records), CELLS)


def lines(method, records=RECORDS):
    return [line for line in filled(method, records).splitlines() if line.startswith("| cifar10")]


def test_the_text_around_the_marks_stays_and_a_page_gets_what_it_has_not(tmp_path):
    page = filled("ssd")
    assert page.startswith("# SSD\n\nby hand\n\n<!--")
    assert page.endswith("-->\n\nmore by hand\n")
    assert "stale" not in page
    assert filled("ssd", page=page) == page
    (tmp_path / "ssd.md").write_text(PAGE)
    methods.write(RECORDS, tmp_path, CELLS)
    assert (tmp_path / "ssd.md").read_text() == page
    bare = filled("local", page="# local\n")
    assert bare.startswith("# local\n\n## Published numbers\n\n<!-- published")
    assert bare.endswith("<!-- end of ours -->\n")  # it has no paper
    assert filled("local", page=bare) == bare
    (tmp_path / "fedavg.md").write_text("<!-- end of ours -->\n")
    with pytest.raises(RecordError, match=r"fedavg\.md: no mark <!-- ours"):
        methods.write(RECORDS, tmp_path, CELLS)
    methods.write(RECORDS, tmp_path / "missing", CELLS)
    for fill, content in ((parity.filled, Parity(())), (privacy.filled, SHEET)):
        with pytest.raises(RecordError, match="no mark "):
            fill("a page without", content)


def test_a_row_shows_its_gains_over_the_floor_and_over_each_row_that_it_builds_on():
    (line,) = lines("ssd")
    adds = "+1.0 to fedavg-align\\_uniform (-1.5 to +3.5); no clear difference"  # 4.303 / sqrt(3)
    assert line == f"| cifar10-micro | ssd | 1-2 | 51.0 ± 1.0 | 43.5 ± 0.0 | 3 | +20.8 | {adds} |"
    idle = of_method("flesd-idle", 44.0, 44.0, method="flesd")
    records = [*of_method("flesd", 47.0, 47.0), *of_method("fedavg-simclr", 49.0, 49.0, method="fedavg"), *idle]
    (line,) = [line for line in lines("flesd", records) if "| flesd |" in line]
    assert "+3.0 to flesd-idle" in line
    assert "-2.0 to fedavg-simclr" in line
    low = filled("ssd", [*of_method("ssd", 20.0, 20.0, 20.0), record("untrained", 0, 30.25)])
    assert "| 20.0 ± 0.0 ↓ |" in low
    assert "\n\n↓ is below the untrained encoder, " in low
    assert "↓" not in filled("ssd")
    scores = {"knn/v1": {"accuracy": 30.0}}  # without the floor's probe no gain over it is shown
    page = filled("ssd", [*RECORDS[:3], *of_method("untrained", None, scores=scores, encoders={"global": scores})])
    assert "| ssd | – | 51.0 ± 1.0 | 43.5 ± 0.0 | 3 |  |  |" in page


def test_a_method_on_top_of_another_is_on_both_pages_and_known_by_its_name():
    assert lines("fedu") == lines("fedx") != []
    assert lines("fedsc") == []
    assert "No row of it" in filled("fedsc")
    rows = {"fedx-local": ["fedx"], "fedu-fedx-x": ["fedu", "fedx"], "ssd": ["ssd"], "new-row": ["new"]}
    assert {row: methods._methods_of(row, {"fedx", "fedu", "fedu-fedx", "ssd", "local"}) for row in rows} == rows


@pytest.mark.parametrize(
    ("title", "link"),
    [
        ("SSD", "- SSD: [main](../reproduction.md#ssd-main)"),  # its own paper: all rows
        ("SCAFFOLD", "- FEDX: [table 2](../reproduction.md#fedx-table-2)"),  # by our row
        ("FedU", "- LDAWA: [README](../reproduction.md#ldawa-readme)"),  # by name, and not FedU2
        ("FedEMA", "No table with a row of it could be read."),
    ],
)
def test_a_page_links_to_the_papers_tables_with_rows_of_its_method(title, link):
    page = filled(title.lower(), page=PAGE.replace("# SSD", f"# {title}"))
    assert f"<!-- published: by a test -->\n\n{link}\n\n<!-- end of published -->" in page


SSD = Result(
    **{"file": "ssd", "method": "ssd", "objective": "align_uniform", "scenario": "ssd/cifar10-cross-silo"},
    **{"paper": "Fang | Yang", "repository": "a/b", "commit": "abc", "driven": "fit", "author_bugs": "", "met": True},
    **{"clients": 2, "rounds": 3, "steps": 10, "precisions": {"float32": Precision(2.8e-7, 5e-6, 1e-3)}},
    effects=(Effect("training.views", "separate", "joint", 0.2, 0.25, 0.01),),
)
NOT_MET = {"met": False, "author_bugs": "scaled", "effects": ()}
LDAWA = replace(SSD, file="ldawa", precisions={"float64": Precision(None, None, 3e-9)}, **NOT_MET)


def test_a_parity_table_is_read_as_it_was_written_and_another_file_is_refused_in_one_line(tmp_path):
    write_table(tmp_path / parity.FILE, Parity((SSD, LDAWA)))
    assert parity.read(tmp_path / parity.FILE) == Parity((SSD, LDAWA))
    for content in ("{", '{"results": 1}', '{"results": [], "more": 1}'):
        (tmp_path / parity.FILE).write_text(content)
        with pytest.raises(RecordError, match=r"parity.json: no parity table .*python -m benchmark parity"):
            parity.read(tmp_path / parity.FILE)


def test_the_page_of_parity_has_a_line_for_each_file_and_each_setting():
    page = parity.filled(marks("parity"), Parity((SSD, LDAWA)))
    assert {
        "| ssd | ssd, align\\_uniform | 2, 3, 10 | 2.8e-07 | 5.0e-06 | 1.0e-03 | – | – | yes |",
        "| ldawa | ssd, align\\_uniform | 2, 3, 10 | – | – | – | – | 3.0e-09 | no |",
        "| ldawa | Fang \\| Yang | a/b @abc | fit | ssd/cifar10-cross-silo | scaled |",
        "| training.views | ssd | separate | joint | 2.0e-01 | 2.5e-01 | 1.0e-02 |",
    } <= set(page.splitlines())


def test_the_committed_parity_table_has_every_file():
    table = parity.read(ROOT / "leaderboards" / parity.FILE)
    files = [file.stem for file in (ROOT / "tests" / "parity").glob("*.json")]
    assert sorted(result.file for result in table.results) == sorted(files)
    assert all(result.met for result in table.results)


def test_accuracies_of_rows_with_and_without_a_setting_of_the_authors():
    scores = {
        ("cifar10-micro", "fedavg-simclr"): {0: 48.0, 1: 90.0, 2: 50.0},
        ("cifar10-micro", "ssd"): {0: 50.0},
        ("cifar10-micro-settings", "fedavg-simclr+training.views=separate"): {0: 47.0, 2: 48.0},
        ("cifar10-micro-settings", "gone+training.views=separate"): {0: 47.0},
    }
    made = [record(row, seed, x, scenario=name) for (name, row), seeds in scores.items() for seed, x in seeds.items()]
    page = parity.filled(marks("parity"), Parity(()), made)
    assert "| training.views=separate | fedavg-simclr | 2 | 49.0 ± 1.4 | 47.5 ± 0.7 | -1.5 ± 0.7 |" in page
    assert not {"| ssd |", "| gone |"} & {f"|{cell}|" for cell in page.split("|")}


NETS = Entry("fit", "weights", "encoder: 10 numbers", 46_300_000, "mean over clients", False, None, "every round")
ROWS = Entry("fit", "rows", "16 x 512", 32_768, "all rows together", True, "at least 5 | images", "every round")
HELLO = replace(ROWS, phase="hello", protected=None, when="once, in round 1", recurs=False)
SECOND_WEIGHTS = replace(NETS, combined="one by one", alone=True, when="from round 4 on")
SENT = (HELLO, NETS, SECOND_WEIGHTS, ROWS)
SHEET = Sheet(
    *("ResNet-18", 5_000),
    (
        Method("a_b", "reference", "simclr", SENT, ("target", "d"), 1_500),
        Method("local", "reference", "simclr", (), (), 0),
    ),
)


def test_a_sheet_is_read_as_it_was_written_a_line_for_each_value_and_another_file_is_refused_by_name(tmp_path):
    file = tmp_path / "privacy.json"
    write_table(file, SHEET)
    assert privacy.read(file) == SHEET
    assert '     "bytes": 46300000,' in file.read_text().splitlines()
    more = '{"methods": [], "encoder": "x", "images": 1, "more": 2}'
    for content in ("", "[]", "{}", '{"methods": [{"entries": []}]}', more):
        file.write_text(content)
        with pytest.raises(RecordError, match=r"privacy.json: no privacy sheet .*python -m benchmark privacy"):
            privacy.read(file)
    with pytest.raises(RecordError, match=r"missing\.json"):
        privacy.read(tmp_path / "missing.json")


def test_the_board_leads_to_the_sheet():
    assert "[privacy sheet](../docs/reference/privacy-sheet.md)" in markdown([], SHEET)
    assert "privacy-sheet" not in markdown([])


def test_the_guide_has_a_line_for_each_entry_and_what_stays():
    page = privacy.filled(marks("sheet"), SHEET)
    first = r"| a\_b | fit | weights | encoder: 10 numbers | 46,300,000 | every round | mean over clients | the sum |"
    second = r"| a\_b | fit | rows | 16 x 512 | 32,768 | every round | all rows together | each one |"
    assert {
        f"{first} sent as it is |",
        rf"{second} at least 5 \| images |",
        "| local | – | – | nothing | – | – | – | – | – |",
        r"| a\_b | simclr | reference | target, d | 1.5 kB |",
        "| local | simclr | reference | nothing | – |",
    } <= set(page.splitlines())
    assert privacy.filled(page, SHEET) == page
