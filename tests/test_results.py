"""Committed results agree with the code: pages with records, records with configs, tuned values with scores."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmark.configuration.compose import compose, merge
from benchmark.configuration.files import available, read
from benchmark.configuration.identity import identity
from benchmark.configuration.suites import config_of
from benchmark.configuration.tuned import rule
from leaderboards import generate, store
from leaderboards.pages import plots, studies
from tests.committed import RESULTS

LEADERBOARDS = Path(__file__).parent.parent / "leaderboards"
ROWS = sorted({file.parent for file in RESULTS.rglob("seed*.json")})
"""The folders of the records of a row."""
TUNED = sorted(LEADERBOARDS.glob("tuned/*/*.json"))


def test_the_generated_files_are_made_from_the_committed_records(monkeypatch):
    """But for the figures, whose letters another version of matplotlib draws differently."""
    for pages in (plots, studies):
        monkeypatch.setattr(pages, "save", lambda *_: None)
    moved = [each for each in generate.stale(LEADERBOARDS.parent) if not each.what.endswith(".svg")]
    assert moved == [], "write them again: python -m benchmark board"


CARRIED = [("fedavg", "flesd/cifar10-a0.01")]
"""Run on the files of 1f874a57, carried beside the history of 126dc00 and so marked as changed."""


@pytest.mark.parametrize("folder", ROWS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_the_records_of_a_row_are_of_the_shipped_config(folder):
    records = [store.read(file) for file in folder.iterdir()]
    config = config_of(records[0])
    for record in records:
        config.seed = record["seed"]
        assert (config.scenario, config.row) == (record["scenario"], record["row"])
        assert identity(config) == record["provenance"]["config"], "run it again, or give the changed config a name"
        assert record["provenance"]["dirty"] == ((record["row"], record["scenario"]) in CARRIED)
        assert record["rounds"]["done"] == record["rounds"]["planned"] == config.federation.rounds


@pytest.mark.parametrize("line", read("suite", "study-settings")["methods"])
def test_a_row_with_a_setting_of_the_authors_is_named_by_it_and_differs_in_nothing_else(line):
    method, *overrides, setting, name = line.split()
    base = compose("cifar10-micro", method, overrides)
    assert name == f"row={base.row}+{setting}"
    known = {"scenario": "cifar10-micro-settings", "row": name.removeprefix("row="), "method": method, "objective": ""}
    config = config_of(known)
    assert identity(config) == identity(merge(base, [setting])) != identity(base)


@pytest.mark.parametrize("file", TUNED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_tuned_value_is_the_best_of_its_scores(file):
    tuned = json.loads(file.read_text())
    scored = [trial for trial in tuned["tried"] if trial["score"] is not None]
    assert tuned["best"] == max(scored, key=lambda trial: trial[tuned.get("chosen_by", "score")])["point"]
    assert len(scored) > 2
    config = config_of(tuned)
    for override in tuned["best"]:
        key, _, value = override.partition("=")
        assert OmegaConf.select(config, key) == float(value)
    if "seeds" in tuned:
        suite = next(name for name in available("suite") if tuned["scenario"] in read("suite", name)["scenarios"])
        assert (tuned["seeds"], len(tuned["tried"])) == ((own := rule(suite)).seeds, own.trials)
    assert not any(trial["evaluated"]["dirty"] for trial in scored)
