"""Our numbers on the methods' pages."""

import pytest

from leaderboards.pages import methods
from leaderboards.schema import RecordError
from tests.leaderboards.test_schema import record

PAGE = f"# SSD\n\nby hand\n\n{methods.START}\nstale\n{methods.END}\n\nmore by hand\n"
RECORDS = [
    *(record("ssd", seed, linear, method="ssd") for seed, linear in enumerate([50.0, 51.0])),
    *(record("fedavg-align_uniform", seed, linear, method="fedavg") for seed, linear in enumerate([49.0, 50.0])),
    *(record("fedu-fedx", seed, 40.0, method="fedu-fedx") for seed in (0, 1)),
    record("untrained", 0, 30.25, method="untrained"),
]
BOARDS = methods.boards(RECORDS)


def lines(method):
    return [line for line in methods.filled(PAGE, method, BOARDS).splitlines() if line.startswith("| cifar10")]


def test_the_text_around_the_marks_stays():
    page = methods.filled(PAGE, "ssd", BOARDS)
    assert page.startswith("# SSD\n\nby hand\n\n<!--")
    assert page.endswith("-->\n\nmore by hand\n")
    assert "stale" not in page
    assert methods.filled(page, "ssd", BOARDS) == page


def test_a_row_shows_its_gains_over_the_floor_and_over_its_base():
    (line,) = lines("ssd")
    adds = "+1.0 to fedavg-align\\_uniform (counts from 1.2); no clear difference"
    assert line == f"| cifar10-micro | ssd | 1= | 50.5 ± 0.7 | 43.5 ± 0.0 | 2 | +20.2 | {adds} |"


def test_a_row_that_builds_on_two_rows_shows_its_gain_over_each():
    records = [
        *(record("flesd", seed, 47.0, method="flesd") for seed in (0, 1)),
        *(record("fedavg-simclr", seed, 49.0, method="fedavg") for seed in (0, 1)),
        *(record("flesd-idle", seed, 44.0, method="flesd") for seed in (0, 1)),
    ]
    page = methods.filled(PAGE, "flesd", methods.boards(records))
    (line,) = [line for line in page.splitlines() if line.startswith("| cifar10-micro | flesd |")]
    assert "+3.0 to flesd-idle" in line
    assert "-2.0 to fedavg-simclr" in line


def test_without_the_floors_probe_no_gain_over_it_is_shown():
    scored = {"scores": {"knn/v1": {"accuracy": 30.0}}, "encoders": {"global": {"knn/v1": {"accuracy": 30.0}}}}
    floor = record("untrained", 0, method="untrained", **scored)
    page = methods.filled(PAGE, "ssd", methods.boards([*RECORDS[:2], floor]))
    assert "| ssd | 1 | 50.5 ± 0.7 | 43.5 ± 0.0 | 2 |  |  |" in page


def test_a_method_on_top_of_another_is_on_both_pages():
    assert lines("fedu") == lines("fedx") != []
    assert lines("fedsc") == []
    assert "No row of it" in methods.filled(PAGE, "fedsc", BOARDS)


def test_a_page_without_marks_is_refused_by_its_name(tmp_path):
    (tmp_path / "ssd.md").write_text(PAGE)
    methods.write(RECORDS, tmp_path)
    assert "stale" not in (tmp_path / "ssd.md").read_text()
    (tmp_path / "fedavg.md").write_text("# no marks\n")
    with pytest.raises(RecordError, match=r"fedavg\.md: no mark <!-- ours"):
        methods.write(RECORDS, tmp_path)
    methods.write(RECORDS, tmp_path / "missing")
