"""Searches of a suite's rows by the tuning rule: their trials, the choice, the files, and an interruption."""

import json

import pytest
import yaml
from omegaconf import OmegaConf

from benchmark import runtime
from benchmark.campaign import search
from benchmark.campaign.search import Outcome, Row, Search, rows_of, second_stage
from benchmark.cli.main import main
from benchmark.configuration import tuned
from benchmark.configuration.compose import compose
from benchmark.configuration.files import available, read
from benchmark.configuration.identity import identity
from benchmark.configuration.suites import seeds
from benchmark.configuration.tuned import Constant, Rule
from benchmark.configuration.words import split
from benchmark.errors import ConfigError
from tests.benchmark.campaign.campaign_helpers import PLACEMENT
from tests.run_helpers import TINY

RULE = tuned.rule()
SHORT = Rule([0.01, 0.1], [0.5], [100], 1, RULE.label_free, RULE.labels)


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A suite of two rows, one with a constant, under a rule of three trials; commands start in milliseconds."""
    monkeypatch.setattr(runtime, "is_program", True)  # which forks its trials
    monkeypatch.setattr(tuned, "rule", lambda _: SHORT)
    monkeypatch.chdir(tmp_path)
    lines = ["fedprox", "fedavg objective=rotation", "untrained", "fedavg optimizer.lr=0 row=idle"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"scenarios": [TINY], "seeds": [0], "methods": lines}))
    return "suite=mine.yaml"


def tune(suite, *words):
    return main(["tune", suite, *PLACEMENT, "data.cache=cache", "devices=1", *words])


def files(folder):
    """The rows' files of a search without what differs between equal ones."""
    found = {file.stem: json.loads(file.read_text()) for file in folder.rglob("tuned/tiny/*.json")}
    for content in found.values():
        for trial in content["tried"]:
            assert not trial["evaluated"] or trial.pop("evaluated").keys() == {"git", "dirty", "hardware", "date"}
    return found


def test_a_search_that_is_stopped_goes_on_and_writes_what_was_best(suite, tmp_path, monkeypatch, capsys):
    assert tune(suite, "plan=true") == 0
    assert "0 of 6 trials done" in capsys.readouterr().out
    update, stops = Search.update, iter([False, False, True])

    def stopped(self, job):
        if next(stops, False):
            raise KeyboardInterrupt
        return update(self, job)

    monkeypatch.setattr(Search, "update", stopped)
    assert tune(suite) == 130  # in the second stage of the first row
    assert files(tmp_path) == {}
    assert tune(suite) == 0
    printed = capsys.readouterr().out
    assert "3 of 6 trials done" in printed.rpartition("not searched: tiny untrained: nothing is trained")[2]
    assert "not searched: tiny idle: its line sets optimizer.lr=0, a control" in printed
    found = files(tmp_path)
    assert found.keys() == {"fedprox", "fedavg-rotation"}
    assert found["fedprox"].keys() == {
        *("scenario", "row", "method", "objective", "seeds", "rounds", "score", "accuracy", "best", "tried", "constant")
    }
    assert found["fedprox"]["constant"] == "method.mu=0.01"
    for content in found.values():
        points = [tuple(trial["point"]) for trial in content["tried"]]
        assert content["best"] == list(points[0])
        assert {("optimizer.lr=0.01",), ("optimizer.lr=0.1",)} < set(points)
        assert len(set(points)) == 3
        scores = [trial["score"] for trial in content["tried"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= trial["accuracy"] <= 100 for trial in content["tried"])
    assert [word for trial in found["fedprox"]["tried"] for word in trial["point"][1:]] == ["method.mu=0.001"]
    trained = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("rounds.jsonl")}
    assert len(trained) == 6
    assert tune(suite, "methods=fedprox") == 0  # of a finished search nothing is trained
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("rounds.jsonl")} == trained
    assert files(tmp_path) == found


def test_a_rate_that_diverges_is_an_outcome_and_is_not_tried_again(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tuned, "rule", lambda _: Rule([0.01, 1e30], [0.5], [100], 1, RULE.label_free, RULE.labels))
    assert tune(suite, "methods=fedprox", "into=there") == 0, capsys.readouterr().err
    content = json.loads((tmp_path / "there" / "tiny" / "fedprox.json").read_text())
    assert content["tried"][-1] == {"point": ["optimizer.lr=1e+30"], "score": None, "accuracy": None, "evaluated": None}
    assert content["best"] != ["optimizer.lr=1e+30"]
    monkeypatch.setattr(search.Scheduler, "start", lambda *_: pytest.fail("tried again"))
    assert tune(suite, "methods=fedprox", "into=there") == 0


def row(constant=None, default=0.0):
    return Row((), OmegaConf.create({"scenario": "s", "row": "r"}), constant, default, None)


def test_the_second_stage_is_at_the_best_rate_and_has_the_values_nearest_to_the_default():
    five = Constant("method.mu", ("0.0001", "0.001", "0.01", "0.1", "1"))
    rule = Rule(RULE.rates, [0.5, 2, 3], [100], None, "", "")
    points = second_stage(rule, row(five, 0.01), ("optimizer.lr=0.3",))
    assert points == [("optimizer.lr=0.3", f"method.mu={value}") for value in ("0.0001", "0.001", "0.1")]
    assert second_stage(rule, row(), ("optimizer.lr=0.3",)) == [
        *(("optimizer.lr=0.15",), ("optimizer.lr=0.6",), ("optimizer.lr=0.9",))
    ]


def test_the_choice_is_by_the_score_without_labels():
    searched = row()
    searched.points = [("a",), ("b",), ("c",), ("d",)]
    searched.tried = {
        ("a",): Outcome(-0.2, 90.0), ("b",): Outcome(-0.1, 10.0), ("c",): Outcome(), ("d",): Outcome(-0.1, 5),
    }  # fmt: skip
    assert searched.best == ("b",)
    searched.tried = dict.fromkeys(searched.points, Outcome())
    assert searched.best is None


def test_trials_that_end_together_are_taken_in_once_and_their_jobs_stay_the_same(tmp_path, monkeypatch):
    known = {}
    monkeypatch.setattr(Search, "_outcome", lambda self, job: known.get(job.folder))
    rows, _ = rows_of("digits", {"methods": ["fedprox"]}, [], tmp_path)
    searched = Search(rows, SHORT)
    first, second = searched.jobs
    assert searched.counts == (0, 3)
    known[first.folder] = Outcome(0.5, 60.0, {"dirty": False})
    assert searched.update(first) is None
    assert searched.jobs == [second]
    assert searched.jobs[0] is second
    known[second.folder] = Outcome(0.7, 50.0, {"dirty": False})
    assert searched.update(second) is None
    (third,) = searched.jobs
    assert searched.counts == (2, 3)
    assert [word for word in third.words if "lr=" in word or "mu=" in word] == [
        *("optimizer.lr=0.1", "method.mu=0.001", "row=fedprox/optimizer.lr=0.1+method.mu=0.001")
    ]
    known[third.folder] = Outcome(0.6, 55.0, {"dirty": True})
    assert searched.update(second) is rows[0]  # the third has ended meanwhile
    assert searched.update(third) is None
    assert (searched.jobs, searched.counts) == ([], (3, 3))
    content = json.loads((tmp_path / "digits" / "fedprox.json").read_text())
    assert (content["best"], content["seeds"], content["rounds"]) == (["optimizer.lr=0.1"], [100], 1)
    assert [trial["accuracy"] for trial in content["tried"]] == [50.0, 55.0, 60.0]


@pytest.mark.parametrize("name", [name for name in available("method") if tuned.constant(name)])
def test_the_constant_of_a_method_is_searched_by_as_many_trials_as_any(name):
    config, constant = compose("reference", name), tuned.constant(name)
    (value,) = {float(value) for value in [search.defaults(config).get(constant.key)] if value is not None} or {
        float(OmegaConf.select(config, constant.key))
    }
    assert value in map(float, constant.values)
    assert len(second_stage(RULE, row(constant, value), ("optimizer.lr=1",))) == RULE.trials - len(RULE.rates)
    section, key = constant.key.split(".")
    assert key in search.defaults(config).keys() | config[section].keys() or constant.key in search.defaults(config)


def test_no_suite_reports_a_seed_of_the_rule():
    reported = {seed for name in available("suite") for seed in seeds(read("suite", name)["seeds"])}
    assert not reported & set(RULE.seeds)


def test_a_trial_is_the_same_run_whatever_was_chosen_before(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "TUNED", tmp_path)
    replaced = {"methods": ["fedprox", "fedavg objective=simclr", "orchestra objective.clusters=8 row=orchestra-g8"]}
    before = Search(rows_of("digits", replaced, [], None)[0], SHORT)
    for name, best in (("fedprox", ["method.mu=1"]), ("fedavg", []), ("orchestra", ["seed=7"])):
        (tmp_path / "digits").mkdir(exist_ok=True)
        content = {"seeds": [100], "best": ["optimizer.lr=0.7", *best]}
        (tmp_path / "digits" / f"{name}.json").write_text(json.dumps(content))
    after = Search(rows_of("digits", {**replaced, "methods": replaced["methods"][:2]}, [], None)[0], SHORT)
    assert [job.words for job in after.jobs] == [job.words for job in before.jobs[:4]]
    for job in before.jobs[:4]:
        (scenario, method), overrides = split(job.words)
        config = compose(scenario, method, overrides)
        assert (identity(config), config.scenario, config.row) == (identity(job.config), "digits", job.config.row)
        assert config.seed == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seeds=1"], "the tuning rule has the seeds"),
        (["federation.rounds=2"], "the tuning rule sets what is searched"),
        (["digits", "fedavg"], "not both: digits fedavg"),
        (["plan=3"], "plan=3: give true or false"),
        (["methods=nosuch"], "unknown row 'nosuch'"),
    ],
)
def test_what_a_search_does_not_take_is_refused(words, message, capsys):
    assert main(["tune", "suite=digits", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_changed_scenario_and_a_name_given_twice_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="a search is of a scenario as it is"):
        rows_of("study-flesd", {}, [], None)
    with pytest.raises(ConfigError, match="names digits fedprox twice"):
        rows_of("digits", {"methods": ["fedprox", "fedprox method.mu=0.5 row=fedprox"]}, [], None)
