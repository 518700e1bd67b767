"""Means, spreads and ranks against numbers worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats

from leaderboards.averages import average, friedman, full_names
from leaderboards.comparisons import LESS, MORE, NEGLIGIBLY, TOO_FEW, UNCLEAR, compare, differences
from leaderboards.rank import HEADLINE, Cell, Row, board, fitted, gaps, metric_values
from leaderboards.schema import Record, RecordError
from tests.leaderboards.test_schema import record, records

SETTINGS = record()["settings"]
ALONE = {"federation": {"clients": 1, "participation": 1.0, "batch_norm": "average"}}
IDLE = {"settings": {**SETTINGS, "optimizer.lr": 0.0}}


def made(entries: Sequence[Record]) -> list[Row]:
    return board(entries, "cifar10-micro")


def three(mean: float) -> list[float | None]:
    """Seeds whose effects are -1, 0 and 1."""
    return [mean - 1, mean, mean + 1]


def test_a_row_is_the_mean_and_sample_deviation_of_its_seeds():
    (row,) = made(records({"ssd": [48.0, 50.0, 52.0]}))
    assert row.cells[HEADLINE] == Cell(mean=50.0, spread=2.0, n=3)  # sqrt((4 + 0 + 4) / 2)
    assert row.cells["geometry/v1 effective_rank"] == Cell(31.25, 0.0, 3)
    assert (row.row, row.method, row.objective, row.seeds, row.rounds) == ("ssd", "fedavg", "byol", (0, 1, 2), 5)
    assert (row.bytes_up, row.bytes_down, row.client_seconds) == (46_800_000, 1235, 1.6)  # (2.3e9 + 4e7) / 50 visits
    assert (row.images, row.server_images, row.rank) == (100_000, 0, None)  # there is nothing to compare it with


def test_traffic_is_averaged_over_the_visits_of_all_seeds():
    several = [{"bytes": {"up": {"weights": up}, "down": {}, "visits": n}} for up, n in ((100, 1), (600, 9))]
    for runs, traffic in [
        (several, (70, 0, 16)),  # 700, 0 and 160 over 10 visits
        ([{"bytes": {"up": {}, "down": {}, "visits": 0}}], (None, None, None)),
        ([ALONE], (None, None, 1.6)),
    ]:
        (row,) = made([record(seed=seed, **changes) for seed, changes in enumerate(runs)])
        assert (row.bytes_up, row.bytes_down, row.client_seconds) == traffic


def test_a_rows_epsilon_is_the_largest_of_any_client_and_seed():
    spent = [(2.5, ["R"]), (8.0, ["R", "S"]), (4.0, ["R"])]
    noisy = [
        record(seed=seed, epsilon=epsilon, privacy={"delta": 1e-05, "covers": covers, "clients": {"3": epsilon}})
        for seed, (epsilon, covers) in enumerate(spent)
    ]
    for entries, expected in ((noisy, (8.0, ("R", "S"), 1e-05)), ([record()], (None, (), None))):
        (row,) = made(entries)
        assert (row.epsilon, row.covers, row.delta) == expected


def acts(**numbers: float) -> dict[str, Any]:
    return {"activity": {key: {"mean": mean, "bound": 0.01, "measures": "it"} for key, mean in numbers.items()}}


def test_a_row_is_idle_where_all_that_it_adds_is_below_its_bound_by_the_mean_over_seeds() -> None:
    for each, idle, means in [
        ([{}, {}], False, {}),
        ([acts(a=0.0), acts(a=0.019)], True, {"a": 0.0095}),
        ([acts(a=0.0), acts(a=0.021)], False, {"a": 0.0105}),
        ([{}, acts(a=0.001, b=0.5)], False, {"a": 0.001, "b": 0.5}),
    ]:
        (row,) = made([record(seed=seed, **changes) for seed, changes in enumerate(each)])
        assert (row.idle, {name: found.mean for name, found in row.activity.items()}) == (idle, pytest.approx(means))


# Of `NOISY` the errors are -0.7, 0, 0.7; 0.7, -0.7, 0; and 0, 0.7, -0.7: two means differ from 2.7 on
NOISY: dict[str, list[float | None]] = {"a": [49.3, 51, 52.7], "b": [48.7, 48.3, 50], "c": [46, 47.7, 47.3]}


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        (NOISY, {"a": (1, 2), "b": (1, 3), "c": (2, 3)}),
        # without errors every difference counts, and equal rows share places
        ({"b": three(50), "a": three(50), "c": three(49)}, {"a": (1, 2), "b": (1, 2), "c": (3, 3)}),
        # what a seed does to all rows is no spread
        ({"a": [50, 70, 30], "b": [49, 69, 29]}, {"a": (1, 1), "b": (2, 2)}),
        # a row of two seeds is shown in its place
        ({**NOISY, "few": [49.9, 50.1]}, {"a": (1, 2), "few": None, "b": (1, 3), "c": (2, 3)}),
        ({"a": [40], "b": [50], "untrained": [60]}, {"b": None, "a": None, "untrained": None}),
        # the floor is last
        ({"untrained": three(60), "a": three(50), "b": three(30)}, {"a": (1, 1), "b": (2, 2), "untrained": None}),
        # rows without the headline come after those that have it
        (
            {"untrained": [30, 31], "z": [None, None], "a": [50, None, 51, 52], "y": [None]},
            {"a": None, "y": None, "z": None, "untrained": None},
        ),
        # the floor without the headline is last too
        ({"untrained": [None], "z": [None], "a": three(50)}, {"a": None, "z": None, "untrained": None}),
    ],
)
def test_a_rank_counts_the_rows_that_are_better_and_those_that_are_worse(rows, ranks):
    assert [(row.row, row.rank) for row in made(records(rows))] == list(ranks.items())


def test_a_row_knows_which_rows_are_better_and_which_are_worse_in_any_order_of_records():
    entries = records(NOISY)
    rows = made(entries)
    assert rows == made(entries[::-1])
    assert [(row.better, row.worse) for row in rows] == [((), ("c",)), ((), ()), (("a",), ())]
    assert metric_values(entries[:3], HEADLINE) == NOISY["a"]


def test_with_a_missing_seed_rows_are_ordered_by_what_their_ranks_rest_on():
    """The hard seed 3 lowers the means of all rows but `lucky`, which lacks it and is the worst under all others."""
    rows = made(records({"a": [60, 61, 59, 30.2], "b": [59.2, 60, 57.9, 29], "lucky": [53, 54.1, 52]}))
    assert [row.row for row in rows] == ["a", "b", "lucky"]
    assert rows[2].cells[HEADLINE].mean > rows[0].cells[HEADLINE].mean  # not the order of the plain means
    for order in ([-fitted(rows).effects[row.row] for row in rows], [row.rank for row in rows if row.rank]):
        assert order == sorted(order)
    assert rows[2].better == ("a", "b")  # in order of the board


def test_a_row_called_by_its_method_alone_is_the_row_that_another_board_calls_in_full():
    """`fedx` and `fedx-simclr` are one row, whose ranks are averaged; `fedx-byol` and a second row here are others."""

    def fedx(name, scenario, mean, objective="simclr"):
        return records({name: three(mean)}, scenario=scenario, method="fedx", objective=objective)

    first = [*fedx("fedx-simclr", "one", 50), *fedx("fedx-byol", "one", 40, "byol")]
    second = [*fedx("fedx", "two", 40), *fedx("fedx-byol", "two", 50, "byol")]
    boards = {name: board([*first, *second], name) for name in ("one", "two")}
    assert full_names(boards) == {"two": {"fedx": "fedx-simclr"}}
    assert average(boards).ranks == {
        "fedx-byol": {"one": (2, 2), "two": (1, 1)},
        "fedx-simclr": {"one": (1, 1), "two": (2, 2)},
    }
    boards["two"] = board([*second, *fedx("fedx-simclr", "two", 45)], "two")
    assert full_names(boards) == {}


@pytest.mark.parametrize(
    ("row", "changes", "why"),
    [("idle", IDLE, "control"), ("untrained-vit", {"method": "untrained"}, "control"), ("alone", ALONE, "one client")],
)
def test_a_control_and_a_single_client_among_federations_are_shown_in_their_place_and_not_ranked(row, changes, why):
    floor = record("untrained", 0, 30, method="untrained")
    rows = made([*records(NOISY), *records({row: [49.5] * 3}, **changes), floor])
    assert [(row.row, row.rank, row.unranked) for row in rows] == [
        ("a", (1, 2), ""), (row, None, why), ("b", (1, 3), ""), ("c", (2, 3), ""), ("untrained", None, ""),
    ]  # fmt: skip
    assert not rows[-1].control
    alone = made(records({"a": [49.5] * 3, "b": [49.5] * 3}, **changes))
    assert [row.rank for row in alone] == ([(1, 2)] * 2 if row == "alone" else [None] * 2)


def test_a_row_without_the_headline_says_too_why_it_takes_no_rank():
    unscored = [*records(NOISY, scores={}), record("idle", scores={}, **IDLE)]
    found = {row.row: row.unranked for row in made([*unscored, *records({"alone": [49.5] * 3}, **ALONE)])}
    assert found == {"a": "", "b": "", "c": "", "idle": "control", "alone": "one client"}


def test_accuracies_below_the_untrained_encoder_are_marked():
    floor, low, high = (record(name, 0, x) for name, x in (("untrained", 40.0), ("low", 39.9), ("high", 40.0)))
    for entry, knn in ((floor, 40.0), (low, 40.1), (high, 39.0)):
        entry["scores"]["knn/v1"] = {"accuracy": knn}
    low["scores"]["geometry/v1"]["effective_rank"] = 0.1
    below = {row.row: row.below for row in made([floor, low, high])}
    assert below == {"high": ("knn/v1 accuracy",), "low": ("linear/v1 accuracy",), "untrained": ()}
    assert {row.below for row in made([low, high])} == {()}


def test_a_row_is_set_beside_the_untrained_encoder_of_its_architecture_and_its_own_seeds():
    encoders = {"untrained": "convnet", "untrained-vit": "vit", "convnet": "convnet", "vit": "vit", "resnet": "resnet"}
    rows = [
        record(name, 0, x, method=name.partition("-")[0], settings={**SETTINGS, "encoder.class": encoders[name]})
        for name, x in zip(encoders, (40.0, 30.0, 35.0, 35.0, 35.0), strict=True)
    ]
    rows[3]["settings"] |= {"encoder.adapter.name": "lora", "encoder.freeze": "all"}  # these change what trains alone
    assert {row.row: (row.floor, bool(row.below)) for row in made(rows)} == {
        **{"untrained": ("untrained", False), "untrained-vit": ("untrained-vit", False)},
        **{"convnet": ("untrained", True), "vit": ("untrained-vit", False), "resnet": ("untrained", True)},
    }
    others = [record("above", 2, 31.0), record("below", 0, 49.0), record("elsewhere", 7, 1.0)]
    rows = made([*records({"untrained": [50.0, 40.0, 30.0]}), *others])
    assert [row.row for row in rows if row.below] == ["below"]


def test_a_gain_is_over_shared_seeds_and_names_other_differences():
    base = records({"base": [49.0, 50.0, 54.0]})
    slower = {**SETTINGS, "optimizer.lr": 0.05, "method.mu": 1}
    row = [record("row", seed, linear, settings=slower) for seed, linear in ((1, 51.0), (2, 55.0), (7, 99.0))]
    (difference,) = differences(made([*base, *row]), {"base": ["row"]})
    assert difference.by_seed == {1: 1.0, 2: 1.0}
    assert difference.unlike == ("optimizer.lr 0.05, not 0.1",)
    assert differences(made([*base, row[2]]), {"base": ["row"]}) == []


def test_a_gain_counts_by_the_test_of_all_pairs_that_build_on_one_another():
    rows = made(records({"a": [50, 51, 53], "b": [50.1, 51.2, 53], "c": [46, 47.1, 48.9], "d": [30, 51, 70]}))
    found = {pair.row: pair for pair in differences(rows, {"a": ["b", "c", "d", "never-run"], "missing": ["a"]})}
    assert [*found] == ["b", "d", "c"]  # largest gain first
    assert {row: pair.verdict for row, pair in found.items()} == {"b": NEGLIGIBLY, "c": LESS, "d": UNCLEAR}
    assert found["c"].points == pytest.approx(-4)
    low, high = found["c"].interval
    assert low < -4 < high < 0 < found["c"].p < 0.05
    assert found["b"].within < 0.5 < found["d"].within
    (more,) = differences(rows, {"c": ["a"]})
    assert (more.points, more.verdict) == (pytest.approx(4), MORE)
    (much,) = differences(made(records({"base": [49.0, 50.0, 51.0], "much": [52.0, 53.0]})), {"base": ["much"]})
    assert (much.points, much.interval, much.verdict) == (3.0, None, TOO_FEW)


def test_two_rows_are_compared_seed_by_seed_and_a_control_with_its_row_too():
    """One pair is the paired t-test: differences 1, 2 and 3, a mean of 2, and 4.303 / sqrt(3) beside it."""
    others = {"full": [41.0, 43.0, 45.0], "noise": [10.0, 90.0, 20.0]}
    rows = made([*records({"idle": [40.0, 41.0, 42.0]}, **IDLE), *records(others)])
    (difference,) = differences(rows, {"idle": ["full"]})
    assert (difference.points, difference.verdict) == (pytest.approx(2), UNCLEAR)
    beside = 4.3027 / math.sqrt(3)
    assert difference.interval == (pytest.approx(2 - beside, abs=1e-4), pytest.approx(2 + beside, abs=1e-4))
    ssd, fedavg = made(records({"ssd": [50, 53, 49], "fedavg": [48, 49, 49, 90]}))
    difference = compare(ssd, fedavg, fitted([ssd, fedavg]))
    assert difference.by_seed == {0: 2, 1: 4, 2: 0}  # the fourth seed has no partner
    assert (difference.points, difference.verdict) == (pytest.approx(2), UNCLEAR)


def test_only_finished_runs_of_the_scenario_count_and_seeds_without_a_score_are_no_part_of_its_mean():
    entries = [record(seed=0, linear=50), record(seed=1, linear=10, rounds={"done": 3, "planned": 5})]
    (row,) = made([*entries, record(seed=2, linear=10, scenario="digits"), record(seed=3, linear=None)])
    assert row.cells[HEADLINE] == Cell(50, None, 1)
    assert (row.seeds, row.cells["knn/v1 accuracy"].n) == ((0, 3), 2)
    assert made([]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "fedprox"}, "method is fedavg and fedprox"),
        ({"objective": "simclr"}, "objective is byol and simclr"),
        ({"rounds": {"done": 10, "planned": 10}}, "rounds is 5 and 10"),
        ({"settings": {"optimizer.lr": 0.2, "partition.name": "iid"}}, "optimizer.lr is 0.1 and 0.2"),
        ({"settings": {"partition.name": "iid"}}, "optimizer.lr is 0.1 and None"),
        ({"settings": {**SETTINGS, "method.separation": "hard"}}, "method.separation is soft and hard"),
        ({"provenance": {**record()["provenance"], "dataset": "f" * 64}}, r"dataset is \w{1,12} and f{12}\)"),
        ({"settings": {**SETTINGS, **dict.fromkeys("abcde", 1)}}, r"a is None and 1; b .*; c .*; d is None and 1\)"),
    ],
)
def test_seeds_of_different_settings_are_refused_and_a_missing_one_has_its_default(change, message):
    first = r"micro/fedavg-byol/seed0 and .*/seed1 are not one setting of a row "
    with pytest.raises(RecordError, match=rf"{first}\({message}"):
        made([record(seed=0), {**record(seed=1), **change}])
    assert made([record("ssd", 0), record("ssd", 1, settings={**SETTINGS, "method.separation": "soft"})])


def test_seeds_of_one_order_share_a_row_though_older_records_have_its_hash_alone():
    old, origin = record(seed=0), record()["provenance"]
    new = record(seed=1, provenance={**origin, "dataset": "f" * 64, "in_order": origin["dataset"]})
    moved = record(seed=2, provenance={**new["provenance"], "in_order": "e" * 64})
    for pair in ([old, new], [new, moved]):
        (row,) = made(pair)
        assert row.seeds == tuple(each["seed"] for each in pair)
    with pytest.raises(RecordError, match=r"dataset is \w{1,12} and f{12}\)"):
        made([old, moved])


def test_ranks_are_averaged_over_scenarios_and_count_the_shared_rows_alone():
    first = made(records({**NOISY, "d": [69.7, 69.3, 71]}))  # d is missing below
    assert [(row.row, row.rank) for row in first][:2] == [("d", (1, 1)), ("a", (2, 3))]
    second = made(records({"a": three(40), "b": three(50), "c": three(30)}))
    found = average({"first": first, "second": second, "unranked": made(records({"a": [1.0]}))})
    ranks = {"a": ((1, 2), (2, 2)), "b": ((1, 3), (1, 1)), "c": ((2, 3), (3, 3))}  # a and b are both 1st and 2nd once
    assert [*found.ranks.items()] == [(row, {"first": one, "second": two}) for row, (one, two) in ranks.items()]
    assert found.mean_place == {"a": 1.5, "b": 1.5, "c": 3}
    assert "does not tell the rows apart (p = 0.25" in found.tests
    assert average({}).tests == ""


def test_friedmans_test_is_scipys_and_nemenyis_difference_demsars():
    values = np.random.default_rng(2).random((6, 4))  # boards by rows
    places = scipy.stats.rankdata(-values, axis=1).mean(axis=0)
    chi = scipy.stats.friedmanchisquare(*values.T).statistic
    p, critical = friedman(places.tolist(), 6)
    assert p == pytest.approx(scipy.stats.f.sf(5 * chi / (18 - chi), 3, 15))
    assert critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 6)), rel=1e-3)  # his Table 5
    assert friedman([1.5, 1.5], 9) == friedman([1, 2, 3], 1) == (None, None)
    assert friedman([1, 2, 3], 2)[0] == 0


def test_a_missing_seed_and_a_seed_without_the_headline_are_named():
    others = [record("a", 0), record("a", 4), record("c", 2), record("e", 0), record("e", 10), record("e", 21)]
    lines = ["a has no seed 1, 2, 3", "b, seed 1, has no linear/v1 accuracy", "c has no seed 0, 1"]
    far = f"e has no seed {', '.join(map(str, range(1, 10)))}, 11 to 20"
    assert sorted(gaps(made([*records({"b": [1.0, None, 2.0]}), *others]))) == [*lines, far]
    assert gaps(made([record("d", 17)])) == []  # there is no other row or seed


def test_a_row_has_its_commits_hardware_and_dates():
    origin = record()["provenance"] | {"git": "0123456789"}
    other = {**origin, "git": "f" * 40, "dirty": True, "date": "2026-01-01T00:00:00+00:00", "hardware": "another"}
    (row,) = made([record(seed=seed, provenance=each) for seed, each in enumerate((origin, origin, other))])
    assert row.commits == ("0123456", "fffffff*")
    assert row.hardware == (origin["hardware"], "another")
    assert row.dates == ("2026-01-01T00:00:00+00:00", origin["date"])
