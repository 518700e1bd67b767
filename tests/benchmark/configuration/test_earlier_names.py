"""Keys, values and hooks by their earlier names: read, never written, and told once."""

import logging

import pytest
import torch
from omegaconf import OmegaConf

from benchmark.api import compose
from benchmark.configuration.compose import load, save
from benchmark.configuration.identity import settings
from benchmark.configuration.schema import RENAMED
from benchmark.errors import ConfigError
from methods.base import Client
from methods.fedavg import FedAvg
from methods.fedsc import FedSC
from methods.objectives.simclr import SimCLR

WORDS = {
    "training.most_epochs=3": "training.max_epochs=3",
    "training.smallest_batch=5": "training.min_batch_size=5",
    "privacy.secure_sums=true": "privacy.secure_aggregation=true",
    "executor=one-by-one": "executor=sequential",
}


@pytest.mark.parametrize(("old", "new"), WORDS.items())
def test_an_earlier_word_is_read_and_never_written(old, new, tmp_path):
    before, after = compose("digits", "fedavg", [old]), compose("digits", "fedavg", [new])
    assert before == after
    scenario = tmp_path / "mine.yaml"
    key, _, value = old.rpartition(".")[2].partition("=")
    section = old.partition(".")[0] if "." in old else ""
    text = f"{section}: {{{key}: {value}}}" if section else f"{key}: {value}"
    scenario.write_text(f"like: digits\nadjust: {{fedavg: {{{text}}}}}\n")
    adjusted = compose(str(scenario), "fedavg")
    scenario.write_text(f"like: digits\n{text}\n")
    assert adjusted == compose(str(scenario), "fedavg")
    name = new.partition("=")[0]
    assert OmegaConf.select(adjusted, name) == OmegaConf.select(after, name)
    save(after, tmp_path / "config.yaml")
    written = (tmp_path / "config.yaml").read_text()
    assert key not in written if section else value not in written
    (tmp_path / "config.yaml").write_text(written.replace(name.rpartition(".")[2] + ":", f"{key}:"))
    assert load(tmp_path / "config.yaml") == after


def test_the_hash_has_the_earlier_name():
    """Run folders and records of before keep theirs."""
    for old in list(WORDS)[:3]:
        assert old.partition("=")[0] in settings(compose("digits", "fedavg", [old])).keys() & RENAMED.keys()


def test_both_names_of_a_key_are_refused():
    with pytest.raises(ConfigError, match=r"given twice|are one key"):
        compose("digits", "fedavg", ["training.smallest_batch=5", "training.min_batch_size=5"])


def test_hooks_and_types_have_their_earlier_names(caplog):
    with caplog.at_level(logging.WARNING):

        class Old(FedAvg):
            def seats(self, server):
                return (Client(-1, 0, "student"),)

            def guards(self):
                return {"weights": "a lock"}

    assert "Old.seats is server_workers now" in caplog.text
    assert "Old.guards is protections now" in caplog.text
    method = Old.__new__(Old)
    torch.nn.Module.__init__(method)
    (worker,) = method.server_workers({})
    assert worker.kind == worker.architecture == "student"
    assert method.protections() == {"weights": "a lock"}


def test_own_code_that_builds_on_earlier_names_runs(caplog):
    class Mixin:
        def guards(self):
            return {"extra": "a key"}

    class Mixed(Mixin, FedAvg):
        pass

    class Both(FedSC):
        def guards(self):
            return {**super().guards(), "more": "a door"}

    class OneView(SimCLR):
        smallest_batch = 1

    assert "OneView.smallest_batch is min_batch_size now" in caplog.text
    assert OneView.min_batch_size == 1
    assert Mixed.protections(None) == {"extra": "a key"}
    method = Both.__new__(Both)
    torch.nn.Module.__init__(method)
    method.sigma, method.mu = None, 1.0
    assert method.protections()["more"] == "a door"
    assert Both.protections is not FedSC.protections


def test_authors_of_an_older_scenario_name_keys_that_there_are(tmp_path):
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("like: digits\nauthors: {training.most_epochs: 9}\n")
    assert compose(str(scenario), "fedavg").authors == {"training.max_epochs": 9}


def test_what_is_no_mapping_is_refused_where_one_is_asked_for():
    with pytest.raises(ConfigError, match=r"data\.options=5: give a mapping"):
        compose("digits", "fedavg", ["data.options=5"])
