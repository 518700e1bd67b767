"""What a search by the tuning rule has chosen for a row is the row's own setting."""

import json

import pytest
from omegaconf import OmegaConf

from benchmark.configuration import tuned
from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity
from benchmark.configuration.suites import row_line
from benchmark.errors import ConfigError


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """Writes the file of a row's choice."""
    monkeypatch.setattr(tuned, "TUNED", tmp_path)

    def choosing(scenario, row, *best, **content):
        file = tmp_path / scenario / f"{row}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"best": best, **({"seeds": [100]} | content)}))
        return file

    return choosing


def named(scenario, row, *overrides):
    method, *line = row_line(scenario, row)
    return compose(scenario, method, overrides, line)


def test_a_row_has_what_was_chosen_and_its_own_name(choose):
    before = identity(compose("digits", "fedprox"))
    choose("digits", "fedprox", "optimizer.lr=0.3", "method.mu=0.1")
    config = compose("digits", "fedprox")
    assert (config.row, config.optimizer.lr, config.method.mu) == ("fedprox", 0.3, 0.1)
    assert identity(compose("digits", "fedprox", tuned=False)) == before
    assert compose("digits", "fedprox", ["method.mu=0.01"]).row == "fedprox+mu=0.01"
    assert compose("digits", "fedprox", ["objective=byol"]).optimizer.lr == 0.05
    assert compose("cifar10-micro", "fedprox").optimizer.lr == 0.1


def test_both_names_of_a_row_with_the_methods_own_objective_are_one(choose):
    choose("digits", "fedavg", "optimizer.lr=0.3")
    config = compose("digits", "fedavg", ["objective=simclr"])
    assert (config.row, config.optimizer.lr) == ("fedavg-simclr", 0.3)
    choose("digits", "fedavg-simclr", "optimizer.lr=1")
    assert [compose("digits", "fedavg", words).optimizer.lr for words in ([], ["objective=simclr"])] == [0.3, 1]
    assert compose("digits", "fedavg", ["objective=byol"]).optimizer.lr == 0.05


def test_a_row_with_a_name_in_a_suite_has_its_own_file_also_over_its_line(choose):
    choose("cifar10-micro", "ssd", "optimizer.lr=0.7", "method.alpha=5")
    choose("cifar10-micro", "fedavg-vit", "optimizer.lr=0.001")  # its line has a rate
    assert named("cifar10-micro", "ssd-pd").optimizer.lr == 0.1
    one_more = compose("cifar10-micro", "ssd", [], ["method.variant=paper", "row=ssd+method.variant=paper"])
    assert (one_more.row, one_more.optimizer.lr) == ("ssd+method.variant=paper", 0.7)
    config = named("cifar10-micro", "fedavg-vit")
    assert (config.row, config.optimizer.lr) == ("fedavg-vit", 0.001)
    assert OmegaConf.select(config, "optimizer.class") == "torch.optim.AdamW"
    assert named("cifar10-micro", "fedavg-vit", "optimizer.lr=0.5").row == "fedavg-vit+optimizer.lr=0.5"
    line = ["optimizer.class=torch.optim.AdamW", "row=fedavg-vit"]  # without a rate
    assert compose("cifar10-micro", "fedavg", [], line).optimizer.lr == 0.001
    assert compose("cifar10-micro", "fedavg", ["optimizer.class=torch.optim.Adam"], line).optimizer.get("lr") is None


def test_a_scenario_like_another_has_the_choice_of_that_one_unless_it_has_its_own(choose, tmp_path):
    choose("cifar10-micro", "ssd", "optimizer.lr=0.7")
    assert compose("cifar10-mini", "ssd").optimizer.lr == 0.7
    choose("cifar10-mini", "ssd", "optimizer.lr=0.2")
    assert [compose(name, "ssd").optimizer.lr for name in ("cifar10-mini", "cifar10-micro")] == [0.2, 0.7]
    (tmp_path / "mine.yaml").write_text("like: cifar10-micro\n")
    assert compose(str(tmp_path / "mine.yaml"), "ssd").optimizer.lr == 0.7
    choose("cifar10-micro", "ssd", "optimizer.lr=0.7", "method.alpha=5")  # a rate of the heir's own is for all its rows
    heir = compose("cifar10-crowd", "ssd")
    assert (heir.optimizer.lr, heir.method.alpha) == (0.05, 5)


def test_a_file_of_before_the_rule_changes_nothing_and_one_that_holds_no_choice_is_refused(choose):
    file = choose("digits", "ssd", "optimizer.lr=0.7")
    file.write_text(json.dumps({"seed": 0, "best": ["optimizer.lr=0.7"]}))
    assert compose("digits", "ssd").optimizer.lr == 0.05
    for text in ('{"seeds": [100]}', "{", "[1]"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"digits/ssd\.json: no chosen settings"):
            compose("digits", "ssd")
