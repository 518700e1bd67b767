import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules import cache, order, sources
from datamodules.pictures import picture
from datamodules.raw import Rows, taken
from datamodules.splits import is_missing
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


class TestManyAtOnce:
    """Images that keep their size, which are not made one by one."""

    @pytest.fixture
    def made(self, tmp_path, monkeypatch):
        """Loads the arrays with some options; the number of images that were made one by one."""
        count = [0]

        def counted(image):
            count[0] += 1
            return picture(image)

        monkeypatch.setattr(cache, "picture", counted)
        monkeypatch.setattr(order, "TOGETHER", 300)  # two images

        def load(*, test=True, dtype=np.uint8, **options):
            arrays = {"train_images": IMAGES.astype(dtype), "train_labels": LABELS}
            arrays |= {"test_images": IMAGES[:5].astype(dtype), "test_labels": LABELS[:5]} if test else {}
            np.savez(tmp_path / "mine.npz", **arrays)
            count[0] = 0
            return sources.load("mine", root=tmp_path, cache=tmp_path / "cache", **options), count[0]

        return load

    @pytest.mark.parametrize("test", [True, False])
    @pytest.mark.parametrize("options", [{"order": "source"}, {}, {"channels": 1}])
    def test_they_are_those_that_are_made_one_by_one(self, made, monkeypatch, test, options):
        many, count = made(test=test, **options)
        assert count == 2  # the first image, for its size, once for each split
        monkeypatch.setattr(cache, "_together", lambda *_: None)
        few, count = made(test=test, **options)
        assert count > len(IMAGES)
        assert (many.sha256, many.in_order, many.notes) == (few.sha256, few.in_order, few.notes)
        for one, other in ((many.train, few.train), (many.test, few.test)):
            np.testing.assert_array_equal(one.images, other.images)
            np.testing.assert_array_equal(one.labels, other.labels)

    @pytest.mark.parametrize("options", [{"image_size": 4}, {"dtype": np.uint16}])
    def test_others_are_made_one_by_one(self, made, options):
        source, count = made(**options)
        assert count > len(IMAGES)
        assert source.train.images.shape == (12, 3, *[options.get("image_size", 6)] * 2)

    def test_a_split_of_another_size_is_refused(self, tmp_path):
        np.savez(tmp_path / "mine.npz", train_images=IMAGES, test_images=IMAGES[:, :4, :4])
        with refused("differ in size: train image 0 is 6 x 6 and test image 0 is 4 x 4"):
            sources.load("mine", root=tmp_path, cache=tmp_path / "cache", order="source")


@given(st.permutations(range(9)), st.data())
def test_rows_of_an_array_are_the_array_in_that_order(permuted, data):
    chosen = data.draw(st.permutations(range(9)))[:5]
    rows = taken(taken(np.arange(9) * 10, permuted), chosen)
    assert isinstance(rows, Rows)
    assert list(rows) == rows[:].tolist() == [permuted[k] * 10 for k in chosen]
    assert taken([k * 10 for k in range(9)], chosen) == [k * 10 for k in chosen]


def test_a_label_of_numpy_below_0_is_missing():
    assert [is_missing(of(-1)) for of in (np.int64, np.int8, np.float32)] == [True] * 3
    assert [is_missing(label) for label in (np.float32("nan"), np.int64(0))] == [True, False]
