from leaderboards.pages import further
from leaderboards.pages.board import markdown
from leaderboards.rank import board
from tests.leaderboards.test_schema import record


def measured(row, seed, linear, **more):
    one = record(row, seed, linear)
    return {**one, "scores": {**one["scores"], **more}}


RECORDS = [
    measured("ssd", 0, 50.0, **{"clusters/v1": {"nmi": 0.25}, "semi/v1": {"accuracy_1pct": 30.0}}),
    measured("ssd", 1, 51.0, **{"clusters/v1": {"nmi": 0.35}, "semi/v1": {"accuracy_1pct": 31.0}}),
    measured("fedavg-byol", 0, 40.0, **{"clusters/v1": {"nmi": 0.125}}),
    record("untrained", 0, 30.0),
]


def test_only_columns_and_rows_with_a_number_are_shown_in_the_boards_order():
    assert further.table(board(RECORDS, "cifar10-micro")) == [
        "### What other protocols say",
        "",
        "Over 1 to 2 seeds a row.",
        "",
        "| row | 1 % labels (%) | NMI of k-means |",
        "|---|---:|---:|",
        "| ssd | 30.5 ± 0.7 | 0.300 ± 0.071 |",
        "| fedavg-byol | – | 0.125 |",
    ]


def test_without_other_protocols_there_is_no_table():
    assert further.table(board([record("ssd", 0, 50.0)], "cifar10-micro")) == []
    assert "other protocols" not in markdown([record("ssd", 0, 50.0)])


def test_it_stands_on_the_page_of_its_scenario():
    page = markdown(RECORDS)
    assert page.index("## cifar10-micro") < page.index("### What other protocols say")
    assert "| ssd | 30.5 ± 0.7 | 0.300 ± 0.071 |\n" in page
