"""A finished run that goes on to more rounds ends in the bits of a run that had as many from the start."""

import json

import pytest
import torch

from benchmark.cli.main import main
from benchmark.configuration.compose import compose, load
from benchmark.configuration.identity import folder
from benchmark.errors import ConfigError
from benchmark.experiment.extension import bound_to_rounds, extension, reads_rounds
from benchmark.federation.checkpoint import Checkpoint
from benchmark.tracking.callbacks import CLIENTS
from leaderboards import store
from methods.fedavg import FedAvg
from tests.run_helpers import TINY, same

CONSTANT, LOCAL = "schedule.name=constant", "federation.batch_norm=local"
CENTRAL = ("privacy.mechanism=central", "privacy.clip=1")
TIMES = {"seconds", "client_seconds", "server_seconds"}


class ByProgress(FedAvg):
    """A method of a user's whose clients work by the share of the run that is done."""

    def receive(self, visit, *args):
        self.share = visit.round / visit.rounds
        return super().receive(visit, *args)


def run(tmp_path, method, *overrides, where="runs", scenario=TINY):
    torch.set_num_threads(1)
    own = (f"output={tmp_path / where}", f"data.cache={tmp_path / 'cache'}", "logger=csv", "threads=1")
    words = (*own, "accelerator=cpu", "devices=1", *overrides)
    assert main(["run", scenario, method, *words]) == 0
    return folder(compose(scenario, method, words))


def content(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"}


def lines(path):
    files = [file for name in ("rounds.jsonl", CLIENTS) if (file := path / name).exists()]
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in found]


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("fedavg", ["evaluation.every=4", "log_clients=true"]),
        pytest.param("scaffold", [], marks=pytest.mark.long),
        ("fedema", ["objective=byol", "compression.name=top-k", "compression.share=0.2"]),
        ("fedavg", [*CENTRAL, "privacy.noise_multiplier=0.5", LOCAL]),
        pytest.param("local", [], marks=pytest.mark.long),
    ],
    ids=["fedavg", "scaffold", "compressed", "noise", "local"],
)
def test_two_rounds_and_two_more_are_four(tmp_path, method, overrides, capsys):
    short = run(tmp_path, method, CONSTANT, "federation.rounds=2", *overrides)
    before = content(short)
    assert main(["resume", str(short), "federation.rounds=4", "threads=1", "devices=1"]) == 0, capsys.readouterr().err
    whole = run(tmp_path, method, CONSTANT, "federation.rounds=4", *overrides, where="whole")
    longer = tmp_path / "runs" / whole.relative_to(tmp_path / "whole")
    assert content(short) == before
    first, second = (Checkpoint(path / "checkpoint", None).load() for path in (longer, whole))
    assert same(first["server"], second["server"])
    for key in ("config", "ledger", "account", "memory"):  # names of files with the hash of their content
        assert first[key] == second[key]
    assert lines(longer) == lines(whole)
    records = [store.read(path / "result.json") for path in (longer, whole)]
    for key in ("scenario", "row", "rounds", "scores", "bytes", "epsilon", "settings", "best"):
        assert records[0][key] == records[1][key]
    assert records[0]["provenance"]["config"] == records[1]["provenance"]["config"]
    assert main(["resume", str(short), "federation.rounds=4"]) == 0  # it is there already
    assert "already done" in capsys.readouterr().out


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A finished run of one round."""
    return run(tmp_path_factory.mktemp("names"), "fedavg", CONSTANT, "federation.rounds=1")


def test_it_is_named_as_a_run_of_these_rounds(short, tmp_path):
    longer = "federation.rounds=2"
    config, place = extension(short, [longer], trust=False)
    named = compose(TINY, "fedavg", [CONSTANT, longer])
    assert (config.scenario, config.row, config.federation.rounds) == (named.scenario, named.row, 2)
    assert place.parents[2] == short.parents[2]
    assert extension(short, ["federation.rounds=1"], trust=False) is None
    config, place = extension(short, [longer, "scenario=longer"], trust=False)  # a name of one's own
    assert (config.scenario, place) == ("longer", short.parents[2] / "longer" / "fedavg" / "seed0")
    own = run(tmp_path, "fedavg", CONSTANT, "federation.rounds=1", "scenario=mine+own")  # a name that somebody gave
    assert extension(own, [longer], trust=False)[0].scenario == f"mine+own+{longer}"
    with pytest.raises(ConfigError, match="give scenario= another name"):
        extension(own, [longer, "scenario=mine+own"], trust=False)


def test_a_shipped_scenarios_own_rounds_take_the_word_away(tmp_path):
    words = (CONSTANT, "federation.rounds=1", "training.steps=1", "evaluation.protocols=[geometry/v1]")
    short = run(tmp_path, "fedavg", *words, scenario="digits")
    config, _ = extension(short, ["federation.rounds=20"], trust=False)
    assert config.scenario == compose("digits", "fedavg", [CONSTANT, "training.steps=1"]).scenario


def test_what_does_not_go_on_is_one_line(short):
    for words, line in (
        ("federation.rounds=0", "has done 1 rounds: give more"),
        ("federation.rounds=three", "give a whole number"),
        ("federation.rounds=2 optimizer.lr=0.7", "cannot be resumed or evaluated with a changed config"),
    ):
        with pytest.raises(ConfigError, match=line):
            extension(short, words.split(), trust=False)
    (short / "result.json").rename(short / "away")
    with pytest.raises(ConfigError, match=r"is not finished: resume it without federation\.rounds= first"):
        extension(short, ["federation.rounds=2"], trust=False)
    (short / "away").rename(short / "result.json")


@pytest.mark.parametrize(
    ("method", "overrides", "reason"),
    [
        *(
            ("fedavg", [word], word)
            for word in (f"schedule.name={name}" for name in ("cosine", "step", "cosine_twice"))
        ),
        ("fedavg", [CONSTANT, "schedule.warmup=0.5"], "schedule.warmup=0.5 is a share of the rounds"),
        ("fedavg", [CONSTANT, *CENTRAL, "privacy.epsilon=8"], "privacy.noise_multiplier was solved"),
        *((method, [CONSTANT], "works by the number of rounds") for method in ("progfedssl", "lwfedssl", "fedsc")),
        ("fedavg", [CONSTANT, f"method.class={__name__}.ByProgress"], "works by the number of rounds"),
        *((method, [CONSTANT], None) for method in ("fedavg", "fedema", "ssd", "orchestra")),
        ("fedavg", [CONSTANT, "objective=protocl"], None),
        *(("fedavg", [CONSTANT, f"objective={name}"], None) for name in ("byol", "dino")),
        ("fedavg", [CONSTANT, "objective=byol", "objective.momentum_end=1"], "objective.momentum_end: a value follows"),
        ("fedavg", [CONSTANT, "objective=dino", "objective.start_temperature=0.02"], "objective.start_temperature: a"),
    ],
)
def test_what_depends_on_the_number_of_rounds_stays_with_it(method, overrides, reason):
    found = bound_to_rounds(compose("digits", method, overrides))
    assert found is None if reason is None else reason in found


def test_a_reading_of_the_rounds_is_found_wherever_it_stands():
    assert reads_rounds("def f(visit):\n    return visit.round / visit.rounds")
    assert reads_rounds("def f(visit):\n    return getattr(visit, 'rounds')")
    assert not reads_rounds("def f(visit, rounds):\n    '''All rounds.'''\n    return visit.round")


def test_the_commands_refusal_is_one_line(tmp_path, refused):
    short = run(tmp_path, "fedavg", "federation.rounds=1")
    line = "schedule.name=cosine sets the rate of a round by the number of rounds"
    assert line in refused("resume", str(short), "federation.rounds=4")
    assert load(short / "config.yaml").federation.rounds == 1
    assert len(list((tmp_path / "runs").glob("*/*/seed0"))) == 1
