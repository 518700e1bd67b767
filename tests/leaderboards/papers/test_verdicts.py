"""Verdicts on hand-made cells and records: every number here was worked out on paper."""

from collections import Counter
from dataclasses import replace

import pytest

from leaderboards.pages.parity import Parity
from leaderboards.pages.reproduction import filled
from leaderboards.papers.tables import FITTING, SETTINGS, Ours, Published, collect
from leaderboards.papers.verdicts import OFF, OPEN, REPRODUCED, differences, judged, read, worse, write
from tests.leaderboards.pages.test_sections import SSD
from tests.leaderboards.test_schema import marks, record

SETTING = {"clients": 10, "alpha": 0.1, "rounds": 20, "data": "CIFAR-10", "encoder": "ConvNet"}
RECORDED = {
    **{"partition.clients": 10, "partition.alpha": 0.1, "federation.rounds": 20, "data.name": "cifar10"},
    "encoder.class": "methods.networks.convnet",
}
OURS = Ours("s", "ssd", "linear/v1 accuracy")


def published(value, spread=None, unit="%", ours=OURS, training=None, **setting):
    place = ("p", "P", "c", "1", "t", "r", "c")
    return Published(*place, value, spread, unit, {**SETTING, **setting}, (), ours, 0, training=training or {})


def runs(*scores, row="ssd", done=20, **settings):
    fields = {"scenario": "s", "settings": {**RECORDED, **settings}, "rounds": {"done": done, "planned": 20}}
    return [record(row, seed, score, **fields) for seed, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("value", "spread", "scores", "kind", "delta"),
    [
        (50.0, None, [51.0], REPRODUCED, 1.0),  # a point is always allowed
        (50.0, None, [51.1], OFF, 1.1),
        (50.0, None, [49.0, 51.0, 53.0], REPRODUCED, 1.0),
        (50.0, None, [51.0, 53.0, 55.0], REPRODUCED, 3.0),  # our spread is 2: 4 points are allowed
        (50.0, None, [52.9, 53.0, 53.1], OFF, 3.0),  # 0.1: one point
        (50.0, 2.0, [53.0], REPRODUCED, 3.0),  # the paper's own spread counts too
        (50.0, 2.0, [53.0, 55.0, 57.0], OFF, 5.0),  # but the two do not add up
        (50.0, None, [20.0, 60.0], OFF, -10.0),  # the spread of two seeds does not count
    ],
)
def test_a_cell_is_reproduced_within_a_point_or_two_standard_deviations(value, spread, scores, kind, delta):
    (verdict,) = judged([published(value, spread)], runs(*scores))
    assert verdict.kind == kind
    assert verdict.delta == pytest.approx(delta)
    assert verdict.ours.n == len(scores)


def page(cells, records, finished, parity=None):
    return filled(marks("published"), judged(cells, finished), records, parity)


def test_the_page_lists_our_runs_below_a_table_also_unfinished_ones_with_the_files_they_were_compared_by():
    complete = [*runs(51.0), *runs(40.0, row="apart")]
    early = {**runs(51.0, 52.0, done=7)[1], "scores": {}}
    text = page([published(50.0)], [*complete, early], complete)
    assert "| s ssd | 0 | 20 of 20 | 0.03 | 2 CPU cores | batch size 64 instead of 128 | none |" in text
    assert "| s ssd | 1 | 7 of 20 | 0.03 |" in text
    assert "apart" not in text
    files = [("a", "ssd", "simclr", True), ("b", "ssd", "simclr", False), ("c", "fedx", "simclr", True)]
    results = [
        replace(SSD, scenario="s/k10", file=file, method=method, objective=objective, met=met)
        for file, method, objective, met in [*files, ("d", "ssd", "byol", True)]
    ]
    run = runs(51.0)[0] | {"method": "ssd", "objective": "simclr"}
    text = page([published(50.0)], [run], [run], Parity(tuple(results)))
    assert f"{'; '.join(run['deviations'])} | a, b (not met) |" in text


@pytest.mark.parametrize(
    ("cell", "records", "why"),
    [
        (published(50.0, ours=None), runs(50.0), "no run of ours"),
        (published(3.8, unit="nats"), runs(50.0), "no rule for nats"),
        (published("yes", unit="words"), runs(50.0), "no rule for words"),
        (published(50.0), runs(50.0, row="fedavg"), "not run"),
        (published(50.0), runs(50.0, done=7), "not run to its end: 7 rounds"),
        (published(50.0, rounds=100), runs(50.0), "another setting: rounds 20, not 100"),
        (published(50.0, encoder="ResNet-18"), runs(50.0), "encoder methods.networks.convnet, not ResNet-18"),
        (published(50.0, ours=OURS._replace(score="semi/v1 accuracy_1pct")), runs(50.0), "not measured by semi"),
        (published(50.0), runs(50.0, **{"training.steps": 1}), "run at another setting: training.steps 1"),
    ],
)
def test_a_cell_that_cannot_be_compared_stays_open(cell, records, why):
    (verdict,) = judged([cell], records)
    assert (verdict.kind, verdict.delta) == (OPEN, None)
    assert why in verdict.why


@pytest.mark.parametrize(
    ("key", "published_value", "field", "same", "other"),
    [
        ("partition", "dirichlet", "partition.name", "dirichlet", "iid"),
        ("clients", 10, "partition.clients", 10, 20),
        ("alpha", 0.1, "partition.alpha", 0.1, 1.0),
        ("participation", 0.5, "federation.participation", 0.5, 1.0),
        ("rounds", 20, "federation.rounds", 20, 5),
        ("epochs", 5, "training.epochs", 5, 1),
        ("batch_size", 128, "training.batch_size", 128, 64),
        ("data_share", 10, "partition.share", 0.1, None),
        ("public_share", 5, "public.share", 0.05, 0.5),
        ("kept", 1, "method.kept", 0.01, 1.0),
        ("global_clusters", 8, "objective.clusters", 8, 64),
        ("local_clusters", "all", "method.local_clusters", None, 8),
        ("epsilon", 0.8, "method.epsilon", 0.8, 1000),
        ("data", "CIFAR-10", "data.name", "cifar10", "cifar100"),
        ("public", "Tiny-ImageNet", "public.name", "tiny_imagenet", "cifar10"),
        ("encoder", "ResNet-18", "encoder.class", "methods.networks.resnet18", "methods.networks.resnet50"),
    ],
)
def test_every_setting_has_to_be_that_of_the_paper(key, published_value, field, same, other):
    cell = published(50.0, **{key: published_value})
    assert differences(cell, runs(50.0, **{field: same})[0]) == []
    (line,) = differences(cell, runs(50.0, **{field: other})[0])
    assert line == f"{key} {other}, not {published_value}"


def test_every_setting_is_compared_with_the_record_or_the_score():
    described = {"method"}  # only of cells that are not compared
    assert {key for key, setting in SETTINGS.items() if not setting.field} == {*FITTING, *described}
    assert all(not described & set(cell.setting) for cell in collect() if cell.ours)


def test_of_clients_with_encoders_of_their_own_the_worst_and_the_mean_are_compared():
    cells = [cell for cell in collect() if cell.paper == "flesd" and cell.table == "3" and cell.ours]
    scores = dict.fromkeys(("mean", *range(6)), "linear-flesd/v1 accuracy")
    scores["min"] = "linear-flesd/v1 accuracy_worst"
    assert {(cell.setting["client"], cell.ours.score) for cell in cells} == {*scores.items()}
    # SimCLR on two data sets at five alphas and on one at three, with labels on the two
    assert Counter(cell.ours.row for cell in cells) == {"local": 8 * (2 * 5 + 3), "local-supervised": 8 * 2 * 5}


def test_a_client_by_its_number_is_compared_with_its_own_encoder():
    encoders = {f"client{k}": {"linear/v1": {"accuracy": 40.0 + 10 * k}} for k in range(3)}
    (record,) = runs(40.0)
    cells = [published(value, client=client) for value, client in ((60.0, 2), (40.0, 2), (60.0, 3))]
    verdicts = judged(cells, [{**record, "encoders": encoders}])
    assert [(verdict.kind, verdict.delta) for verdict in verdicts] == [(REPRODUCED, 0.0), (OFF, 20.0), (OPEN, None)]


@pytest.mark.parametrize(
    ("agrees", "ours", "kind"),
    [
        ("equal", 10.2, REPRODUCED),
        ("equal", 10.3, OFF),
        ("equal", 9.7, OFF),
        ("at most", 3.0, REPRODUCED),
        ("at most", 10.3, OFF),
        ("at least", 30.0, REPRODUCED),
        ("at least", 9.7, OFF),
    ],
)
def test_a_cell_may_ask_for_a_number_within_its_own_difference_on_one_side(agrees, ours, kind):
    cell = replace(published(10.0, unit="x", ours=None), within=0.2, agrees=agrees)
    (verdict,) = judged([cell], [], {cell.place: [ours]})
    assert (verdict.kind, verdict.within) == (kind, 0.2)
    (verdict,) = judged([replace(cell, within=None)], [], {cell.place: [ours]})
    assert (verdict.kind, verdict.why) == (OPEN, "no rule for x")


def test_a_claim_is_off_where_one_comparison_contradicts_it_and_the_page_counts_them():
    cell = published("always above", unit="claim", ours=None)
    for against, kind in (([0.0, 0.0, 0.0], REPRODUCED), ([0.0, 1.0, 1.0], OFF)):
        (verdict,) = judged([cell], [], {cell.place: against})
        assert (verdict.kind, verdict.delta) == (kind, sum(against))
        text = filled(marks("published"), [verdict])
        assert f"always above; ours {sum(against):.0f} of 3 against it ({kind}) |" in text


def test_the_page_counts_verdicts_by_what_they_are_from_and_shows_small_numbers_whole():
    small = replace(
        published(0.009, unit="%", ours=None), row="small", computed="simulated/x", within=0.0, agrees="at most"
    )
    text = filled(marks("published"), judged([small, published(50.0)], runs(51.0), {small.place: [0.0123]}))
    assert "Of 2 numbers 2 have a verdict: 1 reproduced, 1 off.\n" in text
    assert "| simulations of minutes, not of the paper's data | 0 | 1 |" in text
    assert "| runs of the paper's setting | 1 | 0 |" in text
    assert "0.009; ours 0.0123 (+0.0033, off)" in text


def test_verdicts_are_written_and_worse_ones_named(tmp_path):
    cell = published(50.0)
    write(tmp_path, judged([cell], runs(50.0)))
    assert read(tmp_path) == {cell.place: REPRODUCED}
    assert worse(read(tmp_path), judged([cell], runs(50.0))) == []
    assert worse(read(tmp_path), judged([cell], runs(90.0))) == [(cell.place, REPRODUCED, OFF)]
    assert worse({cell.place: OFF, "gone": OFF}, judged([cell], [])) == [("gone", OFF, OPEN), (cell.place, OFF, OPEN)]
    assert worse({}, judged([cell], runs(50.0))) == []


def test_a_cell_that_needs_no_run_is_judged_by_the_measured_values_and_every_cell_has_its_verdict_in_order():
    cell = published(4.69, unit="classes", ours=None)
    for sample, kind in (([4.6, 4.7, 4.8], REPRODUCED), ([4.69, 4.69, 4.69], REPRODUCED), ([4.7, 4.7, 4.7], OFF)):
        (verdict,) = judged([cell], [], {cell.place: sample})
        assert (verdict.kind, verdict.ours.n) == (kind, 3)
    cells = [published(50.0), published(90.0), published(50.0, ours=None)]
    assert [verdict.kind for verdict in judged(cells, runs(50.0))] == [REPRODUCED, OFF, OPEN]
