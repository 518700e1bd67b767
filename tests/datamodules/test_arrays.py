import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from datamodules import sources
from datamodules.errors import DataError
from datamodules.pictures import as_image
from tests.datamodules.own_data import RNG, picture

IMAGES = RNG.integers(0, 256, (12, 6, 6, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3
FIRST = IMAGES.transpose(0, 3, 1, 2)


def load(tmp_path: Path, name: str = "mine", **given):
    return sources.load(name, root=tmp_path, cache=tmp_path / "cache", **given)


class TestNumpy:
    def test_an_archive_and_a_folder_of_files_are_the_same_data(self, tmp_path):
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
    def test_layouts_of_images(self, tmp_path, images):
        np.savez(tmp_path / "mine.npz", train_images=images)
        mine = load(tmp_path)
        assert mine.train.images.shape[1:] in ((3, 6, 6), (1, 6, 6))
        assert not mine.labelled
        assert mine.notes == (sources.HELD_OUT,)

    def test_labels_may_be_names(self, tmp_path):
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
    def test_other_arrays_are_one_line(self, tmp_path, content, line):
        np.savez(tmp_path / "mine.npz", **content)
        with pytest.raises(DataError, match=line) as error:
            load(tmp_path)
        assert "\n" not in str(error.value)

    def test_a_file_that_is_no_archive(self, tmp_path):
        (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 no archive")
        with pytest.raises(DataError, match="cannot be read as arrays"):
            load(tmp_path)


class TestHuggingFace:
    @pytest.fixture
    def stored(self, tmp_path):
        content = {
            "img": [Image.fromarray(image) for image in IMAGES],
            "kind": LABELS.tolist(),
            "writer": [f"w{k % 4}" for k in range(12)],
        }
        label = datasets.ClassLabel(names=["ant", "bee", "cow"])
        features = datasets.Features({"img": datasets.Image(), "kind": label, "writer": datasets.Value("string")})
        whole = datasets.Dataset.from_dict(content, features=features)
        datasets.DatasetDict({"train": whole.select(range(8)), "test": whole.select(range(8, 12))}).save_to_disk(
            str(tmp_path / "mine")
        )
        whole.save_to_disk(str(tmp_path / "whole"))
        return tmp_path

    def test_columns_are_those_of_images_and_class_labels(self, stored):
        mine = load(stored, options={"client": "writer"})
        assert mine.classes == ("ant", "bee", "cow")
        assert np.array_equal(mine.train.images, FIRST[:8])
        assert mine.test.labels.tolist() == LABELS[8:].tolist()
        assert mine.train.clients.tolist() == [f"w{k % 4}" for k in range(8)]
        assert load(stored, "whole").notes == (sources.HELD_OUT,)

    def test_images_that_are_only_paths_are_not_opened(self, tmp_path):
        """The library would read any file, or fetch an address."""
        Image.fromarray(IMAGES[0]).save(tmp_path / "secret.png")
        plain = datasets.Features({"img": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}})
        rows = {"img": [{"bytes": None, "path": str(tmp_path / "secret.png")}] * 9}
        datasets.Dataset.from_dict(rows, features=plain).save_to_disk(str(tmp_path / "mine"))
        info = tmp_path / "mine" / "dataset_info.json"
        content = json.loads(info.read_text())
        content["features"]["img"] = {"_type": "Image"}  # saving images as such would store their bytes
        info.write_text(json.dumps(content))
        assert datasets.load_from_disk(str(tmp_path / "mine"))[0]["img"].size == (6, 6)  # the library opens it
        with pytest.raises(DataError, match="has no bytes, only a path"):
            load(tmp_path)

    def test_labels_numbered_in_another_way_in_test_are_refused(self, tmp_path):
        def split(names):
            label = datasets.ClassLabel(names=names)
            features = datasets.Features({"img": datasets.Image(), "kind": label})
            content = {"img": [Image.fromarray(image) for image in IMAGES[:4]], "kind": [0, 1, 0, 1]}
            return datasets.Dataset.from_dict(content, features=features)

        folder = tmp_path / "mine"
        for name, names in (("train", ["a", "b"]), ("test", ["b", "a"])):
            split(names).save_to_disk(str(folder / name))
        (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        with pytest.raises(DataError, match="are numbered in other ways"):
            load(tmp_path)

    def test_a_column_that_is_not_there(self, stored):
        with pytest.raises(DataError, match=r"data\.options\.client='author': the columns of .* are img, kind, writer"):
            load(stored, options={"client": "author"})
        with pytest.raises(DataError, match="its options are image, label, client"):
            load(stored, options={"examples": 3})


class Shapes(Dataset):
    """Pictures with a label, as torchvision's data sets are made."""

    def __init__(self, root: str, train: bool = True, wide: bool = False) -> None:
        rows = slice(0, 8) if train else slice(8, 12)
        self.images, self.targets, self.classes = IMAGES[rows], LABELS[rows].tolist(), ["ant", "bee", "cow"]
        self.clients = [f"c{k % 2}" for k in range(len(self.images))]
        self.wide = wide

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int):
        return Image.fromarray(self.images[index]), self.targets[index]


class Plain(Dataset):
    """Images alone, as floats; the sums of their pixels decide which data set it is."""

    scale = 1.0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1, 4, 4), self.scale * index / 10)


class TestTorch:
    def test_images_labels_classes_and_clients(self, tmp_path):
        mine = load(tmp_path, "shapes", dataset=(Shapes, {"root": "x"}))
        assert mine.classes == ("ant", "bee", "cow")
        assert np.array_equal(mine.train.images, FIRST[:8])
        assert mine.test.labels.tolist() == LABELS[8:].tolist()
        assert mine.train.clients.tolist() == [f"c{k % 2}" for k in range(8)]

    def test_images_alone_as_floats_and_a_cache_that_follows_the_content(self, tmp_path, monkeypatch):
        mine = load(tmp_path, "plain", dataset=(Plain, {}))
        assert not mine.labelled
        levels = np.concatenate([mine.train.images, mine.test.images])[:, 0, 0, 0]
        assert sorted(levels) == [round(255 * np.float32(k / 10)) for k in range(10)]
        monkeypatch.setattr(Plain, "scale", 0.5)
        assert load(tmp_path, "plain", dataset=(Plain, {})).train.images.max() < 128

    def test_other_labels_of_the_same_images_are_another_data_set(self, tmp_path, monkeypatch):
        before = load(tmp_path, "shapes", dataset=(Shapes, {"root": "x"}))
        monkeypatch.setattr(sys.modules[__name__], "LABELS", (LABELS + 1) % 3)
        after = load(tmp_path, "shapes", dataset=(Shapes, {"root": "x"}))
        assert after.train.labels.tolist() == ((before.train.labels + 1) % 3).tolist()
        assert after.sha256 != before.sha256

    def test_classes_in_another_order_in_test_are_refused(self, tmp_path):
        class Turned(Shapes):
            def __init__(self, root: str, train: bool = True) -> None:
                super().__init__(root, train)
                self.classes = self.classes if train else self.classes[::-1]

        with pytest.raises(DataError, match="train and test have other `classes`"):
            load(tmp_path, "turned", dataset=(Turned, {"root": "x"}))

    def test_an_error_of_its_own_is_one_line(self, tmp_path):
        class Broken(Plain):
            def __getitem__(self, index: int) -> torch.Tensor:
                raise KeyError("x")

        with pytest.raises(DataError, match="Broken, item 0 cannot be read: KeyError: 'x'"):
            load(tmp_path, "broken", dataset=(Broken, {}))

    @pytest.mark.parametrize(
        ("dataset", "line"),
        [
            ((Shapes, {"root": "x", "tall": 1}), r"data\.options\.tall: .*Shapes has root, train, wide"),
            ((Shapes, {}), "Shapes cannot be made without its argument root: set data.options.root"),
            ((lambda: TensorDataset(torch.randn(9, 3, 4, 4)), {}), "before normalisation"),
            ((lambda: TensorDataset(torch.rand(9, 4)), {}), r"uint8 \[4\]"),
            ((lambda: TensorDataset(torch.rand(9, 3, 4, 4), torch.rand(9)), {}), "a label is no whole number"),
            ((list, {}), "builtins.list has no item in train"),
        ],
    )
    def test_other_datasets_are_one_line(self, tmp_path, dataset, line):
        with pytest.raises(DataError, match=line) as error:
            load(tmp_path, dataset=dataset)
        assert "\n" not in str(error.value)

    def test_images_of_every_usual_type(self):
        colour = picture((5, 4))
        grey = picture((5, 4), channels=1)
        same = [colour, Image.fromarray(colour), colour.transpose(2, 0, 1), torch.from_numpy(colour)]
        for image in same:
            assert np.array_equal(as_image(image, "it").values, colour.transpose(2, 0, 1))
        for image in (grey, Image.fromarray(grey), grey[None], grey[..., None], torch.from_numpy(grey / 255)):
            assert np.array_equal(as_image(image, "it").values, grey[None])
        with pytest.raises(DataError, match=r"it cannot be read \(its pixels are numbers of 32 bits"):
            as_image(Image.fromarray(np.ones((3, 3), dtype=np.float32)), "it")
