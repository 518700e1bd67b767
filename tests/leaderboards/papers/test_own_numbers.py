"""Sums and claims of papers: each is counted in the papers' tables, and a digit changed there is found.

Of a claim the expected number is that of the comparisons against it, before and after a number was changed.
"""

from dataclasses import replace

import pytest

from leaderboards.papers import computed, own_numbers
from leaderboards.papers.tables import collect
from leaderboards.schema import RecordError

CASES = {  # computation: row, column, what it finds; place, row, column, another number, what it finds then
    "fedx-gain": ("SVHN", "", 5.518, "fedx, table 1", "FedU + FedX", "SVHN best", 73.39, 6.518),
    "fedx-best": ("", "", 0, "fedx, table 1", "FedProtoCL", "F-MNIST best", 83.0, 1),
    "fedx-last": ("", "", 0, "fedx, table 1", "FedU", "SVHN last", 68.13, 1),
    "fedx-global": ("", "", 2, "fedx, table 2", "L_local-KD + FedProx", "SVHN best", 77.0, 1),
    "fedx-every-setting": ("", "", 0, "fedx, table 3b", "20", "Baseline best", 60.0, 1),
    "fedx-data": ("", "", 0, "fedx, table 3a", "25%", "Baseline last", 46.0, 1),
    "fedx-clients": ("", "", 3, "fedx, table 3b", "15", "Baseline last", 51.0, 2),
    "fedx-labels": ("", "", 0, "fedx, table 4", "10%", "FedU FedX", 34.0, 1),
    "fedx-more-labels": ("", "", 0, "fedx, table 4", "1%", "FedU FedX", 36.0, 1),
    "flesd-clients": ("CIFAR-100 SimCLR, probe, alpha 0.1", "Min", 24.8, "flesd, table 3", "", "C1", 41.0, 40.4),
    "flesd-min-local": (
        "",
        "CIFAR-10 alpha 1",
        66.5,
        "flesd, table 3",
        "CIFAR-10 SimCLR, probe, alpha 1",
        "C2",
        90.0,
        70.3,
    ),
    "flesd-text": ("CIFAR-10 supervised, accuracy", "drop", 56.3, "flesd, table 3", ", alpha 0.01", "Mean", 18.5, 56.6),
    "flesd-gap": ("ImageNet-100", "", 8.5, "flesd, table 1", "FedAvg", "ImageNet-100 alpha 1", 60.0, 9.5),
    "flesd-above-local": ("FLESD", "", 1, "flesd, table 1", "FLESD", "ImageNet-100 alpha 0.01", 59.1, 0),
    "flesd-peak": ("FLESD", "alpha 100", 4, "flesd, table 4", ", alpha 100", "T=2", 40.0, 2),
    "flesd-longer": ("", "", 3, "flesd, table 6", "FLESD, alpha 1", "E=800", 47.6, 2),
    "flesd-fedavg-longer": ("", "", 1, "flesd, table 6", "FedAvg, alpha 1", "E=200", 36.0, 0),
    "flesd-kept": ("", "", 0, "flesd, table 7", "alpha 1", "1%", 43.8, 1),
    "flesd-more-anchors": ("", "", 1, "flesd, table 9", "alpha 100", "512", 41.3, 0),
    "flesd-most-anchors": ("", "", 0, "flesd, table 9", "alpha 1", "1024", 45.2, 1),
    "flesd-momentum": ("", "", 1, "flesd, table 10", "alpha 0.01", "0.9999", 41.6, 0),
    "flesd-batch": ("", "", 0, "flesd, table 11", "alpha 1", "512", 45.7, 1),
    "orchestra-silo": ("", "", 1, "orchestra, table 1", "f-SpecLoss", "CIFAR-100 silo linear", 55.0, 0),
    "orchestra-device-linear": ("", "", 0, "orchestra, table 1", "f-BYOL", "CIFAR-10 device linear", 72.0, 1),
    "orchestra-private": ("", "", 0, "orchestra, table 7", "Orchestra", "epsilon 0.8", 66.5, 1),
    "ssd-transfer": ("", "", 0, "ssd, transfer", "FedX", "Tiny-ImageNet ERank", 98.45, 1),
    "ssd-both": ("", "", 0, "ssd, ablation", "+ PD", "-L_uniform", 3.9, 1),
    "ssd-no-projector": ("", "", 0.05, "ssd, projector", "none", "-L_uniform", 3.7, 0.07),
    "ssd-projector": ("", "", 0, "ssd, projector", "none + DSR", "LP", 81.0, 1),
    "ssd-hard": ("", "", 0, "ssd, separation", "SSD", "-L_align", -0.5, 1),
}


def found(values):
    """The number that a computation finds: its only value, or the comparisons against the claim."""
    return sum(values)


@pytest.fixture(scope="module")
def cells():
    return collect()


def test_every_computation_has_a_case_and_a_cell(cells):
    names = {f"own/{name}" for name in CASES}
    assert names == {name for name in computed.COMPUTATIONS if name.startswith("own/")}
    assert names <= {cell.computed for cell in cells}
    assert own_numbers.CLIENTS == ("C0", "C1", "C2", "C3", "C4", "C5")


@pytest.mark.parametrize("name", CASES)
def test_a_computation_finds_what_stands_in_the_tables_and_one_changed_number(cells, name):
    row, column, before, place, changed, heading, value, after = CASES[name]
    changed = changed if changed and not changed.startswith(",") else row + changed
    cell = replace(next(each for each in cells if each.computed == f"own/{name}"), row=row, column=column)
    numbers, compute = computed.printed(cells), computed.of(cell).compute
    assert found(compute(cell, numbers)) == pytest.approx(before)
    assert numbers[place][changed][heading] != value
    table = {**numbers[place], changed: {**numbers[place][changed], heading: value}}
    assert found(compute(cell, {**numbers, place: table})) == pytest.approx(after)


def test_values_are_written_a_cell_a_line_and_a_misspelt_computation_is_named(cells, tmp_path):
    values = {"p, table 1, r, c": [0.1, 1.0], "q": [2.0]}
    computed.write(tmp_path / "m.json", values)
    assert computed.read(tmp_path / "m.json") == values
    assert computed.read(tmp_path / "none.json") == {}
    assert len((tmp_path / "m.json").read_text().splitlines()) == 4
    cell = replace(next(each for each in cells if each.computed == "own/ssd-both"), computed="own/ssd-bot")
    with pytest.raises(
        RecordError, match=r"ssd, claims, ablation, claim: there is no .* \(did you mean 'own/ssd-both'"
    ):
        computed.of(cell)
    of_ssd = [each for each in cells if each.paper == "ssd" and not each.computed.startswith("bytes/")]
    assert computed.measure(of_ssd).keys() == {each.place for each in of_ssd if each.computed}
    assert computed.measure(of_ssd, stored=True) == {}
