import copy
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from benchmark.configuration import files, schema
from benchmark.configuration import identity as identity_module
from benchmark.configuration.compose import compose, load, merge, save
from benchmark.configuration.files import CONFIGS, available, read, summary
from benchmark.configuration.identity import differences, folder, identity, settings
from benchmark.configuration.instantiate import locate
from benchmark.configuration.keys import fits
from benchmark.errors import ConfigError
from tests.run_helpers import TINY, build_run

LAYERS = ("scenario", "objective", "method", "adjust")


def write(file: Path, content: dict) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A function that writes config files in which each given layer sets another value of `training.epochs`."""

    def build(*layers):
        epochs = {layer: {"training": {"epochs": k}} if layer in layers else {} for k, layer in enumerate(LAYERS, 2)}
        write(tmp_path / "scenario" / "small.yaml", epochs["scenario"] | {"adjust": {"mine": epochs["adjust"]}})
        write(tmp_path / "objective" / "loss.yaml", epochs["objective"] | {"objective": {"class": "a.Loss"}})
        write(tmp_path / "method" / "mine.yaml", epochs["method"] | {"objective": "loss", "method": {"class": "a.M"}})
        monkeypatch.setattr("benchmark.configuration.files.CONFIGS", tmp_path)

    return build


def refused(function, *args):
    with pytest.raises(ConfigError) as error:
        function(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestLayers:
    def test_later_ones_win_and_each_alone_leaves_the_rest(self, shelf):
        for depth, layer in enumerate(("default", *LAYERS)):
            shelf(*LAYERS[:depth])
            assert compose("small", "mine").training.epochs == depth + 1
            assert compose("small", "mine", ["training.epochs=9"]).training.epochs == 9
            shelf(layer)
            training = compose("small", "mine").training
            assert (training.epochs, training.batch_size) == (depth + 1, schema.TrainingConfig().batch_size)

    def test_epochs_and_steps_are_one_choice(self, tmp_path):
        """The later of the two overrides defines the work of a visit."""
        adjust = {"ssd": {"training": {"epochs": 2}}}
        scenario = write(tmp_path / "mine.yaml", {"training": {"steps": 31}, "adjust": adjust})
        assert compose(scenario, "fedavg").training.steps == 31
        assert compose(scenario, "ssd").training.steps is None
        assert compose(scenario, "fedavg", ["training.epochs=3"]).training.steps is None
        assert compose(scenario, "ssd", ["training.steps=7"]).training.steps == 7

    def test_a_scenario_is_like_another_but_for_what_it_says(self, tmp_path):
        old = {"training": {"batch_size": 9, "epochs": 7}, "adjust": {"ssd": {"training": {"epochs": 2}}}}
        write(tmp_path / "old.yaml", old)
        young = {"like": str(tmp_path / "old.yaml"), "adjust": {"byol": {"optimizer": {"lr": 2}}}}
        young = write(tmp_path / "young.yaml", young | {"training": {"epochs": 5}})
        plain, ssd = compose(young, "fedavg"), compose(young, "ssd")
        assert (plain.scenario, plain.training.batch_size, plain.training.epochs) == ("young", 9, 5)
        assert ssd.training.epochs == 2
        assert compose(young, "fedavg", ["objective=byol"]).optimizer.lr == 2
        assert plain.optimizer.lr == schema.Config().optimizer["lr"]

    def test_adjust_speaks_to_an_objective_a_method_and_a_row(self, tmp_path):
        adjust = {"byol": {"training": {"epochs": 2, "batch_size": 4}}, "fedavg": {"training": {"epochs": 3}}}
        adjust["fedavg-byol"] = {"optimizer": {"lr": 0.5}}
        scenario = write(tmp_path / "mine.yaml", {"training": {"epochs": 7, "batch_size": 9}, "adjust": adjust})

        def seen(method, *overrides):
            composed = compose(scenario, method, overrides)
            return composed.training.epochs, composed.training.batch_size, composed.optimizer.lr

        assert seen("local") == (7, 9, 0.03)
        assert seen("local", "objective=byol") == (2, 4, 0.03)
        assert seen("fedavg") == (3, 9, 0.03)
        assert seen("fedavg", "objective=byol") == (3, 4, 0.5)
        assert seen("fedavg", "objective=byol", "training.epochs=8") == (8, 4, 0.5)

    def test_another_class_data_set_objective_or_public_set_brings_its_own_keys(self):
        adam = compose(TINY, "fedavg", ["optimizer.class=torch.optim.Adam", "optimizer.lr=0.1"]).optimizer
        assert OmegaConf.to_container(adam) == {"class": "torch.optim.Adam", "lr": 0.1}
        sgd = compose(TINY, "fedavg", ["optimizer.lr=0.1"]).optimizer
        assert sgd == {"class": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9}
        assert compose(TINY, "fedavg").data.options
        assert compose(TINY, "fedavg", ["data.name=digits"]).data.options == {}
        given = ["data.name=stl10", "data.options.examples=5"]
        assert compose(TINY, "fedavg", given).data.options == {"examples": 5}
        assert compose(TINY, "fedsc").objective.negatives == "correlation"
        assert "negatives" not in compose(TINY, "fedsc", ["objective=simclr"]).objective
        digits = {"name": "digits", "share": 0.2}
        for words, public in {
            (): digits,
            ("public.name=client",): {"name": "client"},
            ("public.name=client", "public.client=3"): {"name": "client", "client": 3},
            ("public.share=0.1",): digits | {"share": 0.1},
        }.items():
            assert dict(compose("digits", "flesd", words).public) == public

    @pytest.mark.parametrize(
        ("name", "known"),
        [("iid", {}), ("dirichlet_balanced", {"alpha": 5.0}), ("dirichlet", {"alpha": 5.0, "min_size": 9})],
    )
    def test_another_partition_keeps_what_both_know(self, name, known):
        partition = compose(TINY, "fedavg", [f"partition.name={name}"]).partition
        assert partition == {"name": name, "clients": 4, **known}

    @pytest.mark.parametrize("override", ["partition.clients=5", "partition.alpha=3", "partition.name=blocks"])
    def test_centralized_is_one_client_whatever_the_scenarios_clients(self, override):
        config = compose("digits", "centralized", [override])
        assert config.partition == {"name": "iid", "clients": 1}
        assert identity(config) == identity(compose("digits", "centralized"))


UNKNOWN = [
    ("fedavg", "trainning.epochs=1", "'trainning' (did you mean 'training'?)"),
    ("fedavg", "federation.round=3", "'federation.round' (did you mean 'rounds'?)"),
    ("fedavg", "data.option.examples=5", "'data.option' (did you mean 'options'?)"),
    ("fedavg", "evaluation.protocol=[knn/v1]", "'evaluation.protocol' (did you mean 'protocols'?)"),
    ("ssd", "method.alpa=5", "'method.alpa' (did you mean 'alpha'?)"),
    ("fedavg", "objective.temprature=1", "'objective.temprature' (did you mean 'temperature'?)"),
    ("fedavg", "optimizer.momentun=0.1", "'optimizer.momentun' (did you mean 'momentum'?)"),
    ("fedavg", "optimizer.zzz=1", "'optimizer.zzz'; torch.optim.SGD has: "),
    ("fedavg", "encoder.width=[1,2]", "'encoder.width' (did you mean 'widths'?)"),
    ("fedavg", "heads.projecter=[8,8]", "'heads.projecter' (did you mean 'projector'?)"),
    ("fedavg", "partition.alfa=1", "'partition.alfa' (did you mean 'alpha'?)"),
    ("fedavg", "views.crop_scal=[0.5,1.0]", "'views.crop_scal' (did you mean 'crop_scale'?)"),
]


class TestUnknownKeys:
    @pytest.mark.parametrize(("method", "override", "words"), UNKNOWN, ids=[line[1] for line in UNKNOWN])
    def test_the_nearest_known_one_is_named(self, tmp_path, method, override, words):
        line = refused(lambda: build_run(tmp_path, method, override))
        assert f"unknown key {words}" in line
        assert ("did you mean" in line) == ("did you mean" in words)

    @pytest.mark.parametrize(
        ("path", "content", "line"),
        [
            ("scenario/small", {"trainin": {}}, "scenario small: unknown key"),
            (
                "scenario/small",
                {"adjust": {"mine": {"training": {"epoch": 3}}}},
                "scenario small, adjust.mine: unknown",
            ),
            (
                "objective/loss",
                {"training": {"epoch": 1}},
                "objective loss: unknown key 'training.epoch' (did you mean",
            ),
            ("method/mine", {"views": {}, "sede": 1}, "method mine: unknown key"),
        ],
    )
    def test_files_are_checked_like_overrides(self, shelf, tmp_path, path, content, line):
        shelf()
        file = tmp_path / f"{path}.yaml"
        write(file, yaml.safe_load(file.read_text()) | content)
        assert line in refused(compose, "small", "mine")

    @pytest.mark.parametrize(
        ("group", "name", "near"),
        [
            ("scenario", "digts", "digits"), ("method", "fedavgg", "fedavg"), ("suite", "digit", "digits"),
            ("objective", "simclrr", "simclr"),
        ],
    )  # fmt: skip
    def test_names(self, group, name, near):
        line = refused(read, group, name)
        assert f"unknown {group} {name!r} (did you mean {near!r}?)" in line
        assert ".yaml" in line


ADAMW, SMALL = "optimizer.class=torch.optim.AdamW", "{small: {class: methods.networks.vit, clients: [1, 2]}}"


class TestNames:
    @pytest.mark.parametrize(
        ("words", "scenario", "row"),
        [
            ("ssd", "", "ssd"),
            ("ssd method.alpha=5", "", "ssd+alpha=5"),
            ("ssd optimizer.lr=0.1 method.alpha=5", "", "ssd+alpha=5+optimizer.lr=0.1"),
            ("ssd federation.rounds=3", "+federation.rounds=3", "ssd"),
            ("ssd training.epochs=2 method.alpha=5", "+training.epochs=2", "ssd+alpha=5"),
            ("fedavg objective=byol", "", "fedavg-byol"),
            ("fedavg objective=byol objective.momentum=0.9", "", "fedavg-byol+objective.momentum=0.9"),
            ("fedavg optimizer.momentum=0.3", "", "fedavg+optimizer.momentum=0.3"),
            ("fedavg objective.temperature=0.3", "", "fedavg+objective.temperature=0.3"),
            ("fedavg 'heads.projector=[8, 4]'", "", "fedavg+heads.projector=_8_4_"),
            ("fedavg encoder.widths=[8,4]", "+encoder.widths=_8_4_", "fedavg"),
            ("fedavg row=mine scenario=digits+ours seed=3 method.weighting=clients", "+ours", "mine"),
            ("fedavg seed=3 evaluation.every=1", "", "fedavg"),
            ("fedavg optimizer.lr=0.05 optimizer.momentum=0.5", "", "fedavg+optimizer.momentum=0.5"),
            ("fedavg partition.alpha=0.1 data.name=digits training.steps=null", "", "fedavg"),
            ("ssd method.variant=null", "", "ssd+variant=null"),
            (f"fedavg {ADAMW} optimizer.lr=0.05", "", f"fedavg+{ADAMW}+optimizer.lr=0.05"),
            (
                "centralized partition.alpha=1 partition.clients=5",
                "+partition.alpha=1+partition.clients=5",
                "centralized",
            ),
            ("fedsc privacy.epsilon=10 method.sigma=0.1", "", "fedsc+sigma=0.1+privacy.epsilon=10.0"),
            ("fedavg 'encoder={class: methods.networks.vit, depth: 2}'", "+encoder=vit-depth=2", "fedavg"),
            (f"fedavg 'federation.encoders={SMALL}'", "+federation.encoders=small-vit-clients=1_2", "fedavg"),
            ("fedavg 'encoder={width: 8}'", "+encoder=width=8", "fedavg"),
            ("fedavg 'optimizer={class: torch.optim.Adam, lr: 0.1}'", "", "fedavg+optimizer=Adam-lr=0.1"),
            ("fedavg objective.projector=[64,64]", "", "fedavg+objective.projector=_64_64_"),
        ],
    )
    def test_a_changed_run_never_stands_in_for_the_official_one(self, words, scenario, row):
        method, *overrides = shlex.split(words)
        composed = compose("digits", method, overrides)
        assert (composed.scenario, composed.row) == (f"digits{scenario}", row)

    @pytest.mark.parametrize("value", ["10", "10.0"])
    def test_a_run_of_the_official_name_is_the_official_run(self, value):
        """An override equal to the shipped value is left out of the name only if the run is the same without it."""
        official, given = compose("digits", "ssd"), compose("digits", "ssd", [f"method.alpha={value}"])
        assert (given.row == official.row) == (identity(given) == identity(official))
        assert compose("cifar10-micro", "fedavg").training.epochs == 1  # epochs take the steps away
        assert compose("cifar10-micro", "fedavg", ["training.epochs=1"]).scenario == "cifar10-micro+training.epochs=1"

    @pytest.mark.parametrize(("group", "name"), [("scenario", "digits"), ("method", "ssd"), ("objective", "byol")])
    def test_a_file_with_the_name_of_a_shipped_one_is_taken_as_long_as_it_says_the_same(self, tmp_path, group, name):
        shipped, own = CONFIGS / group / f"{name}.yaml", tmp_path / f"{name}.yaml"
        own.write_text(shipped.read_text())
        read(group, str(own))
        own.write_text(f"{shipped.read_text()}\nthreads: 3\n")
        with pytest.raises(
            ConfigError, match=f"{own} has the name of the shipped {group} '{name}', .*: give {name}, or"
        ):
            read(group, str(own))

    @pytest.mark.parametrize("scenario", ["digits", "cifar10-micro", "icons"])
    def test_a_source_of_a_package_is_not_taken_for_a_shipped_one(self, monkeypatch, scenario):
        name = compose(scenario, "fedavg").data.name
        theirs = {each: files.Plugin("theirs.Images", "theirs") for each in (name, "other")}
        monkeypatch.setattr(files, "plugins", lambda group: theirs if group == "sources" else {})
        assert compose(scenario, "fedavg").data.name == name
        assert compose(scenario, "fedavg", ["data.name=other"]).data["class"] == "theirs.Images"

    def test_runtime_keys_change_no_name(self):
        typed = {"devices": 2, "nodes": 1, "threads": 1, "logger": "csv", "accelerator": "cpu", "data.download": True}
        typed |= {"data.verify": True, "executor": "parallel", "lanes": 2, "minutes": 1.5, "compile": False}
        typed |= {"deterministic": True, "log_clients": True, "costs": True}
        values = {key: typed.get(key, "x") for key in identity_module.RUNTIME}
        composed = compose("digits", "fedavg", [f"{key}={value}" for key, value in values.items()])
        assert {key: OmegaConf.select(composed, key) for key in identity_module.RUNTIME} == values
        assert (composed.scenario, composed.row) == ("digits", "fedavg")

    def test_a_run_lives_by_scenario_row_and_seed(self, tmp_path):
        composed = compose("digits", "ssd", ["method.alpha=5", "seed=2", f"output={tmp_path}"])
        assert folder(composed) == tmp_path / "digits" / "ssd+alpha=5" / "seed2"


def leaf_keys(content: dict, prefix: str = "") -> list[str]:
    keys = []
    for key, value in content.items():
        keys += leaf_keys(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]
    return keys


SSD = compose("digits", "ssd")
KEYS = leaf_keys(OmegaConf.to_container(SSD))
ADDED = ["method.variant=paper", "method.weighting=clients"]


class TestIdentity:
    @pytest.mark.parametrize("key", KEYS)
    def test_every_key_that_is_not_runtime_counts(self, key):
        changed = copy.deepcopy(SSD)
        OmegaConf.update(changed, key, "something else")
        free = identity_module.part_of(key) in identity_module.OUTSIDE
        assert (identity(changed) == identity(SSD)) == free
        assert (differences(SSD, changed) == []) == free

    def test_a_newer_setting_counts_only_with_another_value_than_earlier_runs_had(self):
        config = compose("digits", "ssd")
        assert not {"data.limit", "encoder.weights", "privacy.mechanism"} & settings(config).keys()
        for override in ("training.drop_last=true", "training.views=separate"):
            changed = compose("digits", "ssd", [override])
            assert identity(changed) != identity(config)
            assert settings(changed).keys() - settings(config).keys() == {override.partition("=")[0]}

    def test_it_survives_the_file_and_does_not_depend_on_the_order_of_overrides(self, tmp_path):
        one, other = (compose("digits", "ssd", words) for words in (ADDED, ADDED[::-1]))
        assert identity(one) == identity(other) != identity(compose("digits", "ssd", ADDED[:1]))
        save(SSD, tmp_path / "config.yaml")
        again = load(tmp_path / "config.yaml")
        assert again == SSD
        assert identity(again) == identity(SSD)

    def test_differences_name_both_values(self):
        assert differences(SSD, merge(SSD, ["optimizer.lr=0.5", "threads=1"])) == ["optimizer.lr: 0.05 -> 0.5"]


class TestThirdParty:
    """A user's own scenario, method or objective is a YAML file at any path."""

    def test_files_by_path(self, tmp_path):
        method = write(tmp_path / "ours.yaml", {"objective": "byol", "method": {"class": "methods.fedavg.FedAvg"}})
        composed = compose(TINY, method, ["method.weighting=clients"])
        assert (composed.scenario, composed.row) == ("tiny", "ours+weighting=clients")
        assert composed.objective["class"] == "methods.objectives.byol.BYOL"

    def test_an_objective_by_path(self, tmp_path):
        objective = write(tmp_path / "loss.yaml", {"objective": {"class": "methods.objectives.simsiam.SimSiam"}})
        run = build_run(tmp_path / "x", "fedavg", f"objective={objective}")
        assert run.config.objective["class"] == "methods.objectives.simsiam.SimSiam"
        assert run.folder.parent == tmp_path / "x" / "runs" / "tiny" / "fedavg-loss"

    def test_a_file_that_is_no_config(self, tmp_path):
        assert "no file nowhere/mine.yaml" in refused(compose, "nowhere/mine.yaml", "fedavg")
        file = tmp_path / "config.yaml"
        for text in ("a: [1", "- a\n- b\n", "a: *b", "seed: three\n", "sede: 3\n"):
            file.write_text(text)
            assert "config.yaml" in refused(compose, str(file), "fedavg")
            refused(load, file)
        file.write_text("")  # the defaults
        assert compose(str(file), "fedavg").federation == OmegaConf.structured(schema.FederationConfig)


INVALID = [
    "federation.participation=0", "federation.participation=1.5", "federation.rounds=-1", "federation.rounds=three",
    "federation.rounds=2.5", "federation.batch_norm=none", "training.batch_size=1", "training.batch_size=null",
    "training.clip_norm=-1", "training.precision=fp16", "schedule.name=cosin", "schedule.milestones=3", "devices=0",
    "devices=two", "devices=1.5", "devices=true", "nodes=0",
    "logger=tensorboard", "seed=-1", "data=digits", "row=../../elsewhere", "row=/tmp/x", "row=.hidden", "scenario=a b",
]  # fmt: skip


ENCODERS = {"small": "'small'", "[1]": "[1]", "[]": "[]", "'{a: 5}'": "{'a': 5}"}
"""What `federation.encoders` cannot be -> what the error calls it."""


class TestValues:
    @pytest.mark.parametrize("override", INVALID)
    def test_what_cannot_be_is_refused_by_name(self, override):
        assert override.partition("=")[0] in refused(compose, TINY, "fedavg", [override])

    def test_a_section_is_no_single_value(self, tmp_path):
        for section in ("partition", "views", "encoder", "heads", "method", "optimizer"):
            assert section in refused(lambda: build_run(tmp_path, "fedavg", f"{section}=3"))  # noqa: B023

    @pytest.mark.parametrize(
        "override",
        [
            "partition.name=dirichlett", "partition.clients=four", "partition.alpha=much", "encoder.class=convnet",
            "encoder.class=methods.networks.convnett", "encoder.norm=layer", "encoder.widths=[8]", "optimizer.lr=-1",
            "optimizer.lr=fast", "objective.temperature=high", "optimizer.nesterov=maybe", "encoder.widths=8",
            "partition.labels=[1]", "method.class=methods.nowhere.X", "objective.class=methods.objectives.nowhere.X",
        ],
    )  # fmt: skip
    def test_what_cannot_be_built_is_the_users_mistake(self, tmp_path, override):
        """Errors are of the package's own classes, which the command line shows in one line."""
        with pytest.raises(ValueError, match=override.partition(".")[0]) as error:
            build_run(tmp_path, "fedavg", override)
        assert type(error.value).__module__.partition(".")[0] in ("benchmark", "datamodules", "methods")
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("value", "hint", "holds"),
        [
            (1, float, True), (True, float, False), ("1", float, False), (1.0, int, False), (None, float | None, True),
            ([1, 2], Sequence[int], True), ([1, "a"], tuple[int, ...], False), (3, Sequence[int], False),
            ("x", Any, True), (0.1, float | torch.Tensor, True), ("x", float | torch.Tensor, False),
        ],
    )  # fmt: skip
    def test_types(self, value, hint, holds):
        assert fits(value, hint) is holds

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ("seed", "'seed' is not an override"),
            ("optimizer.lr=[1", "cannot read optimizer.lr=[1: "),
            *(
                (
                    f"federation.encoders={given}",
                    f"federation.encoders={shown}: give {{NAME: {{class: ..., clients: [...]}}",
                )
                for given, shown in ENCODERS.items()
            ),
            ("optimizer.lr=1 optimizer.lr=2", "optimizer.lr is given twice"),
            ("objective=byol objective=simclr", "objective is given twice"),
            ("training.steps=3 training.epochs=2", "give one of them"),
            ("optimizer.lr=${nothing}", "optimizer.lr: Interpolation key 'nothing' not found"),
            ("training.epochs=${output}", "training.epochs='runs': give a whole number"),
            ("output=", "output=None: give a text"),
            ("'objective={name: byol}'", "objective={'name': 'byol'}: give a name"),
        ],
    )
    def test_what_cannot_be_meant(self, words, line):
        assert line in refused(compose, "digits", "fedavg", shlex.split(words))

    def test_an_interpolation_has_the_type_of_its_key(self):
        assert compose("digits", "fedavg", ["data.name=${seed}"]).data.name == "0"

    def test_a_name_that_no_folder_could_have_is_cut_and_told_apart_by_a_hash(self):
        widths = ",".join(["8"] * 60)
        names = [compose(TINY, "fedavg", [f"heads.projector=[{widths},{width}]"]).row for width in (4, 5)]
        assert all(len(name) < 140 for name in names)
        assert names[0] != names[1]
        assert names[0].startswith("fedavg+heads.projector=_8_8_8")

    def test_merge_validates(self):
        assert "seed" in refused(merge, SSD, ["seed=-1"])
        assert "'sed' (did you mean 'seed'?)" in refused(merge, SSD, ["sed=1"])


def test_every_shipped_config_composes_and_names_itself():
    pairs = [("digits", method) for method in available("method")]
    pairs += [(scenario, "fedavg") for scenario in available("scenario")]
    for scenario, method in pairs:
        composed = compose(scenario, method)
        assert (composed.scenario, composed.row) == (scenario, method)
        locate(composed.method, "method")
        locate(composed.objective, "objective")
    for group in ("scenario", "method", "objective", "suite"):
        assert all(summary(group, name) for name in available(group))
