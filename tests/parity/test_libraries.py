"""Comparisons with libraries: the registry, its planted faults, the page, and the command, without the libraries.

Those of the libraries that the suite itself uses are run; the others by `make parity-libraries`.
"""

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmark import environment
from benchmark.audit.dependencies import pinned
from benchmark.parity.libraries import __main__ as command
from benchmark.parity.libraries import results
from benchmark.parity.libraries.measure import distribution, measure, table_of
from benchmark.parity.libraries.registry import Case, cases, planted, relative
from leaderboards.schema import RecordError
from methods.maths import nt_xent

ROOT = Path(__file__).parents[2]
CASES = {case.title: case for case in cases()}
OURS = {"dp_accounting", "ot", "sklearn", "torch", "torchmetrics"}
"""Packages that the suite's own environment has."""
PARTS = ("co_code", "co_consts", "co_names")
EQUAL = torch.ones(3, 2)


def halved(x):
    return x / 2


def toy(compute=lambda: (halved(4.0), 2.0), old="/ 2", new="/ 3", theirs="torch.divide"):
    return Case("half", "halved", theirs, (halved, old, new), compute, 1e-6, "", relative)


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.package in OURS], ids=lambda case: case.title)
def test_the_suite_agrees_with_what_it_depends_on_and_the_fault_is_seen(case):
    result = measure(case)
    assert result.met, results.line(result)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fault_is_planted_and_taken_out_again(case):
    inner = case.fault[0]
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    before = inner.__code__
    with planted(*case.fault):
        assert [getattr(inner.__code__, part) != getattr(before, part) for part in PARTS].count(True)
    assert inner.__code__ is before


def test_there_are_enough_comparisons_and_no_two_of_one_title():
    assert len(cases()) == len(CASES) >= 25
    assert {case.package for case in CASES.values()} - OURS == {
        *("flwr", "flwr_datasets", "lightly", "opacus", "pfl", "stable_pretraining")
    }


def test_a_fault_reaches_all_who_call_the_function_and_names_a_text_that_stands_there_once():
    default = float(nt_xent(EQUAL, EQUAL))
    with planted(nt_xent, 'float("-inf")', "0.0"):
        assert float(importlib.import_module("methods.maths.losses").nt_xent(EQUAL, EQUAL)) != default
    assert float(nt_xent(EQUAL, EQUAL)) == default
    for text, found in (("upcast", 3), ("no such text", 0)):
        with pytest.raises(ValueError, match=f"stands {found} times in nt_xent"), planted(nt_xent, text, ""):
            pass


@pytest.mark.parametrize(
    ("ours", "theirs", "size"),
    [
        (1.0, 1.0, 0.0),
        ([torch.tensor([1.0, 2.0]), 3.0], [torch.tensor([1.0, 4.0]), 3.0], 0.5),
        (torch.zeros(2), torch.zeros(3), float("inf")),
        (float("nan"), 1.0, float("inf")),
    ],
)
def test_a_difference_is_relative_to_the_largest_value(ours, theirs, size):
    assert relative(ours, theirs) == size


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (toy(), "met half (torch.divide): 0.0e+00, allowed 1.0e-06, with the fault 3.3e-01"),
        (
            toy(lambda: (halved(4.0), 2.1)),
            "NOT MET half (torch.divide): 4.8e-02, allowed 1.0e-06, with the fault 3.7e-01",
        ),
        (toy(new="/ 2.0"), "NOT MET half (torch.divide): 0.0e+00, allowed 1.0e-06, with the fault 0.0e+00"),
        (
            toy(lambda: importlib.import_module("no_such")),
            "NOT RUN half (torch.divide): ModuleNotFoundError: No module",
        ),
        (toy(old="/ 7"), "NOT RUN half (torch.divide): ValueError: '/ 7' stands 0 times in halved"),
    ],
)
def test_only_what_agrees_and_sees_its_fault_is_met(case, line):
    result = measure(case)
    assert results.line(result).startswith(line)
    assert result.met == line.startswith("met")


class TestPage:
    def test_it_and_its_data_hold_every_comparison_and_all_are_met(self):
        table, page = results.read(ROOT / results.FILE), (ROOT / results.PAGE).read_text()
        assert [(r.title, r.ours, r.theirs, r.note) for r in table.results] == [
            (case.title, case.ours, case.theirs, case.note) for case in CASES.values()
        ]
        assert all(result.met for result in table.results)
        assert results.filled(page, table) == page, "write it again: make parity-libraries"

    def test_its_versions_are_those_that_are_installed(self):
        pins = {**pinned(ROOT / "constraints.txt"), **pinned(command.REQUIREMENTS)}
        for name, version in results.read(ROOT / results.FILE).versions.items():
            assert pins[re.sub("_", "-", name.lower())].partition("+")[0] == version.partition("+")[0]

    def test_one_that_is_missing_names_the_command(self, tmp_path):
        with pytest.raises(RecordError, match="parity-libraries"):
            results.read(tmp_path / "libraries.json")


def test_drift_is_other_versions_and_what_is_not_met():
    before = table_of([measure(toy())])
    now = replace(before, versions={**before.versions, "new": "1.0"}, results=(measure(toy(new="/ 2.0")),))
    assert list(results.drift(before, before)) == ["1 of 1 comparisons are met"]
    version, counted, unmet = results.drift(before, now)
    assert (version, counted) == ("- new none -> 1.0", "0 of 1 comparisons are met")
    assert unmet.startswith("- NOT MET half")


class TestCommand:
    """The command, with an environment and a measuring process that are not made."""

    @pytest.fixture
    def run(self, tmp_path, monkeypatch):
        page = tmp_path / results.PAGE
        page.parent.mkdir(parents=True)
        page.write_text((ROOT / results.PAGE).read_text())
        self.upgraded, self.result = [], measure(toy())

        def measured(words, **kwargs):
            results.save(table_of([self.result]), Path(words[-1]))
            return type("Done", (), {"returncode": 0})

        monkeypatch.setattr(command, "ROOT", tmp_path)
        monkeypatch.setattr(command.environment, "install", lambda name, *_: Path(name))
        monkeypatch.setattr(environment, "check_call", lambda *words, **_: self.upgraded.append(words))
        monkeypatch.setattr(command.subprocess, "run", measured)
        return lambda *words: command.main(list(words), Console(highlight=False, markup=False, soft_wrap=True))

    def test_it_writes_page_and_data_and_fails_where_a_comparison_is_not_met(self, run, tmp_path):
        assert run() == 0
        assert "1 comparisons, with torch" in (tmp_path / results.PAGE).read_text()
        self.result = measure(toy(new="/ 2.0"))
        assert run() == 1
        assert not results.read(tmp_path / results.FILE).results[0].met

    def test_newest_upgrades_all_but_torch_tells_and_writes_nothing(self, run, tmp_path, capsys):
        run()
        before, self.result = (tmp_path / results.FILE).read_text(), measure(toy(lambda: (halved(4.0), 2.1)))
        assert run("newest=true") == 1
        assert (tmp_path / results.FILE).read_text() == before
        assert "0 of 1 comparisons are met\n- NOT MET half" in capsys.readouterr().out
        names = set(self.upgraded[0][self.upgraded[0].index("--no-deps") + 1 :])
        assert {"scikit-learn", "lightly", "flwr"} <= names
        assert "torch" not in names

    def test_another_word_is_refused(self, run, capsys):
        assert run("newest=yes") == 2
        assert capsys.readouterr().out == "error: unknown 'newest=yes': give newest=true or nothing\n"


def test_a_package_has_the_name_of_its_distribution():
    assert [distribution(name) for name in ("sklearn", "ot", "no_such")] == ["scikit-learn", "POT", "no_such"]
