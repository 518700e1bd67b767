"""Means, spreads, ties and ranks against numbers worked out by hand."""

import math
from collections.abc import Mapping, Sequence

import pytest

from leaderboards.comparisons import compare, differences
from leaderboards.rank import HEADLINE, Cell, board, gaps, metric_values, pooled_spread, ranks_by_scenario
from leaderboards.schema import Record, RecordError
from tests.leaderboards.test_schema import record


def records(**rows: Sequence[float | None]) -> list[Record]:
    return [record(name, seed, linear) for name, sample in rows.items() for seed, linear in enumerate(sample)]


def ranks(rows: Mapping[str, Sequence[float | None]]) -> list[tuple[str, int | None, bool]]:
    return [(row.row, row.rank, row.tied) for row in board(records(**rows), "cifar10-micro")]


def test_a_row_is_the_mean_and_sample_deviation_of_its_seeds():
    (row,) = board(records(ssd=[48.0, 50.0, 52.0]), "cifar10-micro")
    assert row.cells[HEADLINE] == Cell(mean=50.0, spread=2.0, n=3)  # sqrt((4 + 0 + 4) / 2)
    assert row.cells["geometry/v1 effective_rank"] == Cell(31.25, 0.0, 3)
    assert (row.row, row.method, row.objective) == ("ssd", "fedavg", "byol")
    assert (row.seeds, row.rounds) == ((0, 1, 2), 5)
    assert row.bytes_up == 46_800_000  # (2.3e9 + 4e7) / 50 visits
    assert row.bytes_down == 1235
    assert row.client_seconds == 1.6
    assert (row.rank, row.tied) == (1, False)


def test_traffic_is_averaged_over_the_visits_of_all_seeds():
    few = {"bytes": {"up": {"weights": 100}, "down": {}, "visits": 1}}
    many = {"bytes": {"up": {"weights": 600}, "down": {}, "visits": 9}}
    (row,) = board([record(seed=0, **few), record(seed=1, **many)], "cifar10-micro")
    assert (row.bytes_up, row.bytes_down, row.client_seconds) == (70, 0, 16)  # 700, 0 and 160 over 10 visits


def test_a_row_without_visits_has_neither_traffic_nor_seconds():
    (row,) = board([record(bytes={"up": {}, "down": {}, "visits": 0})], "cifar10-micro")
    assert (row.bytes_up, row.bytes_down, row.client_seconds) == (None, None, None)


def test_a_single_client_has_no_traffic():
    (row,) = board([record(federation={"clients": 1, "participation": 1.0, "batch_norm": "average"})], "cifar10-micro")
    assert (row.bytes_up, row.bytes_down, row.client_seconds) == (None, None, 1.6)


def test_a_rows_epsilon_is_the_largest_of_any_client_and_seed():
    spent = [(2.5, ["R"]), (8.0, ["R", "S"]), (4.0, ["R"])]
    noisy = [
        record(seed=seed, epsilon=epsilon, privacy={"delta": 1e-05, "covers": covers, "clients": {"3": epsilon}})
        for seed, (epsilon, covers) in enumerate(spent)
    ]
    (row,) = board(noisy, "cifar10-micro")
    assert (row.epsilon, row.covers, row.delta) == (8.0, ("R", "S"), 1e-05)
    (row,) = board([record()], "cifar10-micro")
    assert (row.epsilon, row.covers, row.delta) == (None, (), None)


def test_the_spread_is_pooled_over_rows_with_two_seeds_or_more():
    # a: variance 2 with 1 degree of freedom; b: variance 1 with 2; c: none. s^2 = (1 * 2 + 2 * 1) / 3
    rows = board(records(a=[50, 52], b=[40, 41, 42], c=[30]), "cifar10-micro")
    assert pooled_spread(rows) == pytest.approx(math.sqrt(4 / 3), rel=1e-12)


def test_rows_tie_up_to_and_including_the_threshold():
    # two seeds one apart: variance 1/2, the threshold is 2 sqrt(1/2) sqrt(1/2 + 1/2) = sqrt(2)
    assert ranks({"a": [50, 51], "b": [48.59, 49.59]}) == [("a", 1, True), ("b", 1, True)]
    assert ranks({"a": [50, 51], "b": [48.58, 49.58]}) == [("a", 1, False), ("b", 2, False)]
    # s = 0: the threshold is 0, and equality is a tie
    assert ranks({"b": [50, 50], "a": [50, 50], "c": [49, 49]}) == [("a", 1, True), ("b", 1, True), ("c", 3, False)]


def test_a_single_seed_has_a_wider_threshold():
    # s^2 = 1/2 from a alone; against one seed 2 sqrt(1/2) sqrt(1/2 + 1) = sqrt(3)
    assert ranks({"a": [50, 51], "b": [48.77]}) == [("a", 1, True), ("b", 1, True)]
    assert ranks({"a": [50, 51], "b": [48.76]}) == [("a", 1, False), ("b", 2, False)]


def test_ties_are_with_the_first_of_the_group_and_do_not_chain():
    # the threshold is sqrt(2) throughout: b is 1 below a; c is 1 below b but 2 below a, so it opens a group; d joins it
    rows = {"d": [47, 48], "c": [48, 49], "b": [49, 50], "a": [50, 51], "e": [40, 41]}
    assert ranks(rows) == [("a", 1, True), ("b", 1, True), ("c", 3, True), ("d", 3, True), ("e", 5, False)]


def test_a_gain_is_over_shared_seeds_and_names_other_differences():
    base = [record("base", seed, linear) for seed, linear in enumerate([49.0, 50.0, 54.0])]
    slower = {**base[0]["settings"], "optimizer.lr": 0.05, "method.mu": 1}
    row = [record("row", seed, linear, settings=slower) for seed, linear in ((1, 51.0), (2, 55.0), (7, 99.0))]
    (difference,) = differences(board([*base, *row], "cifar10-micro"), {"base": ["row"]})
    assert difference.by_seed == {1: 1.0, 2: 1.0}
    assert difference.unlike == ("optimizer.lr 0.05, not 0.1",)
    assert differences(board([*base, row[2]], "cifar10-micro"), {"base": ["row"]}) == []


def test_a_gain_counts_beyond_twice_its_standard_error():
    rows = board(records(base=[49.0, 50.0, 51.0], much=[52.0], some=[49.5, 50.5, 51.5]), "cifar10-micro")
    much, some = differences(rows, {"base": ["some", "much", "never-run"], "missing": ["base"]})
    assert (much.row, much.base, much.cell.mean, some.cell.mean) == ("much", "base", 3.0, 0.5)
    assert much.threshold == pytest.approx(2 * math.sqrt(2))  # s = 1
    assert some.threshold == pytest.approx(2 * math.sqrt(2 / 3))
    assert (much.significant, some.significant) == (True, False)
    (less,) = differences(board(records(base=[49.0, 51.0], row=[45.0, 47.0]), "cifar10-micro"), {"base": ["row"]})
    assert (less.cell.mean, less.significant) == (-4.0, True)
    assert differences(board(records(base=[49.0], row=[45.0]), "cifar10-micro"), {"base": ["row"]}) == []


def test_the_floor_is_last_and_never_ranked():
    assert ranks({"untrained": [60, 61], "a": [50, 51], "b": [30, 31]}) == [
        ("a", 1, False),
        ("b", 2, False),
        ("untrained", None, False),
    ]


def test_without_two_seeds_anywhere_rows_are_ordered_but_not_ranked():
    assert ranks({"a": [40], "b": [50], "untrained": [60]}) == [
        ("b", None, False),
        ("a", None, False),
        ("untrained", None, False),
    ]


def test_rows_without_the_headline_come_after_the_ranked_and_before_the_floor():
    rows = {"untrained": [30, 31], "z": [None, None], "a": [50, None, 51], "y": [None]}
    assert ranks(rows) == [("a", 1, False), ("y", None, False), ("z", None, False), ("untrained", None, False)]
    first = board(records(**rows), "cifar10-micro")[0]
    assert first.seeds == (0, 1, 2)
    assert (first.cells[HEADLINE].n, first.cells["knn/v1 accuracy"].n) == (2, 3)


def test_only_finished_runs_of_the_scenario_count():
    entries = [record(seed=0, linear=50), record(seed=1, linear=10, rounds={"done": 3, "planned": 5})]
    (row,) = board([*entries, record(seed=2, linear=10, scenario="digits")], "cifar10-micro")
    assert row.cells[HEADLINE] == Cell(50, None, 1)
    assert board([], "cifar10-micro") == []


def test_the_order_of_records_does_not_matter():
    entries = records(a=[50.1, 51.7, 49.3], b=[48.2, 49.9, 50.6], untrained=[30.3])
    assert board(entries, "cifar10-micro") == board(entries[::-1], "cifar10-micro")
    assert metric_values(entries[:3], HEADLINE) == [50.1, 51.7, 49.3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "fedprox"}, "method is fedavg and fedprox"),
        ({"objective": "simclr"}, "objective is byol and simclr"),
        ({"rounds": {"done": 10, "planned": 10}}, "rounds is 5 and 10"),
        ({"settings": {"optimizer.lr": 0.2, "partition.name": "iid"}}, "optimizer.lr is 0.1 and 0.2"),
        ({"settings": {"partition.name": "iid"}}, "optimizer.lr is 0.1 and None"),
        ({"provenance": {**record(seed=0)["provenance"], "dataset": "f" * 64}}, r"dataset is \w{1,12} and f{12}\)"),
    ],
)
def test_seeds_of_different_settings_are_refused(change: dict[str, object], message: str):
    with pytest.raises(
        RecordError, match=f"micro/fedavg-byol/seed0 and .*/seed1 are not one setting of a row .{message}"
    ):
        board([record(seed=0), {**record(seed=1), **change}], "cifar10-micro")


def test_a_setting_that_is_missing_in_an_old_record_has_its_default():
    before = record("ssd", 0)
    same, other = ({**before["settings"], "method.separation": value} for value in ("soft", "hard"))
    (row,) = board([before, record("ssd", 1, settings=same)], "cifar10-micro")
    assert row.seeds == (0, 1)
    with pytest.raises(RecordError, match=r"method\.separation is soft and hard"):
        board([before, record("ssd", 1, settings=other)], "cifar10-micro")


def test_two_rows_are_compared_seed_by_seed():
    ssd, fedavg = board(records(ssd=[50, 53, 49], fedavg=[48, 49, 49, 90]), "cifar10-micro")[::-1]
    difference = compare(ssd, fedavg, spread=1.5)
    assert difference is not None
    assert difference.by_seed == {0: 2, 1: 4, 2: 0}  # the fourth seed has no partner
    assert difference.cell == Cell(2.0, 2.0, 3)
    assert difference.threshold == pytest.approx(2 * 1.5 * math.sqrt(2 / 3))
    alone, other = board([record("ssd", 0, 50.0), record("fedavg", 1, 48.0)], "cifar10-micro")
    assert compare(alone, other, spread=1.5) is None


def test_ranks_are_averaged_over_scenarios_and_tied_rows_get_the_mean_position():
    """Spreads are 1 throughout: two rows of three seeds differ beyond 2 sqrt(2 / 3) = 1.63."""

    def three(mean: float) -> list[float | None]:
        return [mean - 1, mean, mean + 1]

    first = board(records(a=three(60), b=three(59), c=three(50), d=three(70)), "cifar10-micro")  # d is missing below
    second = board(records(a=three(40), b=three(50), c=three(30)), "cifar10-micro")
    boards = {"first": first, "second": second, "unranked": board(records(a=[1.0]), "cifar10-micro")}
    assert list(ranks_by_scenario(boards).items()) == [
        ("b", {"first": 1.5, "second": 1}),  # tied with a for positions one and two
        ("a", {"first": 1.5, "second": 2}),
        ("c", {"first": 3, "second": 3}),
    ]
    assert ranks_by_scenario({}) == {}


def test_a_missing_seed_and_a_seed_without_the_headline_are_named():
    rows = board([*records(b=[1.0, None, 2.0]), record("a", 0), record("a", 4), record("c", 2)], "cifar10-micro")
    lines = ["a has no seed 1, 2, 3", "b, seed 1, has no linear/v1 accuracy", "c has no seed 0, 1"]
    assert sorted(gaps(rows)) == lines
    assert gaps(board([record("d", 17)], "cifar10-micro")) == []  # there is no other row or seed


def test_a_row_has_its_commits_hardware_and_dates():
    origin = record()["provenance"] | {"git": "0123456789"}
    other = {**origin, "git": "f" * 40, "dirty": True, "date": "2026-01-01T00:00:00+00:00", "hardware": "another"}
    (row,) = board([record(seed=k, provenance=made) for k, made in enumerate((origin, origin, other))], "cifar10-micro")
    assert row.commits == ("0123456", "fffffff*")
    assert row.hardware == (origin["hardware"], "another")
    assert row.dates == ("2026-01-01T00:00:00+00:00", origin["date"])
