"""Columns of a Hugging Face data set: each type is read, or refused in one line that names the column."""

import io
import json

import datasets
import numpy as np
import pytest
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, List, Value
from datasets import Image as ImageFeature
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datamodules import sources
from datamodules.hub import HuggingFace
from tests.datamodules.own_data import load, refused

generated = settings(derandomize=True, deadline=None, max_examples=25)
PICTURES = [Image.fromarray(np.full((4, 4), k, dtype=np.uint8)) for k in range(9)]
NAMES = ["ant", "bee", "cow"]
READ = {
    "class": (ClassLabel(names=NAMES), lambda k: k, tuple(NAMES)),
    "string": (Value("string"), lambda k: NAMES[k], tuple(NAMES)),
    "large_string": (Value("large_string"), lambda k: NAMES[k], tuple(NAMES)),
    "int64": (Value("int64"), lambda k: k + 5, ("5", "6", "7")),
    "uint8": (Value("uint8"), lambda k: k, ("0", "1", "2")),
    "bool": (Value("bool"), lambda k: k == 2, ("False", "True")),
}
"""Type -> the column's type, a value by label, and the classes that come of it."""
REFUSED = {
    "list": (List(Value("int64")), lambda k: [k], "is a list"),
    "list of classes": (List(ClassLabel(names=NAMES)), lambda k: [k, 0], "is a list"),
    "list of mappings": (List({"a": Value("int64")}), lambda k: [{"a": k}], "is a list"),
    "mapping": ({"a": Value("int64"), "b": Value("string")}, lambda k: {"a": k, "b": ""}, "is a mapping of a, b"),
    "float32": (Value("float32"), lambda k: k / 2, "is of type float32"),
    "date": (Value("date32"), lambda k: None, "is of type date32"),
    "binary": (Value("binary"), lambda k: b"a", "is of type binary"),
    "image": (ImageFeature(), lambda k: PICTURES[k], "is of type Image"),
    "array": (Array2D((1, 2), "int64"), lambda k: [[k, k]], "is of type Array2D"),
}
"""Type -> the column's type, a value by label, and what a message calls it."""


def save(root, content: dict, features: dict, name: str = "mine") -> Dataset:
    """The rows of these columns, saved to disk."""
    datasets.disable_progress_bars()
    rows = Dataset.from_dict(content, features=Features(features))
    rows.save_to_disk(str(root / name))
    return rows


def read(root, columns: dict, name: str = "mine", **options):
    """The data set of these columns, each a type and a function of the label, and of a column of images."""
    content = {key: [each[1](k % 3) for k in range(9)] for key, each in columns.items()}
    features = {"image": ImageFeature(), **{key: each[0] for key, each in columns.items()}}
    save(root, {"image": PICTURES, **content}, features, name)
    return load(root, name, options=options)


class TestLabels:
    @pytest.mark.parametrize("kind", READ)
    def test_one_name_or_number_a_row_is_read(self, tmp_path, kind):
        assert read(tmp_path, {"kind": READ[kind]}, label="kind").classes == READ[kind][2]

    @generated
    @given(st.sampled_from(sorted(REFUSED)), st.sampled_from(["label", "client"]), st.booleans())
    def test_anything_else_is_one_line(self, tmp_path_factory, kind, key, others):
        columns = {"kind": REFUSED[kind]} | ({"name": READ["string"]} if others else {})
        with refused(rf"^column kind of .* {REFUSED[kind][2]}: give one {key} an image") as error:
            read(tmp_path_factory.mktemp("hf"), columns, **{key: "kind"})
        assert str(error.value).endswith(f"; set data.options.{key} to one of: name") == others

    NAMED = ("string label", "large_string Labels", "int64 fine_label", "uint8 target", "bool Class")

    @pytest.mark.parametrize(("kind", "name"), [words.split() for words in NAMED])
    def test_a_column_that_is_called_a_label_asks_to_be_named(self, tmp_path, kind, name):
        with refused(rf"set data\.options\.label to one of: {name}; or to null"):
            read(tmp_path, {name: READ[kind], "other": READ["string"]})
        assert load(tmp_path, options={"label": None}).classes == ()
        assert load(tmp_path, options={"label": name}).classes == READ[kind][2]

    def test_other_columns_that_could_be_labels_are_named_and_a_label_of_another_type_is_refused(self, tmp_path):
        source = read(tmp_path, {"species": READ["string"], "size": REFUSED["float32"]})
        assert source.classes == ()
        assert source.notes[0].endswith("data.options.label could be one of: species")
        for kind in ("list", "float32"):
            with refused(r"column label of .* is .*: give one label an image, or set"):
                read(tmp_path, {"label": REFUSED[kind]}, kind)

    @pytest.mark.parametrize("missing", [None, ""])
    def test_a_missing_label_is_no_class(self, tmp_path, missing):
        column = (Value("string"), lambda k: missing if k == 2 else NAMES[k])
        for key in ("label", "client"):
            with refused(f"images.* have no {key}.*: give all one, or remove them"):
                read(tmp_path, {"name": column}, key, **{"label": None, key: "name"})

    @pytest.mark.parametrize("missing", [-1, None])
    def test_a_test_without_them_gives_way_to_a_validation_with_them_or_is_refused(self, tmp_path, missing):
        features = Features({"image": ImageFeature(), "label": ClassLabel(names=NAMES)})
        whole = Dataset.from_dict({"image": PICTURES, "label": [k % 3 for k in range(9)]}, features=features)
        unlabelled = Dataset.from_dict({"image": PICTURES[:3], "label": [missing] * 3}, features=features)
        DatasetDict(train=whole, validation=whole.select(range(6)), test=unlabelled).save_to_disk(tmp_path / "mine")
        DatasetDict(train=whole, test=unlabelled).save_to_disk(tmp_path / "other")
        source = load(tmp_path)
        assert (len(source.train.labels), len(source.test.labels)) == (9, 6)
        assert "test (3 images), which has no labels, is left out" in source.notes
        with refused(r"test has none: .* data\.options\.splits\.test=null leaves test out"):
            load(tmp_path, "other")


class TestImages:
    @pytest.mark.parametrize("kind", ["binary", "mapping"])
    def test_bytes_of_image_files_are_images(self, tmp_path, kind):
        contents = []
        for each in PICTURES:
            each.save(stream := io.BytesIO(), "png")
            contents.append(stream.getvalue() if kind == "binary" else {"bytes": stream.getvalue(), "path": None})
        plain = {"binary": Value("binary"), "mapping": {"bytes": Value("binary"), "path": Value("string")}}[kind]
        save(tmp_path, {"png": contents}, {"png": plain})
        source = load(tmp_path, options={"image": "png"})
        assert sorted({*source.train.images[:, 0, 0, 0], *source.test.images[:, 0, 0, 0]}) == list(range(9))

    def test_a_column_of_something_else_or_of_lists_of_images(self, tmp_path):
        for kind in ("list of classes", "mapping", "float32", "string"):
            with refused(r"column kind of .* is .*: give one image a row; set .* one of: image$"):
                read(tmp_path, {"kind": {**REFUSED, **READ}[kind]}, kind, image="kind")
        save(tmp_path, {"image": [[each] for each in PICTURES]}, {"image": List(ImageFeature())})
        with refused(r"column image of .* is a list of images: give one image a row$"):
            load(tmp_path, options={"image": "image"})
        with refused(r"no column of images: its columns are image \(a list of images\); set"):
            load(tmp_path)


class TestSplits:
    def test_their_names_may_be_others(self, tmp_path):
        whole = save(tmp_path, {"image": PICTURES}, {"image": ImageFeature()}, "whole")
        parts = {"training": whole.select(range(6)), "valid": whole.select(range(6, 9))}
        DatasetDict(parts).save_to_disk(str(tmp_path / "mine"))

        def sizes(**options):
            source = load(tmp_path, options=options)
            return len(source.train.labels), len(source.test.labels), source.notes

        named = ("training is the training set", "valid is the test set")
        assert sizes() == sizes(splits={"train": "training", "test": "valid"}) == (6, 3, named)
        held_out = (named[0], "valid (3 images) is left out", sources.HELD_OUT)
        assert sizes(splits={"train": "training", "test": None}) == (5, 1, held_out)
        with refused(r"data\.options\.splits\.test=test: .* has training, valid$"):
            sizes(splits={"test": "test"})
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "dataset_info.json").write_text("{")
        with refused("cannot be read as a Hugging Face data set"):
            load(tmp_path, "broken")

    @pytest.mark.parametrize("other", [{"kind": ClassLabel(names=["b", "a"])}, {"picture": ImageFeature()}])
    def test_columns_of_test_that_are_not_those_of_train_are_refused(self, tmp_path, other):
        """Labels are numbered in another way, or the images are in another column."""
        for name, features in (("train", {"kind": ClassLabel(names=["a", "b"])}), ("test", other)):
            image = "img" if "kind" in features else "picture"
            content = {image: PICTURES[:4]} | ({"kind": [0, 1, 0, 1]} if "kind" in features else {})
            save(tmp_path, content, {image: ImageFeature(), **features}, f"mine/{name}")
        (tmp_path / "mine" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        with refused("are numbered in other ways" if "kind" in other else "train has a column img, test has none"):
            load(tmp_path, options={} if "kind" in other else {"label": None})


class TestColumns:
    def test_by_default_they_are_those_of_images_and_class_labels(self, tmp_path):
        content = {"img": PICTURES, "kind": [k % 3 for k in range(9)], "writer": [f"w{k % 4}" for k in range(9)]}
        features = {"img": ImageFeature(), "kind": ClassLabel(names=NAMES), "writer": Value("string")}
        whole = save(tmp_path, content, features, "whole")
        DatasetDict(train=whole.select(range(6)), test=whole.select(range(6, 9))).save_to_disk(str(tmp_path / "mine"))
        mine = load(tmp_path, options={"client": "writer"}, order="source")
        assert mine.classes == tuple(NAMES)
        assert np.array_equal(mine.train.images, [np.full((1, 4, 4), k) for k in range(6)])
        assert mine.test.labels.tolist() == [0, 1, 2]
        assert mine.train.clients.tolist() == content["writer"][:6]
        assert load(tmp_path, "whole").notes == (sources.HELD_OUT,)
        with refused(r"data\.options\.client='author': the columns of .* are img, kind, writer"):
            load(tmp_path, options={"client": "author"})
        with refused("its options are image, label, client"):
            load(tmp_path, options={"examples": 3})

    def test_images_that_are_only_paths_are_not_opened(self, tmp_path):
        """The library would read any file, or fetch an address."""
        PICTURES[0].save(tmp_path / "secret.png")
        rows = {"img": [{"bytes": None, "path": str(tmp_path / "secret.png")}] * 9}
        save(tmp_path, rows, {"img": {"bytes": Value("binary"), "path": Value("string")}})
        info = tmp_path / "mine" / "dataset_info.json"
        content = json.loads(info.read_text())
        content["features"]["img"] = {"_type": "Image"}  # saving images as such would store their bytes
        info.write_text(json.dumps(content))
        assert datasets.load_from_disk(str(tmp_path / "mine"))[0]["img"].size == (4, 4)  # the library opens it
        with refused("has no bytes, only a path"):
            load(tmp_path)


class TestParquet:
    def shipped(self, root, *names):
        """The files that an owner ships, of three images each, by split and shard."""
        features = {"image": ImageFeature(), "writer_id": Value("string"), "character": ClassLabel(names=NAMES)}
        for number, name in enumerate(names):
            rows = range(3 * number, 3 * number + 3)
            content = {"image": [PICTURES[k] for k in rows], "writer_id": [f"w{k % 2}" for k in rows]}
            whole = Dataset.from_dict({**content, "character": [k % 3 for k in rows]}, features=Features(features))
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            whole.to_parquet(str(root / name))

    def test_shards_are_joined_and_a_column_names_the_clients(self, tmp_path):
        shards = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-0.parquet")
        self.shipped(tmp_path / "mine", *shards)
        mine = load(tmp_path, options={"client": "writer_id"}, order="source")
        assert mine.train.images[:, 0, 0, 0].tolist() == list(range(6))
        assert mine.train.clients.tolist() == ["w0", "w1"] * 3
        assert (mine.classes, mine.test.labels.tolist()) == (tuple(NAMES), [0, 1, 2])
        with refused(r"data\.options\.client='author': the columns of .* are image, writer_id, character"):
            load(tmp_path, options={"client": "author"})

    @pytest.mark.parametrize("path", ["mine", "mine/data/train-0.parquet"])
    def test_a_class_loads_what_is_on_the_hub_or_here(self, tmp_path, monkeypatch, path):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
        self.shipped(tmp_path / "mine", "data/train-0.parquet", "data/test-0.parquet")
        test = "test" if path == "mine" else "train"  # the file has one split
        options = {"path": str(tmp_path / path), "client": "writer_id", "splits": {"test": test}}
        mine = load(tmp_path, "hub", dataset=(HuggingFace, options))
        assert (mine.train.images[:, 0, 0, 0].tolist(), mine.classes) == ([0, 1, 2], tuple(NAMES))
        assert mine.test.images[:, 0, 0, 0].tolist() == ([3, 4, 5] if path == "mine" else [0, 1, 2])
        assert set(mine.train.clients.tolist()) == {"w0", "w1"}
        with refused("cannot be made with split=dev: .*data.options.splits=.*names its splits"):
            load(tmp_path, "hub", dataset=(HuggingFace, options | {"splits": {"test": "dev"}}))
        with refused("data.options.client='author': the columns of .* are image, writer_id, character"):
            load(tmp_path, "hub", dataset=(HuggingFace, options | {"client": "author"}))

    def test_other_splits_are_left_out_and_files_that_change_are_read_again(self, tmp_path):
        self.shipped(tmp_path / "mine", "train.parquet", "validation.parquet", "extra-1.parquet")
        before = load(tmp_path)
        assert (len(before.train.labels), len(before.test.labels)) == (3, 3)
        self.shipped(tmp_path / "mine", "test.parquet", "train-1.parquet")
        after = load(tmp_path)
        assert (len(after.train.labels), len(after.test.labels)) == (6, 3)
        assert {"validation (3 images) is left out", "extra (3 images) is left out"} <= set(after.notes)
