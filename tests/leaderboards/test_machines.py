"""Kinds of machine against lists by hand."""

from dataclasses import replace

import pytest

from leaderboards.machines import COMMITS, by_several_commits, confounded, kinds, rows_by_kind
from leaderboards.rank import Row, board
from tests.leaderboards.test_schema import record

OLD, NEW, OTHER = (
    "AMD EPYC, 1 threads",
    "AMD EPYC, 1 threads; family 25 model 17, AVX512, MKL 2024.2",
    "Intel, 1 threads",
)

NEWER = f"{OLD}; family 26 model 2"


def rows(**hardware: tuple[str, ...]) -> list[Row]:
    (row,) = board([record()], "cifar10-micro")
    return [replace(row, row=name, hardware=texts) for name, texts in hardware.items()]


def test_an_older_text_is_of_the_kind_that_goes_on_from_it():
    assert kinds([OLD, OTHER, NEW]) == [OTHER, NEW]
    assert kinds([OLD, f"{OLD}0"]) == [OLD, f"{OLD}0"]  # of 10 threads


@pytest.mark.parametrize(
    ("hardware", "found", "together"),
    [
        ({"a": (OLD,), "b": (NEW,)}, {}, False),
        ({"a": (OLD,), "b": (OTHER,), "c": (NEW, OTHER)}, {NEW: ["a"], OTHER: ["b"], "": ["c"]}, True),
        ({"a": (OLD, OTHER), "b": (OTHER,)}, {OTHER: ["b"], "": ["a"]}, False),
        ({"a": (NEW, OTHER), "b": (OTHER, OLD)}, {"": ["a", "b"]}, False),
        # two newer kinds that an older text may be of
        ({"a": (OLD,), "b": (NEW,), "c": (NEWER,)}, {NEW: ["b"], NEWER: ["c"], "": ["a"]}, True),
    ],
)  # fmt: skip
def test_rows_of_one_kind_alone_and_of_several(hardware, found, together):
    by_kind = rows_by_kind(rows(**hardware))
    assert by_kind == found
    assert confounded(by_kind) == together


def test_runs_of_several_commits_are_named_and_a_line_without_commits_is_no_error():
    lines = [f"{COMMITS}: {'a' * 40}+, {'b' * 40}", "rounds were played by several numbers of ranks: 1, 2"]
    runs = [record(seed=3, deviations=lines), record(), record(seed=4, deviations=[COMMITS])]
    assert by_several_commits(runs) == ["fedavg-byol, seed 3 (aaaaaaa+, bbbbbbb)", "fedavg-byol, seed 4 ()"]
