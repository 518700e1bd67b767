"""The committed results are what the code says today: page from records, records from configs, rates from scores."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available, read
from benchmark.configuration.identity import identity
from leaderboards import generate, store
from leaderboards.pages import board, methods, privacy

LEADERBOARDS = Path(__file__).parent.parent / "leaderboards"
RECORDS = store.collect(LEADERBOARDS / "results")
BOARDS = methods.boards(RECORDS)
TUNED = sorted(LEADERBOARDS.glob("tuned/*/*.json"))


def named():
    """(scenario, row) -> the words of the suites' lines that give a row its name; scenarios by their own words."""
    found = {}
    for suite in available("suite"):
        content = read("suite", suite)
        for line in (*content["methods"], *content.get("more", [])):
            name, *words = line.split()
            if row := next((word.removeprefix("row=") for word in words if word.startswith("row=")), None):
                found |= {(scenario, row): [name, *words] for scenario in map(called, content["scenarios"])}
    return found


def called(line):
    """The name of a scenario that a suite's line changes by words."""
    name, *words = line.split()
    return next((word.removeprefix("scenario=") for word in words if word.startswith("scenario=")), name)


NAMED = named()
CHANGED = {called(line): line.split() for suite in available("suite") for line in read("suite", suite)["scenarios"]}


def today(record):
    """The config that the record's row has now."""
    own = [record["method"]]
    if record["row"] == f"{record['method']}-{record['objective']}":
        own.append(f"objective={record['objective']}")
    method, *words = NAMED.get((record["scenario"], record["row"]), own)
    scenario, *its = CHANGED.get(record["scenario"], [record["scenario"]])
    return compose(scenario, method, [*its, *words, f"seed={record['seed']}"])


def test_there_are_some():
    assert RECORDS
    assert TUNED


def test_the_page_is_what_the_records_and_the_privacy_sheet_say():
    page = (LEADERBOARDS / "README.md").read_text()
    found = generate.judged(RECORDS, LEADERBOARDS)
    assert page == board.markdown(RECORDS, privacy.read(LEADERBOARDS / privacy.SHEET), found), (
        "write it anew: python -m benchmark board"
    )


@pytest.mark.parametrize("page", sorted((LEADERBOARDS.parent / "docs" / "methods").glob("*.md")), ids=lambda p: p.stem)
def test_a_methods_page_has_our_numbers(page):
    text = page.read_text()
    assert methods.START in text
    assert text == methods.filled(text, page.stem, BOARDS), "write it anew: python -m benchmark board"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record['scenario']}-{record['row']}-{record['seed']}")
def test_a_record_is_of_the_shipped_config(record):
    config = today(record)
    assert (config.scenario, config.row) == (record["scenario"], record["row"])
    assert identity(config) == record["provenance"]["config"], "run it again, or give the changed config another name"
    assert not record["provenance"]["dirty"]
    assert record["rounds"]["done"] == record["rounds"]["planned"] == config.federation.rounds


@pytest.mark.parametrize("file", TUNED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_tuned_value_is_the_best_of_its_scores(file):
    tuned = json.loads(file.read_text())
    scored = [line for line in tuned["tried"] if line["score"] is not None]
    assert tuned["best"] == max(scored, key=lambda line: line["score"])["point"]
    assert len(scored) > 2
    config = today(tuned)
    for word in tuned["best"]:
        key, _, value = word.partition("=")
        assert OmegaConf.select(config, key) == float(value)
    assert not any(line["evaluated"]["dirty"] for line in scored)
