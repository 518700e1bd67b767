"""Choices of settings without a label: their regret by labels, the agreement of both criteria, and the page of them."""

import json
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from leaderboards.choices import Choice, Trial, agreement, collect
from leaderboards.pages.fairness import filled
from leaderboards.schema import RecordError
from leaderboards.store import read_table
from tests.leaderboards.test_schema import marks

LEADERBOARDS = Path(__file__).parents[2] / "leaderboards"


def searched(row, *trials, best=0, seeds=(100,), scenario="digits"):
    made = [Trial((f"optimizer.lr={rate}",), score, accuracy) for rate, score, accuracy in trials]
    return Choice(scenario, row, made[best].point, tuple(made), seeds=seeds)


FEDX = searched("fedx", (0.1, 0.9, 60.0), (0.3, 0.8, 70.0), (0.01, 0.2, 10.0), (1, None, None))
SSD = searched("ssd", (0.03, 0.5, 75.0), (0.1, 0.4, 74.0), (0.01, 0.3, 71.0))


def test_the_regret_is_what_the_best_trial_is_ahead_of_the_chosen_one():
    assert (FEDX.regret, SSD.regret) == (10.0, 0.0)
    assert searched("old", (0.1, 0.9, None), (0.3, 0.8, None), seeds=()).regret is None


def test_a_value_at_the_edge_of_what_was_tried():
    assert [FEDX.at_the_edge, SSD.at_the_edge] == [False, False]
    assert searched("x", (0.1, 0.9, 1.0), (0.3, 0.8, 1.0)).at_the_edge
    assert not searched("x", (0.3, 0.8, 1.0)).at_the_edge  # nothing was compared
    values = (Trial(("optimizer.lr=0.1",), 0.1), Trial(("optimizer.lr=1",), 0.1), Trial(("optimizer.lr=0.01",), 0.1))
    mu = [Trial(("optimizer.lr=0.1", f"method.mu={mu}"), 0.5) for mu in (1, 2, 3)]
    assert [Choice("s", "r", each.point, (*values, *mu)).at_the_edge for each in mu] == [True, False, True]
    for default, edges in {"0.5": [False, False, True], "2.5": [True, False, True], "4": [True, False, False]}.items():
        found = [Choice("s", "r", each.point, (*values, *mu), constant=f"method.mu={default}") for each in mu]
        assert [each.at_the_edge for each in found] == edges
    kept = Choice("s", "r", values[0].point, (*values, *mu), constant="method.mu=0.5")  # the default was the best
    assert kept.at_the_edge


def test_the_agreement_is_spearmans_over_the_trials_that_both_have_measured():
    both = [*FEDX.tried, *SSD.tried]
    scores, accuracies = [0.9, 0.8, 0.2, 0.5, 0.4, 0.3], [60, 70, 10, 75, 74, 71]
    assert agreement(both) == pytest.approx(spearmanr(scores, accuracies).statistic)
    assert agreement(both[:2]) is None
    assert agreement([Trial((), 0.5, accuracy) for accuracy in (1, 2, 3)]) is None


def test_the_page_has_a_line_a_row_and_the_agreement_over_all_rows():
    page = filled(marks("tuned"), [FEDX, SSD])
    assert "| digits | fedx | lr=0.1 | 4 trials, 1 diverged | seed 100 | 10.0 | 0.50 |" in page
    assert "| digits | ssd | lr=0.03 | 3 trials | seed 100 | 0.0 | 1.00 |" in page
    found = f"{agreement([*FEDX.tried, *SSD.tried]):.2f}"
    assert f"is {found} over the 6 trials of all 2 rows, and – over the label-free choices" in page
    assert "their regret is 5.0 points in the mean and 10.0 at most (`fedx`)" in page


def test_files_of_before_the_rule_are_shown_with_their_seed_and_grid():
    older = collect(LEADERBOARDS / "tuned")
    assert len(older) == len([*LEADERBOARDS.glob("tuned/*/*.json")])
    page = filled(marks("tuned"), [choice for choice in older if not choice.seeds])
    line = "| cifar10-micro | fedavg-vicreg | lr=0.03 | 0.003, 0.01, 0.03; diverged: 0.1, 0.3 | seed 0 | – | – |"
    assert line in page
    assert "rank correlation of" not in page


def test_the_score_without_labels_chose_higher_temperatures_than_the_probe():
    found = read_table(LEADERBOARDS / "searched" / "temperature.json", list[Choice], "choices", "tune")
    page = " ".join((LEADERBOARDS.parent / "docs/explanation/fairness.md").read_text().split())
    assert "In each of the five rows whose constant it was, the label-free score chose a temperature above" in page
    assert len({each.row for each in found}) == len(found) == 5
    for each in found:
        assert each.constant == "objective.temperature=0.2"
        best = max(each.scored, key=lambda trial: trial.accuracy)
        assert float(each.best[1].removeprefix("objective.temperature=")) > 0.2
        assert not any("temperature" in word for word in best.point)


def test_no_row_has_the_choices_of_a_search_that_was_not_run_again():
    unused = collect(LEADERBOARDS / "searched")
    assert {each.scenario for each in unused} == {"digits"}
    assert all(each.seeds == (100,) for each in unused)
    had = [each for each in collect(LEADERBOARDS / "tuned") if each.scenario == "digits"]
    assert not any(each.seeds for each in had)
    assert not {(each.row, each.best) for each in had} & {(each.row, each.best) for each in unused}


def test_a_file_that_holds_no_choice_is_refused(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "ssd.json").write_text(json.dumps({"scenario": "digits"}))
    with pytest.raises(RecordError, match=r"ssd\.json: no choice of a row's settings .*tune suite=NAME"):
        collect(tmp_path)
