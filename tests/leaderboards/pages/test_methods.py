"""Our numbers on the methods' pages."""

import pytest

from leaderboards.pages import methods
from leaderboards.papers.tables import Ours, Published
from leaderboards.schema import RecordError
from tests.leaderboards.test_schema import record

LINKS = f"{methods.PUBLISHED_START}\n{methods.PUBLISHED_END}"
PAGE = f"# SSD\n\nby hand\n\n{LINKS}\n\n{methods.START}\nstale\n{methods.END}\n\nmore by hand\n"
RECORDS = [
    *(record("ssd", seed, linear, method="ssd") for seed, linear in enumerate([50.0, 51.0, 52.0])),
    *(record("fedavg-align_uniform", seed, linear, method="fedavg") for seed, linear in enumerate([50.0, 50.0, 50.0])),
    *(record("fedu-fedx", seed, 40.0, method="fedu-fedx") for seed in (0, 1)),
    record("untrained", 0, 30.25, method="untrained"),
]
BOARDS = methods.boards(RECORDS)


def cell(paper, table, row, ours=None):
    return Published(paper, paper.upper(), "cite", table, "t", row, "c", 1.0, None, "%", {}, (), ours, 0)


CELLS = [
    cell("ssd", "main", "without"),
    cell("ssd", "main", "with"),
    cell("fedx", "2", "SCAFFOLD", Ours("s", "scaffold-fedx", "linear/v1 accuracy")),
    cell("ldawa", "README", "FedU, E = 1"),
    cell("ldawa", "README", "FedU2"),
]


def lines(method):
    return [line for line in methods.filled(PAGE, method, BOARDS, CELLS).splitlines() if line.startswith("| cifar10")]


def test_the_text_around_the_marks_stays():
    page = methods.filled(PAGE, "ssd", BOARDS, CELLS)
    assert page.startswith("# SSD\n\nby hand\n\n<!--")
    assert page.endswith("-->\n\nmore by hand\n")
    assert "stale" not in page
    assert methods.filled(page, "ssd", BOARDS, CELLS) == page


def test_a_row_shows_its_gains_over_the_floor_and_over_its_base():
    (line,) = lines("ssd")
    adds = "+1.0 to fedavg-align\\_uniform (counts from 2.5); no clear difference"  # 4.303 / sqrt(3)
    assert line == f"| cifar10-micro | ssd | 1-2 | 51.0 ± 1.0 | 43.5 ± 0.0 | 3 | +20.8 | {adds} |"


def test_the_mark_of_an_accuracy_below_the_floor_is_explained_where_it_stands():
    low = [record("ssd", seed, 20.0, method="ssd") for seed in range(3)]
    page = methods.filled(PAGE, "ssd", methods.boards([*low, record("untrained", 0, 30.25)]), CELLS)
    assert "| 20.0 ± 0.0 ↓ |" in page
    assert "\n\n↓ is below the untrained encoder, " in page
    assert "↓" not in methods.filled(PAGE, "ssd", BOARDS, CELLS)


def test_a_row_that_builds_on_two_rows_shows_its_gain_over_each():
    records = [
        *(record("flesd", seed, 47.0, method="flesd") for seed in (0, 1)),
        *(record("fedavg-simclr", seed, 49.0, method="fedavg") for seed in (0, 1)),
        *(record("flesd-idle", seed, 44.0, method="flesd") for seed in (0, 1)),
    ]
    page = methods.filled(PAGE, "flesd", methods.boards(records), CELLS)
    (line,) = [line for line in page.splitlines() if line.startswith("| cifar10-micro | flesd |")]
    assert "+3.0 to flesd-idle" in line
    assert "-2.0 to fedavg-simclr" in line


def test_without_the_floors_probe_no_gain_over_it_is_shown():
    scored = {"scores": {"knn/v1": {"accuracy": 30.0}}, "encoders": {"global": {"knn/v1": {"accuracy": 30.0}}}}
    floor = record("untrained", 0, method="untrained", **scored)
    page = methods.filled(PAGE, "ssd", methods.boards([*RECORDS[:3], floor]), CELLS)
    assert "| ssd | – | 51.0 ± 1.0 | 43.5 ± 0.0 | 3 |  |  |" in page


def test_a_method_on_top_of_another_is_on_both_pages():
    assert lines("fedu") == lines("fedx") != []
    assert lines("fedsc") == []
    assert "No row of it" in methods.filled(PAGE, "fedsc", BOARDS, CELLS)


def test_a_page_links_to_the_papers_tables_with_rows_of_its_method():
    def links(title, method):
        page = methods.filled(PAGE.replace("# SSD", f"# {title}"), method, BOARDS, CELLS)
        return page.partition(methods.PUBLISHED_START)[2].partition(methods.PUBLISHED_END)[0].split("\n")[2:-2]

    assert links("SSD", "ssd") == ["- SSD: [main](../reproduction.md#ssd-main)"]  # its own paper: all rows
    assert links("SCAFFOLD", "scaffold") == ["- FEDX: [table 2](../reproduction.md#fedx-table-2)"]  # by our row
    assert links("FedU", "fedu") == ["- LDAWA: [README](../reproduction.md#ldawa-readme)"]  # by name, and not FedU2
    assert links("FedEMA", "fedema") == ["No table with a row of it could be read."]


@pytest.mark.parametrize(
    ("row", "found"),
    [("fedx-local", ["fedx"]), ("fedu-fedx-x", ["fedu", "fedx"]), ("ssd", ["ssd"]), ("new-row", ["new"])],
)
def test_the_methods_of_a_row_are_known_by_its_name(row, found):
    assert methods._methods_of(row, {"fedx", "fedu", "fedu-fedx", "ssd", "local"}) == found


def test_a_page_without_marks_is_refused_by_its_name(tmp_path):
    (tmp_path / "ssd.md").write_text(PAGE)
    methods.write(RECORDS, tmp_path, CELLS)
    assert "stale" not in (tmp_path / "ssd.md").read_text()
    (tmp_path / "fedavg.md").write_text("# no marks\n")
    with pytest.raises(RecordError, match=r"fedavg\.md: no mark <!-- ours"):
        methods.write(RECORDS, tmp_path, CELLS)
    methods.write(RECORDS, tmp_path / "missing", CELLS)
