"""Feature shift: each transform against another library or by hand, and who has which."""

import re

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from datamodules.errors import PartitionError
from datamodules.shift import shifted, transform
from datamodules.sources import Source, Split
from tests.datamodules.own_data import bytes_of, refused

IMAGES = bytes_of((5, 3, 9, 9))
NAMES = ["none", "invert", "rotate-90"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("none", IMAGES), ("invert", 255 - IMAGES), *((f"rotate-{90 * k}", IMAGES.rot90(k, (2, 3))) for k in (1, 2, 3)),
     ("rotate-30", functional.rotate(IMAGES, 30)),
     ("blur-1.5", functional.gaussian_blur(IMAGES, [11, 11], [1.5, 1.5]))],
)  # fmt: skip
def test_a_transform_is_what_its_name_says(name, expected):
    made = transform(name)(IMAGES)
    assert made.dtype == torch.uint8
    if name.startswith("blur"):
        assert (made.int() - expected.int()).abs().max() <= 1  # torchvision rounds in another order
    else:
        assert torch.equal(made, expected)


def test_a_large_blur_of_a_small_image_is_nearly_flat():
    made = transform("blur-300")(IMAGES).float()
    assert made.std(dim=(2, 3)).max() < 0.2 * IMAGES.float().std(dim=(2, 3)).min()


@pytest.mark.parametrize(
    "name", ["", "rot-90", "rotate", "rotate-x", "rotate-1e9", "blur-0", "blur", "invert-1", "None"]
)
def test_another_name_is_one_line(name):
    with refused(re.escape(f"{name!a} is no transform: give none, invert, rotate-DEGREES"), PartitionError):
        transform(name)


def source(count: int = 60, tests: int = 30) -> Source:
    train, test = (Split(bytes_of((n, 1, 6, 6), n).numpy(), np.arange(n) % 2) for n in (count, tests))
    return Source("mine", train, test, ("a", "b"), "hash")


def groups_of(before: np.ndarray, after: np.ndarray) -> list[int]:
    """The transform by which each image was made of its original."""
    made = [transform(name)(torch.from_numpy(before)).numpy() for name in NAMES]
    return [
        next(k for k, each in enumerate(made) if np.array_equal(each[row], after[row])) for row in range(len(after))
    ]


def test_clients_are_in_groups_in_turn_and_test_images_name_theirs():
    whole, parts = source(), [np.arange(k, 40, 5) for k in range(5)]
    made = shifted(whole, parts, NAMES, seed=0)
    groups = groups_of(whole.train.images, made.train.images)
    assert [{groups[row] for row in part} for part in parts] == [{0}, {1}, {2}, {0}, {1}]
    assert set(groups[40:]) == {0, 1, 2}  # of no client
    assert made.test.clients.tolist() == [NAMES[k] for k in groups_of(whole.test.images, made.test.images)]
    assert np.unique(made.test.clients, return_counts=True)[1].tolist() == [10, 10, 10]
    again, other = (shifted(whole, parts, NAMES, seed=seed).test.clients for seed in (0, 1))
    assert again.tolist() == made.test.clients.tolist() != other.tolist()


def test_one_client_of_all_images_has_all_groups():
    whole = source()
    made = shifted(whole, [np.arange(60)], NAMES, seed=0)
    assert np.bincount(groups_of(whole.train.images, made.train.images)).tolist() == [20, 20, 20]
