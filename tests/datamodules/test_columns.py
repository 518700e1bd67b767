"""Columns of a Hugging Face data set: each type is read, or refused in one line that names the column."""

import io

import datasets
import numpy as np
import pytest
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, List, Value
from datasets import Image as ImageFeature
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datamodules import sources
from datamodules.errors import DataError

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


def load(root, columns: dict, name: str = "mine", **options):
    """The data set of these columns, each a type and a function of the label, and of a column of images."""
    features = Features({"image": ImageFeature(), **{key: each[0] for key, each in columns.items()}})
    content = {key: [each[1](k % 3) for k in range(9)] for key, each in columns.items()}
    datasets.disable_progress_bars()
    Dataset.from_dict({"image": PICTURES, **content}, features=features).save_to_disk(str(root / name))
    return sources.load(name, root=root, cache=root / "cache", options=options)


class TestLabels:
    @generated
    @given(st.sampled_from(sorted(READ)))
    def test_one_name_or_number_a_row_is_read(self, tmp_path_factory, kind):
        source = load(tmp_path_factory.mktemp("hf"), {"kind": READ[kind]}, label="kind")
        assert source.classes == READ[kind][2]
        assert len(source.train.labels) + len(source.test.labels) == 9

    @generated
    @given(st.sampled_from(sorted(REFUSED)), st.sampled_from(["label", "client"]), st.booleans())
    def test_anything_else_is_one_line(self, tmp_path_factory, kind, key, others):
        columns = {"kind": REFUSED[kind]} | ({"name": READ["string"]} if others else {})
        with pytest.raises(DataError) as error:
            load(tmp_path_factory.mktemp("hf"), columns, **{key: "kind"})
        line = str(error.value)
        assert len(line.splitlines()) == 1
        assert line.startswith("column kind of ")
        assert f" {REFUSED[kind][2]}: give one {key} an image" in line
        assert line.endswith(f"; set data.options.{key} to one of: name") == others

    @generated
    @given(
        st.sampled_from(sorted(READ.keys() - {"class"})), st.sampled_from(["label", "Labels", "fine_label", "target"])
    )
    def test_a_column_that_is_called_a_label_asks_to_be_named(self, tmp_path_factory, kind, name):
        root = tmp_path_factory.mktemp("hf")
        with pytest.raises(DataError, match=rf"set data\.options\.label to one of: {name}; or to null"):
            load(root, {name: READ[kind], "other": READ["string"]})
        assert load(root, {name: READ[kind]}, "second", label=None).classes == ()
        assert load(root, {name: READ[kind]}, "third", label=name).classes == READ[kind][2]

    def test_other_columns_that_could_be_labels_are_named(self, tmp_path):
        source = load(tmp_path, {"species": READ["string"], "size": REFUSED["float32"]})
        assert source.classes == ()
        assert source.notes[0].endswith("data.options.label could be one of: species")

    @pytest.mark.parametrize("kind", ["list", "float32"])
    def test_a_label_of_another_type_is_not_passed_over(self, tmp_path, kind):
        with pytest.raises(DataError, match=r"column label of .* is .*: give one label an image, or set"):
            load(tmp_path, {"label": REFUSED[kind]})

    @pytest.mark.parametrize("missing", [None, ""])
    def test_a_missing_label_is_no_class(self, tmp_path, missing):
        column = (Value("string"), lambda k: missing if k == 2 else NAMES[k])
        for key in ("label", "client"):
            with pytest.raises(DataError, match=f"images.* have no {key}.*: give all one, or remove them"):
                load(tmp_path, {"name": column}, key, **{"label": None, key: "name"})

    @pytest.mark.parametrize("missing", [-1, None])
    def test_a_test_without_them_gives_way_to_a_validation_with_them_or_is_refused_with_the_way(
        self, tmp_path, missing
    ):
        features = Features({"image": ImageFeature(), "label": ClassLabel(names=NAMES)})
        whole = Dataset.from_dict({"image": PICTURES, "label": [k % 3 for k in range(9)]}, features=features)
        unlabelled = Dataset.from_dict({"image": PICTURES[:3], "label": [missing] * 3}, features=features)
        DatasetDict(train=whole, validation=whole.select(range(6)), test=unlabelled).save_to_disk(tmp_path / "mine")
        DatasetDict(train=whole, test=unlabelled).save_to_disk(tmp_path / "other")
        source = sources.load("mine", root=tmp_path, cache=tmp_path / "cache")
        assert (len(source.train.labels), len(source.test.labels)) == (9, 6)
        assert "test (3 images), which has no labels, is left out" in source.notes
        with pytest.raises(DataError, match=r"test has none: .* data\.options\.splits\.test=null leaves test out"):
            sources.load("other", root=tmp_path, cache=tmp_path / "cache")


class TestImages:
    @pytest.mark.parametrize("kind", ["binary", "mapping"])
    def test_bytes_of_image_files_are_images(self, tmp_path, kind):
        contents = []
        for each in PICTURES:
            each.save(stream := io.BytesIO(), "png")
            contents.append(stream.getvalue())
        plain = {"binary": Value("binary"), "mapping": {"bytes": Value("binary"), "path": Value("string")}}[kind]
        rows = [each if kind == "binary" else {"bytes": each, "path": None} for each in contents]
        Dataset.from_dict({"png": rows}, features=Features({"png": plain})).save_to_disk(tmp_path / "mine")
        source = sources.load("mine", root=tmp_path, cache=tmp_path / "cache", options={"image": "png"})
        assert sorted({*source.train.images[:, 0, 0, 0], *source.test.images[:, 0, 0, 0]}) == list(range(9))

    @generated
    @given(st.sampled_from(sorted(REFUSED.keys() - {"image", "binary"}) + sorted(READ)))
    def test_a_column_of_something_else(self, tmp_path_factory, kind):
        column = {**REFUSED, **READ}[kind]
        with pytest.raises(DataError, match=r"column kind of .* is .*: give one image a row; set .* one of: image$"):
            load(tmp_path_factory.mktemp("hf"), {"kind": column}, image="kind")

    def test_a_list_of_images(self, tmp_path):
        features = Features({"image": List(ImageFeature())})
        Dataset.from_dict({"image": [[each] for each in PICTURES]}, features=features).save_to_disk(tmp_path / "mine")
        with pytest.raises(DataError, match=r"column image of .* is a list of images: give one image a row$"):
            sources.load("mine", root=tmp_path, cache=tmp_path / "cache", options={"image": "image"})
        with pytest.raises(DataError, match=r"no column of images: its columns are image \(a list of images\); set"):
            sources.load("mine", root=tmp_path, cache=tmp_path / "cache")


class TestSplits:
    def test_their_names_may_be_others(self, tmp_path):
        whole = Dataset.from_dict({"image": PICTURES}, features=Features({"image": ImageFeature()}))
        parts = {"training": whole.select(range(6)), "valid": whole.select(range(6, 9))}
        DatasetDict(parts).save_to_disk(str(tmp_path / "mine"))

        def sizes(**splits):
            given_ = {"options": {"splits": splits}} if splits else {}
            source = sources.load("mine", root=tmp_path, cache=tmp_path / "cache", **given_)
            return len(source.train.labels), len(source.test.labels), source.notes

        named = ("training is the training set", "valid is the test set")
        assert sizes() == sizes(train="training", test="valid") == (6, 3, named)
        held_out = (named[0], "valid (3 images) is left out", sources.HELD_OUT)
        assert sizes(train="training", test=None) == (5, 1, held_out)
        with pytest.raises(DataError, match=r"data\.options\.splits\.test=test: .* has training, valid$"):
            sizes(test="test")

    def test_a_folder_that_cannot_be_read(self, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "dataset_info.json").write_text("{")
        with pytest.raises(DataError, match="cannot be read as a Hugging Face data set") as error:
            sources.load("mine", root=tmp_path, cache=tmp_path / "cache")
        assert len(str(error.value).splitlines()) == 1
