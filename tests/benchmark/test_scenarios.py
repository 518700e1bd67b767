"""Every shipped scenario is what its first line says, and can be built at its full size."""

import numpy as np
import pytest

from benchmark import build
from benchmark.compose import compose
from benchmark.shelf import available, summary
from datamodules.sources import Source, Split

CLASSES = {"cifar100": 100, "tiny-imagenet": 200}
PAPERS = [name for name in available("scenario") if "/" in name]


def source(config):
    """Some images a class, of the data set's shape."""
    channels = 1 if config.data.name in ("digits", "fashion_mnist") else 3
    classes = CLASSES.get(config.data.name, 10)
    size = config.data.image_size or {"digits": 8, "fashion_mnist": 28}.get(config.data.name, 32)
    each = 10_000 // classes
    images = np.zeros((each * classes, channels, size, size), dtype=np.uint8)
    split = Split(images, np.repeat(np.arange(classes), each))
    return Source(config.data.name, split, split, tuple(map(str, range(classes))), "")


@pytest.mark.parametrize("name", available("scenario"))
def test_it_can_be_built(name):
    config = compose(name, "fedavg", ["training.batch_size=2"])
    images = source(config)
    method = build.method(config, images)
    data = build.data(config, images, method)
    batch = next(iter(data.batches(0, method.views(method.plan(0)[0]), 2, order=None, views=method.stream)))
    method.eval()
    assert float(method.training_step(batch)["loss"].detach()) == pytest.approx(0, abs=20)


@pytest.mark.parametrize("name", PAPERS)
def test_its_first_line_names_the_source_and_what_it_costs(name):
    line = summary("scenario", name)
    assert "hours" in line or "M images" in line
    assert any(word in line for word in ("Table", "table", "README", "no published cell"))
    assert compose(name, "fedavg").federation.rounds >= 20


@pytest.mark.parametrize(
    ("scenario", "method", "key", "value"),
    [
        ("fedx/cifar10", "fedx", "objective.temperature", 0.1),
        ("fedx/svhn", "fedx", "training.batch_size", 64),
        ("fedx/cifar10-data10", "fedx", "partition.share", 0.1),
        ("fedx/cifar10-r50", "fedavg", "training.epochs", 20),
        ("ssd/cifar100-cross-device", "ssd", "partition.clients", 50),
        ("ssd/cifar10-cross-silo", "feddecorr", "method.weight", 0.01),
        ("ssd/cifar10-cross-silo", "fedavg", "method.weight", None),
        ("ldawa/cifar100-e5", "ldawa", "encoder.class", "methods.networks.resnet34"),
        ("fedema/cifar100", "fedema", "partition.classes_per_client", 20),
    ],
)
def test_a_setting_of_its_paper(scenario, method, key, value):
    from omegaconf import OmegaConf

    assert OmegaConf.select(compose(scenario, method), key) == value


def test_fedx_halves_its_heads_and_has_no_batch_norm_in_them():
    config = compose("fedx/cifar10", "fedx")
    method = build.method(config, source(config))
    numbers = {name: sum(leaf.numel() for leaf in method.tensors(name).values()) for name in ("projector", "fedx")}
    assert numbers == {"projector": 197_120, "fedx": 131_584}  # 512-256-256 and 256-256-256, biases included
