"""Every shipped scenario agrees with its first line, and can be built at its full size."""

import math
from functools import cache
from itertools import groupby

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available, read, summary
from benchmark.configuration.suites import suite
from benchmark.experiment import factory
from benchmark.experiment.experiment import Experiment
from benchmark.tracking.progress import Display
from datamodules.rebuilt import listed
from datamodules.sources import Source, Split

CLASSES = {"cifar100": 100, "tiny-imagenet": 200}
DEVICE = "orchestra/cifar10-cross-device"
PAPERS = [name for name in available("scenario") if "/" in name]


@cache
def black(name, channels, size, classes):
    """50,000 black training and test images in the shape of the data set, equally many of each class."""
    shape = (50_000 // classes * classes, channels, size, size)
    images = np.broadcast_to(np.zeros((1, *shape[1:]), dtype=np.uint8), shape)
    labels = np.repeat(np.arange(classes), 50_000 // classes)
    split = Split(images, labels, np.char.mod("writer-%d", np.arange(len(labels)) % 100))
    return Source(name, split, split, tuple(map(str, range(classes))), "")


def source(config):
    channels = config.data.channels or (
        1 if config.data.name in ("digits", "domains", "fashion_mnist", "typefaces", "icons") else 3
    )
    size = config.data.image_size or {"digits": 8, "domains": 8, "fashion_mnist": 28, "typefaces": 28}.get(
        config.data.name, 32
    )
    return black(config.data.name, channels, size, CLASSES.get(config.data.name, 10))


def built_alike(name):
    """What the networks, losses and views of a scenario are built from."""
    config = OmegaConf.to_container(compose(name, "fedavg"), resolve=True)
    keys = ("encoder", "heads", "objective", "method", "views", "data")
    return repr([*(config[key] for key in keys), config["training"]["views"]])


def test_every_scenario_can_be_built(monkeypatch):
    """Scenarios that are built alike share one method; each has its own partition and batches."""
    monkeypatch.setattr("datamodules.federated.CHUNK", 2)  # views of the two images alone
    for _, alike in groupby(sorted(available("scenario"), key=built_alike), built_alike):
        check_built([*alike])


def check_built(names):
    """The networks of these scenarios have the loss of equal views on black images."""
    configs = [compose(name, "fedavg") for name in names]
    images = source(configs[0])
    method = factory.method(configs[0], images)
    # a batch no client could fill would be refused
    data, *_ = [factory.data(config, images, method) for config in configs]
    batch = next(iter(data.batches(0, method.views(method.plan(0)[0]), 2, order=None, views=method.stream)))
    method.eval()
    # all views of black images are equal, so that every candidate is as likely as the positive
    candidates = {"one-way": 2, "itself": 4}.get(configs[0].objective.get("form"), 3)
    assert float(method.training_step(batch)["loss"].detach()) == pytest.approx(math.log(candidates), rel=1e-4), names


def few(config):
    """Overrides that reduce a paper's run to few images, steps and rounds; networks and losses are unchanged."""
    classes, (channels, size) = CLASSES.get(config.data.name, 10), source(config).train.images.shape[1:3]
    images = max(40 * config.partition.clients, 6 * classes) / config.partition.get("share", 1.0)
    words = ["data.name=synthetic", f"data.options.channels={channels}", f"data.image_size={size}"]
    words += [f"data.options.examples={round(images)}", f"data.options.classes={classes}", "evaluation.every=0"]
    words += ["federation.rounds=2", "training.steps=1", "training.batch_size=8", "evaluation.protocols=[]"]
    words += ["partition.min_size=2"] if config.partition.name in ("dirichlet", "dirichlet_min") else []
    if config.method["name"].startswith("flesd"):  # the few public images are no more than a batch
        words += ["method.distil_epochs=1", "method.fill_anchors=false"]
    return words


QUICK = ("flesd/cifar10-a1",)
"""One that trains clients and the server, for every test run."""
FAST_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether the CPU multiplies in bf16; without it a scenario takes minutes at that precision."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PAPERS]
)
@pytest.mark.timeout(900)
def test_it_plays_two_rounds_at_full_model_size(name, tmp_path):
    """The paper's method in the scenario's memory layout, and at its precision where this CPU has it."""
    paper = name.partition("/")[0]
    common = [f"output={tmp_path}", f"data.cache={tmp_path}/cache", "logger=csv", "accelerator=cpu", "devices=1"]
    common += [] if FAST_BF16 else ["training.precision=32-true"]
    config = compose(name, paper, [*few(compose(name, paper)), *common])
    with Experiment(config, Display(Console(quiet=True))).open() as run:
        run.loop.fit()
    assert run.loop.round == 2
    assert all(row["loss"] is not None and row["images"] for row in run.loop.history)


@pytest.mark.parametrize("row", ["ssd", "flesd", "fedca", "orchestra"])
@pytest.mark.parametrize("name", ["icons", "typefaces"])
def test_what_depends_on_the_clients_fits_as_many_as_the_natural_set_has(name, row, tmp_path):
    """Public images, and parts of each client's own, among as many clients as are listed."""
    clients = (facts := listed(name))["clients"] - facts["held out"]
    images = np.random.default_rng(0).integers(0, 255, (8 * clients, 28, 28), dtype=np.uint8)
    place = np.arange(len(images))
    arrays = {"images": images, "labels": place % 5, "clients": np.char.mod("client %d", place // 8)}
    each = {f"{split}_{key}": part for split in ("train", "test") for key, part in arrays.items()}
    np.savez(tmp_path / f"{name}.npz", **each)
    words = [f"data.root={tmp_path}", f"data.cache={tmp_path}/cache", f"output={tmp_path}", "logger=csv"]
    words += ["accelerator=cpu", "devices=1", "training.steps=1", "training.batch_size=4", "federation.rounds=1"]
    words += ["evaluation.protocols=[]", "encoder.widths=[4,4,128]"]
    words += ["method.server_steps=5"] if row == "orchestra" else []
    with Experiment(compose(name, row, words), Display(Console(quiet=True))).open() as run:
        run.loop.fit()
    assert run.loop.history[0]["loss"] is not None
    assert len(run.loop.clients) == clients


@pytest.mark.parametrize("name", PAPERS)
def test_its_first_line_names_the_source_and_what_it_costs(name):
    line = summary("scenario", name)
    assert "GPU hour" in line
    assert any(word in line for word in ("Table", "table", "README", "no published cell"))
    config = compose(name, "fedavg")
    assert config.federation.rounds * config.training.epochs >= 100


@pytest.mark.parametrize(
    ("scenario", "method", "expected"),
    [
        ("fedx/cifar10", "fedx", {"objective.temperature": 0.1}),
        ("fedx/svhn", "fedx", {"training.batch_size": 64}),
        ("fedx/svhn", "fedu-fedx", {"training.batch_size": 64}),
        ("fedx/svhn", "fedu", {"training.batch_size": 128}),
        ("fedx/cifar10-data10", "fedx", {"partition.share": 0.1}),
        ("fedx/cifar10-r50", "fedavg", {"training.epochs": 20}),
        ("ssd/cifar100-cross-device", "ssd", {"partition.clients": 50}),
        ("ssd/cifar10-cross-silo", "feddecorr objective=align_uniform", {"method.weight": 0.01}),
        ("ssd/cifar10-cross-silo", "feddecorr", {"method.weight": None}),
        ("ssd/cifar10-cross-silo", "fedavg", {"method.weight": None}),
        ("ldawa/cifar100-e5", "ldawa", {"encoder.class": "methods.networks.resnet34"}),
        ("fedema/cifar100", "fedema", {"partition.classes_per_client": 20}),
        (DEVICE, "orchestra", {"partition.clients": 100, "objective.clusters": 32, "objective.momentum": 0.996}),
        (DEVICE, "orchestra", {"optimizer.lr": 0.003}),
        (DEVICE, "fedavg objective=simsiam", {"optimizer.lr": 0.01}),
        (DEVICE, "fedavg objective=rotation", {"views.crop_scale": None}),
        (f"{DEVICE}-alpha0.001", "orchestra", {"partition.alpha": 0.001}),
        ("orchestra/cifar10-cross-silo", "orchestra", {"training.batch_size": 256, "optimizer.lr": 0.01}),
        ("orchestra/cifar10-cross-silo", "fedavg objective=simsiam", {"optimizer.lr": 0.03}),
        ("orchestra/cifar10-cross-silo", "fedu", {"objective.momentum": 0.99}),
        ("orchestra/cifar100-cross-silo", "orchestra", {"method.local_clusters": 16, "objective.clusters": 256}),
        ("fedsc/cifar100", "fedsc", {"partition.clients": 20}),
        ("fedsc/svhn", "fedavg objective=byol", {"training.clip_norm": 1.0}),
        ("flesd/cifar10-a1", "fedavg", {"federation.rounds": 10}),
        ("flesd/cifar100-a0.01", "flesd", {"federation.rounds": 2, "training.epochs": 100}),
        ("flesd/cifar100-a100", "flesd", {"federation.rounds": 4}),
        ("flesd/cifar10-a100", "flesd-cc", {"training.epochs": 200}),
        ("flesd/tiny-imagenet-a100", "fedprox", {"objective.form": "one-way"}),
    ],
)
def test_settings_of_its_paper(scenario, method, expected):
    name, *words = method.split()
    config = compose(scenario, name, words)
    assert {key: OmegaConf.select(config, key) for key in expected} == expected


@pytest.mark.parametrize("objective", ["simclr", "byol", "moco", "protocl"])
def test_fedxs_heads_are_the_papers_over_any_objective(objective):
    config = compose("fedx/cifar10", "fedx", [f"objective={objective}"])
    method = factory.method(config, source(config))
    numbers = {name: sum(leaf.numel() for leaf in method.tensors(name).values()) for name in method.travelling}
    assert numbers.pop("encoder") == 11_168_832 + 9_600
    assert numbers.pop("projector") == 197_120  # 512-256-256 with biases, no BatchNorm
    assert set(numbers.values()) == {131_584}  # 256-256-256: FedX's predictor, and BYOL's


@pytest.mark.parametrize("scenario", [name for name in PAPERS if name.startswith("orchestra/")])
def test_orchestras_networks_are_the_codes_and_its_bank_takes_a_batch(scenario):
    config = compose(scenario, "orchestra")
    method = factory.method(config, source(config))
    assert {name: sum(each.numel() for each in method.part(name).parameters()) for name in method.travelling} == {
        "encoder": 11_168_832, "projector": 525_312, "head": 2_052,
        "target_encoder": 11_168_832, "target_projector": 525_312,
    }  # fmt: skip
    assert len(method.objective.bank) >= config.training.batch_size


def test_each_paper_is_measured_by_its_own_probe_too():
    for scenario, probe in {
        "ssd/cifar100-cross-device": "ssd/v1",
        "fedx/svhn": "fedx/v1",
        "ldawa/cifar100-e10": "ldawa/v2",
        "fedema/cifar100": "fedu/v1",
        "orchestra/cifar100-cross-silo": "orchestra-cached/v1",
        "flesd/cifar100-a1": "flesd-cached/v1",
    }.items():
        assert {"linear/v1", f"linear-{probe}"} <= set(compose(scenario, "fedavg").evaluation.protocols)


def test_flesds_tables_have_their_cells():
    """Tables 1 to 11: settings x rows; the distillations of table 11 have as many steps each."""
    tables = dict(zip("123456", (12 * 6, 3 * 12, 10 * 2, 18 * 2, 36 * 2, 12 * 2), strict=True))
    cells = {f"table{number}": count for number, count in tables.items()} | {"cases": 3 * 26}
    assert {f"flesd-{table}" for table in cells} == {name for name in available("suite") if name.startswith("flesd")}
    for table, count in cells.items():
        content = read("suite", f"flesd-{table}")
        assert len(content["scenarios"]) * len(content["methods"]) == count
    rows = [line.split() for line in content["methods"] if "distil_batch_size" in line]
    methods = [compose("flesd/cifar100-a1", name, words).method for name, *words in rows]
    steps = [method.get("distil_epochs", 200) / method.distil_batch_size for method in methods]
    assert (len(steps), len(set(steps))) == (4, 1)


@pytest.mark.parametrize("name", ["flesd-table1", "flesd-table4"])
def test_flesds_studies_keep_the_local_epochs_in_all(name):
    configs = suite(name, {"scenarios": read("suite", name)["scenarios"][:6]}, [])
    assert len({(config.scenario, config.row) for config in configs}) == len(configs)
    trained = [config for config in configs if config.method.name != "centralized"]
    assert {config.federation.rounds * config.training.epochs for config in trained} == {200}


def test_clients_by_themselves_train_200_epochs_and_with_labels_100_in_batches_of_128():
    configs = suite("flesd-table3", {"scenarios": read("suite", "flesd-table3")["scenarios"][1:2]}, [])
    trained = {each.row: (each.federation.rounds * each.training.epochs, each.training.batch_size) for each in configs}
    assert trained == {"local": (200, 1024), "local-supervised": (100, 128)}
    assert {(each.scenario, each.partition.alpha) for each in configs} == {("flesd/cifar10-a10", 10.0)}


def test_flesds_heads_are_the_papers():
    method = factory.method(config := compose("flesd/cifar10-a1", "flesd"), source(config))
    assert sum(leaf.numel() for leaf in method.tensors("projector").values()) == 328_320  # 512-512-128, no BatchNorm
