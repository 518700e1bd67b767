import numpy as np
import pytest

from datamodules import sources
from tests.datamodules.own_data import RNG, load, refused

IMAGES = RNG.integers(0, 256, (12, 6, 6, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3
FIRST = IMAGES.transpose(0, 3, 1, 2)


def test_an_archive_and_a_folder_of_files_are_the_same_data(tmp_path):
    content = {"train_images": IMAGES[:8], "train_labels": LABELS[:8], "test_images": IMAGES[8:]}
    content |= {"test_labels": LABELS[8:], "train_clients": np.array(list("aabbccdd"))}
    np.savez(tmp_path / "mine.npz", **content)
    (tmp_path / "folder").mkdir()
    for key, value in content.items():
        np.save(tmp_path / "folder" / f"{key}.npy", value)
    one, other = load(tmp_path), load(tmp_path, "folder")
    assert one.sha256 == other.sha256
    assert one.classes == ("0", "1", "2")
    assert np.array_equal(one.train.images, FIRST[:8])
    assert one.train.clients.tolist() == other.train.clients.tolist() == list("aabbccdd")


@pytest.mark.parametrize("images", [IMAGES, FIRST, IMAGES[..., 0], IMAGES[..., :1]])
def test_layouts_of_images(tmp_path, images):
    np.savez(tmp_path / "mine.npz", train_images=images)
    mine = load(tmp_path)
    assert mine.train.images.shape[1:] in ((3, 6, 6), (1, 6, 6))
    assert not mine.labelled
    assert mine.notes == (sources.HELD_OUT,)


def test_labels_may_be_names(tmp_path):
    np.savez(tmp_path / "mine.npz", train_images=IMAGES, train_labels=np.array(["dog", "cat"] * 6)[:, None])
    mine = load(tmp_path)
    assert mine.classes == ("cat", "dog")
    assert len(mine.test.labels) == 2


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"images": IMAGES}, "has an array 'images': the arrays are train_images"),
        ({"test_images": IMAGES}, "has no array train_images"),
        ({"train_images": IMAGES / 255}, "is float64: give uint8"),
        ({"train_images": IMAGES[0, 0]}, r"has shape \[6, 3\]"),
        ({"train_images": IMAGES, "train_labels": LABELS[:5]}, "give 12 whole numbers or texts"),
        ({"train_images": IMAGES, "train_labels": LABELS / 2}, "give 12 whole numbers or texts"),
        ({"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES}, "test has none"),
        (
            {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES, "test_labels": LABELS + 1},
            "label 3 of test is none of train's classes",
        ),
        ({"train_images": np.array([None])}, "cannot be read as arrays without objects"),
    ],
)
def test_other_arrays_are_one_line(tmp_path, content, line):
    np.savez(tmp_path / "mine.npz", **content)
    with refused(line):
        load(tmp_path)


def test_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 no archive")
    with refused("cannot be read as arrays"):
        load(tmp_path)
