"""What the committed rows cost: the file has them all, and some of them are as they are counted now."""

import math
from pathlib import Path

import pytest
from rich.console import Console

from benchmark.audit import row_costs
from benchmark.tracking.progress import Display
from leaderboards import rank
from leaderboards import row_costs as table
from tests.committed import records
from tests.leaderboards.test_schema import COUNTED, record

COMMITTED = table.read(table.FILE)
QUICK = ("cifar10-drift/fedavg-simclr", "cifar10-micro/fedca", "digits/ssd")  # one has public images


@pytest.fixture(scope="module")
def rows():
    return row_costs.rows(records())


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted(COMMITTED.keys() - {*QUICK}))]
)
def test_the_committed_costs_are_those_of_the_rows_configs(name, rows):
    assert row_costs.counted(rows[name]) == COMMITTED[name], "make pages, or all anew: make costs"


def test_images_that_are_not_read_have_the_size_of_those_of_the_records():
    few, all_of_them = COMMITTED["cifar10-drift/fedavg-simclr"], COMMITTED["cifar10-drift/centralized"]
    assert math.isclose(all_of_them.flops / few.flops, 620 / 62)  # ten times the steps of 64 images
    assert all_of_them.memory == few.memory


def test_what_is_missing_or_of_another_config_is_counted_and_no_more(tmp_path, monkeypatch, rows):
    monkeypatch.chdir(tmp_path)
    Path("leaderboards").mkdir()
    names = ["cifar10-drift/fedavg-simclr", "cifar10-drift/fedprox", "cifar10-drift/ssd"]
    few = [rows[name] for name in names]
    known = {name: COMMITTED[name] for name in names}
    table.write(
        row_costs.FILE,
        {names[0]: known[names[0]], names[1]: table.RowCost("another", 1.0, 1), "x/gone": known[names[0]]},
    )
    assert row_costs.missing(few) == names[1:]
    monkeypatch.setattr(row_costs, "counted", lambda of: known[table.key(of)])
    assert row_costs.update(few, Display(Console(quiet=True))) == 3
    assert table.read(row_costs.FILE) == known
    assert row_costs.missing(few) == []


def test_rows_of_others_and_rows_without_work_or_of_another_board_are_left_out():
    own = record(scenario="cifar10-drift")
    others = [{"scenario": "mine"}, {"submission": {}}, {"costs": COUNTED}, {"bytes": {"visits": 0}}]
    assert row_costs.rows([own]) == {"cifar10-drift/fedavg-byol": own}
    assert row_costs.rows([{**own, **each} for each in others]) == {}


def test_a_row_has_its_own_costs_or_those_of_the_committed_row_of_its_config(monkeypatch):
    known = {"cifar10-micro/fedavg-byol": table.RowCost("c0ffee", 7.0, 3)}
    monkeypatch.setattr(table, "_committed", lambda: known)
    other = record(provenance=record()["provenance"] | {"config": "0ther"})
    for given, wanted in [
        (record(), (7.0, 3.0)),
        (record(costs=COUNTED), (2e9, 10.0)),
        (record(row="ssd"), (None, None)),
        (other, (None, None)),
    ]:
        (row,) = rank.board([given], "cifar10-micro")
        assert (row.flops, row.memory) == wanted
