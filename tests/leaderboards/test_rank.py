"""Means, spreads and ranks against numbers worked out by hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from leaderboards.averages import full_names, mean_rank, ranks_by_scenario
from leaderboards.comparisons import Difference, compare, differences
from leaderboards.rank import HEADLINE, Cell, board, fitted, gaps, metric_values
from leaderboards.schema import Record, RecordError
from tests.leaderboards.test_schema import record


def records(**rows: Sequence[float | None]) -> list[Record]:
    return [record(name, seed, linear) for name, sample in rows.items() for seed, linear in enumerate(sample)]


def ranks(rows: Mapping[str, Sequence[float | None]]) -> dict[str, tuple[int, int] | None]:
    """Row -> rank, in order of the board."""
    return {row.row: row.rank for row in board(records(**rows), "cifar10-micro")}


def three(mean: float) -> list[float | None]:
    """Seeds whose effects are -1, 0 and 1."""
    return [mean - 1, mean, mean + 1]


def test_a_row_is_the_mean_and_sample_deviation_of_its_seeds():
    (row,) = board(records(ssd=[48.0, 50.0, 52.0]), "cifar10-micro")
    assert row.cells[HEADLINE] == Cell(mean=50.0, spread=2.0, n=3)  # sqrt((4 + 0 + 4) / 2)
    assert row.cells["geometry/v1 effective_rank"] == Cell(31.25, 0.0, 3)
    assert (row.row, row.method, row.objective) == ("ssd", "fedavg", "byol")
    assert (row.seeds, row.rounds) == ((0, 1, 2), 5)
    assert row.bytes_up == 46_800_000  # (2.3e9 + 4e7) / 50 visits
    assert row.bytes_down == 1235
    assert row.client_seconds == 1.6
    assert row.rank is None  # nothing to compare it with
    assert (row.images, row.server_images) == (100_000, 0)


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


# Errors of `NOISY`: 0, -1, 1; 0, 1, -1; and 0. So s is 1, and three means differ from 5.0402 / sqrt(3) = 2.91 on
NOISY: dict[str, list[float | None]] = {"a": [50, 50, 53], "b": [48, 50, 49], "c": [46, 47, 48]}


def test_a_rank_counts_the_rows_that_are_better_and_those_that_are_worse():
    assert ranks(NOISY) == {"a": (1, 2), "b": (1, 3), "c": (2, 3)}
    rows = board(records(**NOISY), "cifar10-micro")
    assert [(row.better, row.worse) for row in rows] == [((), ("c",)), ((), ()), (("a",), ())]
    compared = fitted(rows)
    assert compared is not None
    assert compared.spread == pytest.approx(1)


def test_without_errors_every_difference_counts_and_equal_rows_share_places():
    assert ranks({"b": three(50), "a": three(50), "c": three(49)}) == {"a": (1, 2), "b": (1, 2), "c": (3, 3)}


def test_what_a_seed_does_to_all_rows_is_no_spread():
    assert ranks({"a": [50, 70, 30], "b": [49, 69, 29]}) == {"a": (1, 1), "b": (2, 2)}


def test_a_row_of_two_seeds_is_shown_in_its_place_and_not_ranked():
    assert ranks({**NOISY, "few": [49.9, 50.1]}) == {"a": (1, 2), "few": None, "b": (1, 3), "c": (2, 3)}
    assert ranks({"a": [40], "b": [50], "untrained": [60]}) == {"b": None, "a": None, "untrained": None}


def test_with_a_missing_seed_rows_are_ordered_by_what_their_ranks_rest_on():
    """The hard seed 3 lowers the means of all rows but `lucky`, which lacks it and is the worst under all others."""
    seeds: dict[str, list[float | None]] = {"a": [60, 61, 59, 30.2], "b": [59, 60, 58, 29], "lucky": [57, 58, 56]}
    rows = board(records(**seeds), "cifar10-micro")
    compared = fitted(rows)
    assert compared is not None
    assert [row.row for row in rows] == ["a", "b", "lucky"]
    assert rows[2].cells[HEADLINE].mean > rows[0].cells[HEADLINE].mean  # not the order of the plain means
    effects = [compared.effects[row.row] for row in rows]
    assert effects == sorted(effects, reverse=True)
    assert [row.rank for row in rows] == sorted(row.rank for row in rows if row.rank)
    assert rows[2].better == ("a", "b")  # in order of the board


def test_a_row_called_by_its_method_alone_is_the_row_that_another_board_calls_in_full():
    """`fedx` and `fedx-simclr` are one row, whose ranks are averaged; `fedx-byol` and a second row here are others."""

    def fedx(name, scenario, mean, objective="simclr"):
        return [
            record(name, seed, linear, scenario=scenario, method="fedx", objective=objective)
            for seed, linear in enumerate(three(mean))
        ]

    first = [*fedx("fedx-simclr", "one", 50), *fedx("fedx-byol", "one", 40, "byol")]
    second = [*fedx("fedx", "two", 40), *fedx("fedx-byol", "two", 50, "byol")]
    boards = {name: board([*first, *second], name) for name in ("one", "two")}
    assert full_names(boards) == {"two": {"fedx": "fedx-simclr"}}
    assert ranks_by_scenario(boards) == {
        "fedx-byol": {"one": (2, 2), "two": (1, 1)},
        "fedx-simclr": {"one": (1, 1), "two": (2, 2)},
    }
    boards["two"] = board([*second, *fedx("fedx-simclr", "two", 45)], "two")
    assert full_names(boards) == {}


def test_a_control_is_shown_in_its_place_and_not_ranked():
    idle = [
        record("idle", seed, 49.5, settings={**record(seed=0)["settings"], "optimizer.lr": 0.0}) for seed in range(3)
    ]
    rows = board([*records(**NOISY), *idle], "cifar10-micro")
    assert [(row.row, row.rank, row.unranked) for row in rows] == [
        ("a", (1, 2), ""),
        ("idle", None, "control"),
        ("b", (1, 3), ""),
        ("c", (2, 3), ""),
    ]


def test_an_untrained_encoder_of_another_kind_is_a_control_and_the_floor_is_none():
    network = [{**record("untrained-vit", seed, 49.5), "method": "untrained"} for seed in range(3)]
    floor = {**record("untrained", 0, 30), "method": "untrained"}
    rows = {row.row: row for row in board([*records(**NOISY), *network, floor], "cifar10-micro")}
    assert (rows["untrained-vit"].rank, rows["untrained-vit"].unranked) == (None, "control")
    assert not rows["untrained"].control


def test_a_single_client_is_not_ranked_among_federations():
    alone = [{**record("alone", seed, 49.5), "federation": {"clients": 1, "per_round": 1}} for seed in range(3)]
    rows = board([*records(**NOISY), *alone], "cifar10-micro")
    assert [(row.row, row.rank, row.unranked) for row in rows][:2] == [("a", (1, 2), ""), ("alone", None, "one client")]
    other = [{**each, "row": "other"} for each in alone]
    assert [row.rank for row in board([*alone, *other], "cifar10-micro")] == [(1, 2), (1, 2)]


def test_a_row_without_the_headline_says_too_why_it_takes_no_rank():
    unscored = [dict(entry, scores={}) for entry in records(**NOISY)]
    idle = {**record("idle", 0), "settings": {**record(seed=0)["settings"], "optimizer.lr": 0.0}, "scores": {}}
    alone = [{**record("alone", seed, 49.5), "federation": {"clients": 1, "per_round": 1}} for seed in range(3)]
    found = {row.row: row.unranked for row in board([*unscored, idle, *alone], "cifar10-micro")}
    assert found == {"a": "", "b": "", "c": "", "idle": "control", "alone": "one client"}


def test_accuracies_below_the_untrained_encoder_are_marked():
    floor = record("untrained", 0, 40.0)
    floor["scores"]["knn/v1"] = {"accuracy": 40.0}
    low, high = record("low", 0, 39.9), record("high", 0, 40.0)
    low["scores"]["knn/v1"], high["scores"]["knn/v1"] = {"accuracy": 40.1}, {"accuracy": 39.0}
    low["scores"]["geometry/v1"]["effective_rank"] = 0.1
    below = {row.row: row.below for row in board([floor, low, high], "cifar10-micro")}
    assert below == {"high": ("knn/v1 accuracy",), "low": ("linear/v1 accuracy",), "untrained": ()}
    assert {row.below for row in board([low, high], "cifar10-micro")} == {()}


def test_a_row_is_set_beside_the_untrained_encoder_of_its_architecture():
    made = {"untrained": 40.0, "untrained-vit": 30.0, "convnet": 35.0, "vit": 35.0, "resnet": 35.0}
    rows = [record(name, 0, linear) for name, linear in made.items()]
    for row in rows:
        row["method"] = row["row"].partition("-")[0]
        row["settings"] |= {
            "encoder.class": {"convnet": "convnet", "resnet": "resnet"}.get(row["row"], row["row"][-3:])
        }
    rows[0]["settings"]["encoder.class"] = "convnet"
    found = {row.row: (row.floor, bool(row.below)) for row in board(rows, "cifar10-micro")}
    assert found == {
        "untrained": ("untrained", False),
        "untrained-vit": ("untrained-vit", False),
        "convnet": ("untrained", True),
        "vit": ("untrained-vit", False),
        "resnet": ("untrained", True),
    }


def test_a_row_is_set_beside_the_untrained_encoder_of_its_own_seeds():
    floor = [record("untrained", seed, linear) for seed, linear in enumerate([50.0, 40.0, 30.0])]
    above, below = record("above", 2, 31.0), record("below", 0, 49.0)
    elsewhere = record("elsewhere", 7, 1.0)
    rows = {row.row: row.below for row in board([*floor, above, below, elsewhere], "cifar10-micro")}
    assert rows == {"above": (), "below": ("linear/v1 accuracy",), "elsewhere": (), "untrained": ()}


def test_a_gain_is_over_shared_seeds_and_names_other_differences():
    base = [record("base", seed, linear) for seed, linear in enumerate([49.0, 50.0, 54.0])]
    slower = {**base[0]["settings"], "optimizer.lr": 0.05, "method.mu": 1}
    row = [record("row", seed, linear, settings=slower) for seed, linear in ((1, 51.0), (2, 55.0), (7, 99.0))]
    (difference,) = differences(board([*base, *row], "cifar10-micro"), {"base": ["row"]})
    assert difference.by_seed == {1: 1.0, 2: 1.0}
    assert difference.unlike == ("optimizer.lr 0.05, not 0.1",)
    assert differences(board([*base, row[2]], "cifar10-micro"), {"base": ["row"]}) == []


def test_a_gain_counts_by_the_comparison_of_all_rows():
    rows = board(records(**NOISY), "cifar10-micro")
    less, unclear = differences(rows, {"a": ["b", "c", "never-run"], "missing": ["a"]})[::-1]
    assert (less.row, less.base, less.points) == ("c", "a", pytest.approx(-4))
    assert less.margin == pytest.approx(5.0402 / math.sqrt(3), abs=1e-4)
    assert (less.verdict, unclear.verdict) == ("less", "no clear difference")
    (more,) = differences(rows, {"c": ["a"]})
    assert (more.points, more.verdict) == (pytest.approx(4), "more")


@pytest.mark.parametrize(
    ("points", "margin", "decimals"), [(0.2, 1.4, 1), (-2.17, 2.27, 1), (-2.17, 2.21, 2), (2.1673, 2.1731, 3)]
)
def test_points_are_shown_with_the_decimals_that_tell_them_from_the_margin(points, margin, decimals):
    found = Difference("a", "b", points, {}, margin, ())
    assert found.decimals == decimals
    assert replace(found, margin=None).decimals == 1


def test_a_gain_of_few_seeds_is_shown_without_a_verdict():
    rows = board(records(base=[49.0, 50.0, 51.0], much=[52.0, 53.0]), "cifar10-micro")
    (much,) = differences(rows, {"base": ["much"]})
    assert (much.points, much.margin, much.verdict) == (3.0, None, "too few seeds")


def test_a_control_is_compared_with_its_row_by_the_two_alone():
    """The paired t-test: differences 1, 2 and 3, a mean of 2 with a deviation of 1, beyond 4.303 / sqrt(3) or not."""
    settings = {**record(seed=0)["settings"], "optimizer.lr": 0}
    idle = [record("idle", seed, value, settings=settings) for seed, value in enumerate([40.0, 41.0, 42.0])]
    rows = board([*idle, *records(full=[41.0, 43.0, 45.0], noise=[10.0, 90.0, 20.0])], "cifar10-micro")
    (difference,) = differences(rows, {"idle": ["full"]})
    assert difference.points == pytest.approx(2)
    assert difference.margin == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert difference.verdict == "no clear difference"


def test_the_floor_is_last_and_never_ranked():
    rows = {"untrained": three(60), "a": three(50), "b": three(30)}
    assert ranks(rows) == {"a": (1, 1), "b": (2, 2), "untrained": None}


def test_rows_without_the_headline_come_after_the_ranked_and_before_the_floor():
    rows = {"untrained": [30, 31], "z": [None, None], "a": [50, None, 51, 52], "y": [None]}
    assert ranks(rows) == {"a": None, "y": None, "z": None, "untrained": None}
    first = board(records(**rows), "cifar10-micro")[0]
    assert first.seeds == (0, 1, 2, 3)
    assert (first.cells[HEADLINE].n, first.cells["knn/v1 accuracy"].n) == (3, 4)


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
    ssd, fedavg = board(records(ssd=[50, 53, 49], fedavg=[48, 49, 49, 90]), "cifar10-micro")
    difference = compare(ssd, fedavg, fitted([ssd, fedavg]))
    assert difference is not None
    assert difference.by_seed == {0: 2, 1: 4, 2: 0}  # the fourth seed has no partner
    assert (difference.points, difference.verdict) == (pytest.approx(2), "no clear difference")
    alone, other = board([record("ssd", 0, 50.0), record("fedavg", 1, 48.0)], "cifar10-micro")
    assert compare(alone, other, None) is None


def test_ranks_are_averaged_over_scenarios_and_count_the_shared_rows_alone():
    first = board(records(**NOISY, d=three(70)), "cifar10-micro")  # d is missing below
    assert [(row.row, row.rank) for row in first][:2] == [("d", (1, 1)), ("a", (2, 3))]
    second = board(records(a=three(40), b=three(50), c=three(30)), "cifar10-micro")
    boards = {"first": first, "second": second, "unranked": board(records(a=[1.0]), "cifar10-micro")}
    averaged = ranks_by_scenario(boards)
    assert averaged == {
        "a": {"first": (1, 2), "second": (2, 2)},
        "b": {"first": (1, 3), "second": (1, 1)},
        "c": {"first": (2, 3), "second": (3, 3)},
    }
    assert list(averaged) == ["a", "b", "c"]  # a and b are both first and second once
    assert mean_rank(averaged["a"].values()) == (1.5, 2.0)
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
