"""The runs that a suite consists of, and rows by name: the same row and identity as a suite's run of it."""

import pytest
import yaml

from benchmark.configuration import files
from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from benchmark.configuration.identity import folder, identity
from benchmark.configuration.suites import row_line, suite
from benchmark.errors import ConfigError
from benchmark.experiment.tuning import parse_grid
from tests.run_helpers import TINY


def written(tmp_path, **content):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def test_seed_by_seed(tmp_path):
    name = written(tmp_path, scenarios=[TINY], seeds=[0, 1], methods=["fedavg", "ssd method.alpha=5"])
    configs = suite(name, {}, ["training.epochs=2"])
    assert {config.training.epochs for config in configs} == {2}
    rows = [(config.row, config.seed) for config in configs]
    assert rows == [("fedavg", 0), ("ssd+alpha=5", 0), ("fedavg", 1), ("ssd+alpha=5", 1)]
    assert len({folder(config) for config in configs}) == 4


def test_parts_of_it(tmp_path):
    lists = {"scenarios": [TINY], "seeds": [0, 1, 2], "methods": ["fedavg", "ssd"], "more": ["fedavg objective=byol"]}
    name = written(tmp_path, **lists)
    chosen = suite(name, {"methods": "ssd,fedavg", "seeds": 4}, [])
    assert [(config.row, config.seed) for config in chosen] == [("ssd", 4), ("fedavg", 4)]
    assert [config.row for config in suite(name, {"seeds": 0}, [])] == ["fedavg", "ssd"]
    every = suite(name, {"methods": "all", "seeds": [1]}, [])
    others = [method for method in available("method") if method not in ("fedavg", "ssd")]
    assert [config.row for config in every] == ["fedavg", "ssd", "fedavg-byol", *others]


def test_all_of_digits_is_every_method_and_every_row_of_fedx():
    wanted = "fedx-local,scaffold-fedx,fedx-no-global-contrast"
    chosen = suite("fedx", {"methods": wanted, "seeds": [0]}, [])  # rows by their names
    assert [config.row for config in chosen] == wanted.split(",")
    assert (chosen[0].method.global_contrast, chosen[2].method.global_contrast) == (0, 0)
    rows = {config.row for config in suite("digits", {"methods": "all", "seeds": [0]}, [])}
    assert set(available("method")) <= rows
    fedx = {config.row for config in suite("fedx", {"seeds": [0]}, [])}
    assert {row.replace("-simclr", "") for row in fedx} <= rows  # digits' own rows are over SimCLR


def test_a_suite_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="unknown keys \\['method'\\]"):
        suite(written(tmp_path, scenarios=[TINY], method=["fedavg"]), {}, [])
    for methods, numbers in (([], [0]), (None, [0]), (["fedavg"], None)):
        with pytest.raises(ConfigError, match="is empty"):
            suite(written(tmp_path, scenarios=[TINY], methods=methods, seeds=numbers), {}, [])


def test_an_override_that_some_rows_have_no_use_for_changes_the_others_only():
    lists = {"scenarios": ["digits"], "methods": ["fedavg", "fedavg objective=byol"], "seeds": [0]}
    simclr, byol = suite("digits", lists, ["heads.predictor=48"])
    assert (simclr.row, simclr.heads.predictor) == ("fedavg", compose("digits", "fedavg").heads.predictor)
    assert (byol.row, byol.heads.predictor) == ("fedavg-byol+heads.predictor=48", 48)
    with pytest.raises(ConfigError, match=r"heads\.predictor: simclr has no predictor, so it would change nothing"):
        suite("digits", lists | {"methods": ["fedavg", "fedprox"]}, ["heads.predictor=48"])


def by_name(scenario, name, *overrides):
    method, *line = row_line(scenario, name)
    return compose(scenario, method, overrides, line)


@pytest.mark.parametrize(
    "scenario", ["cifar10-micro", *(pytest.param(name, marks=pytest.mark.long) for name in ("digits", "cifar10-mini"))]
)
def test_every_row_of_a_suite_is_found_by_its_name(scenario):
    for config in suite(scenario, {"seeds": 0}, []):
        named = by_name(scenario, config.row)
        assert (named.row, identity(named)) == (config.row, identity(config))


def test_a_method_and_an_objective_are_a_row_without_a_suite():
    assert row_line("digits", "fedprox-byol") == ["fedprox", "objective=byol"]
    for name in ("fedprox-nosuch", "fedu-fedx", "mine.yaml"):  # the second is a method of its own
        assert row_line("digits", name) == [name]
    (config,) = suite("digits", {"methods": "fedprox-byol", "seeds": 0}, [])  # which does not list it
    assert (config.row, config.objective["name"]) == ("fedprox-byol", "byol")


def test_a_changed_row_does_not_have_the_name_of_the_shipped_one():
    for overrides, row in {
        ("method.alpha=7",): "ssd-pd+alpha=7",
        ("method.dsr_weight=0.5",): "ssd-pd+dsr_weight=0.5",
        ("method.alpha=7", "row=mine"): "mine",
    }.items():
        assert by_name("cifar10-micro", "ssd-pd", *overrides).row == row
    assert by_name("cifar10-micro", "ssd-pd", "partition.alpha=1").scenario == "cifar10-micro+partition.alpha=1"
    changed, *_ = suite("ssd", {"methods": "ssd-pd", "seeds": 0}, ["method.alpha=7"])
    assert changed.row == "ssd-pd+alpha=7"
    grid = parse_grid("cifar10-micro", "ssd-pd", ["optimizer.lr=0.01,0.02"])  # of `tune`
    assert (grid.base.row, grid.base.method["dsr_weight"]) == ("ssd-pd", 0)
    assert [config.row for config in grid.configs] == ["ssd-pd+optimizer.lr=0.01", "ssd-pd+optimizer.lr=0.02"]


def test_a_name_of_several_rows_is_refused_unless_one_is_of_this_scenario(monkeypatch, tmp_path):
    (tmp_path / "suite").mkdir()
    for stem, scenario, alpha in (("one", "digits", 1), ("two", "cifar10-micro", 2)):
        lines = {"scenarios": [scenario], "methods": [f"ssd method.alpha={alpha} row=mine"], "seeds": [0]}
        (tmp_path / "suite" / f"{stem}.yaml").write_text(yaml.safe_dump(lines))
    for group in ("method", "objective"):
        (tmp_path / group).symlink_to(files.CONFIGS / group)
    monkeypatch.setattr(files, "CONFIGS", tmp_path)
    assert row_line("digits", "mine") == ["ssd", "method.alpha=1", "row=mine"]
    with pytest.raises(ConfigError, match=r"'mine' is the name of several rows: .*\(suite one\); .*\(suite two\)"):
        row_line("cifar10-mini", "mine")


@pytest.mark.parametrize(
    "words", [("digits", "mine.yml"), ("mine.yml", "fedavg"), ("digits", "fedavg", ["objective=mine.yml"])]
)
def test_another_ending_of_a_file_is_named(words):
    with pytest.raises(ConfigError, match=r"^mine\.yml: config files end in \.yaml: rename it$"):
        compose(*words)
