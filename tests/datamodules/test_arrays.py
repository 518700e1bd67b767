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
    one, other = load(tmp_path, order="source"), load(tmp_path, "folder", order="source")
    assert one.sha256 == other.sha256
    assert one.classes == ("0", "1", "2")
    assert np.array_equal(one.train.images, FIRST[:8])
    assert one.train.clients.tolist() == other.train.clients.tolist() == list("aabbccdd")


def test_layouts_of_images_and_names_of_labels(tmp_path):
    for images, channels in ((IMAGES, 3), (FIRST, 3), (IMAGES[..., 0], 1), (IMAGES[..., :1], 1)):
        np.savez(tmp_path / "mine.npz", train_images=images)
        mine = load(tmp_path)
        assert (mine.train.images.shape[1:], mine.labelled, mine.notes) == (
            (channels, 6, 6),
            False,
            (sources.HELD_OUT,),
        )
    np.savez(tmp_path / "mine.npz", train_images=IMAGES, train_labels=np.array(["dog", "cat"] * 6)[:, None])
    mine = load(tmp_path)
    assert (mine.classes, len(mine.test.labels)) == (("cat", "dog"), 2)


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
        ({"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES, "test_labels": LABELS + 1},
         "label 3 of test is none of train's classes"),
        ({"train_images": np.array([None])}, "cannot be read as arrays without objects"),
        (b"PK\x03\x04 no archive", "cannot be read as arrays"),
    ],
)  # fmt: skip
def test_other_arrays_are_one_line(tmp_path, content, line):
    if isinstance(content, bytes):
        (tmp_path / "mine.npz").write_bytes(content)
    else:
        np.savez(tmp_path / "mine.npz", **content)
    with refused(line):
        load(tmp_path)
