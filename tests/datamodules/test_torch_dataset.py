"""A user's `Dataset`: whatever its class does, it is read, or refused in one line that names the class."""

import re

import numpy as np
import pytest
import torch
import torchvision.datasets
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import TensorDataset

from datamodules import sources
from datamodules.pictures import as_image
from datamodules.torch_dataset import of_dataset
from tests.datamodules.own_data import load, picture, refused

generated = settings(derandomize=True, deadline=None, max_examples=60)
NAMES = ["ant", "bee", "cow"]


class Odd:
    """12 images with labels; `raises` says which of its parts raises what, `attributes` what it has besides."""

    def __init__(self, raises=None, attributes=None, label=int, **_):
        self.raises, self.label = raises or {}, label
        self.raise_in("made")
        for name, value in (attributes or {}).items():
            setattr(self, name, value)

    def raise_in(self, place):
        if place in self.raises:
            raise self.raises[place]

    def __len__(self):
        self.raise_in("length")
        return 12

    def __getitem__(self, index):
        self.raise_in("item")
        return np.full((3, 4, 4), index, dtype=np.uint8), self.label(index % 3)

    def __getattr__(self, name):
        self.raise_in(name)
        raise AttributeError(name)


def read(**given_):
    """The data set, its notes included."""
    return of_dataset(Odd, given_)[0]()


class TestRaises:
    @generated
    @given(
        st.sampled_from(["made", "length", "item", "targets", "labels", "classes", "clients"]),
        st.sampled_from([ImportError, KeyError, AssertionError, ValueError, OSError, RuntimeError, ZeroDivisionError]),
        st.text(max_size=9),
    )
    def test_any_error_anywhere_is_one_line_that_names_the_class(self, place, kind, text):
        with refused(rf"(?s)test_torch_dataset\.Odd.*{kind.__name__}") as error:
            read(raises={place: kind(text)})
        assert place in ("made", "length", "item") or f"`{place}`" in str(error.value)

    def test_all_of_torchvision_without_their_files(self, tmp_path):
        for name in set(torchvision.datasets.__all__) - {"FakeData"}:  # which needs none
            options = {} if name == "wrap_dataset_for_transforms_v2" else {"root": str(tmp_path)}
            with refused(f"{name} (cannot be made|has no length)"):
                of_dataset(getattr(torchvision.datasets, name), options)
        with refused(r"PhotoTour cannot be made without its argument name: set data\.options"):
            of_dataset(torchvision.datasets.PhotoTour, {"root": "x"})

    @pytest.mark.parametrize("content", [{"image": 1}, None, "it", [[1], [1, 2]], (), np.zeros((0, 4, 3), np.uint8)])
    def test_items_that_are_no_images(self, monkeypatch, content):
        monkeypatch.setattr(Odd, "__getitem__", lambda *_: content)
        with refused("Odd, item 0 "):
            read()


FORMS = {
    "list": list, "tuple": tuple, "array": np.array, "uint8": lambda labels: np.array(labels, dtype=np.uint8),
    "[N, 1]": lambda labels: np.array(labels)[:, None], "tensor": torch.tensor,
    "tensors": lambda labels: list(torch.tensor(labels)), "names": lambda labels: [NAMES[label] for label in labels],
    "array of names": lambda labels: np.array(NAMES)[labels],
}  # fmt: skip
"""Labels in the forms that data sets have."""


class TestLabels:
    @generated
    @given(
        st.sampled_from(["targets", "labels"]), st.sampled_from(list(FORMS)), st.booleans(),
        st.permutations([0, 1, 2] * 4),
    )  # fmt: skip
    def test_every_form_of_labels_is_read(self, attribute, form, classes, labels):
        raw = read(attributes={attribute: FORMS[form](labels)} | ({"classes": NAMES} if classes else {}))
        assert raw.labels["train"].tolist() == list(labels)
        assert raw.classes == (tuple(NAMES) if classes or "names" in form else ("0", "1", "2"))
        assert raw.notes == ()

    @pytest.mark.parametrize("label", [int, np.int64, np.uint8, torch.tensor, str, np.array, lambda k: np.array([k])])
    def test_so_are_those_of_items(self, label):
        assert read(label=label).labels["train"].tolist() == [0, 1, 2] * 4
        assert read(label=lambda k: label(k) == label(0)).labels["train"].tolist() == [1, 0, 0] * 4  # bits

    def test_they_are_read_where_items_are_images_alone(self):
        class Alone(Odd):
            def __getitem__(self, index):
                return super().__getitem__(index)[0]

        for attributes, labels, classes in (({"targets": [2, 0, 1] * 4}, [2, 0, 1], ("0", "1", "2")), ({}, [0], ())):
            raw = of_dataset(Alone, {"attributes": attributes})[0]()
            assert (raw.labels["train"].tolist(), raw.classes) == (labels * (12 // len(labels)), classes)

    def test_none_is_no_label_and_what_is_none_is_one_line(self):
        shade = lambda k: Image.new("L", (3, 3))  # noqa: E731
        for label in (float, np.float32, torch.rand, lambda k: [k, k], lambda k: {"id": k}, shade):
            with refused(r"Odd, item \d: a label is no whole number or text, but"):
                read(label=label)
        assert read(label=lambda k: None).classes == ()
        with refused("item 2 of train has no label, others have: give all one, or none"):
            read(label=lambda k: None if k == 2 else k)


class TestAttributes:
    @generated
    @given(
        st.sampled_from(["targets", "labels", "classes", "clients"]),
        st.sampled_from([3, 2.5, "ab", {"a": 0, "b": 1}, len, object(), np.array(3), None]),
    )
    def test_what_is_no_list_is_said_and_not_used(self, attribute, value):
        raw = read(attributes={attribute: value})
        assert raw.labels["train"].tolist() == [0, 1, 2] * 4
        assert (raw.classes, raw.clients) == (("0", "1", "2"), {})
        assert len(raw.notes) == (value is not None)
        assert all(re.search(rf"Odd: its `{attribute}` is .*no list, and is not used$", note) for note in raw.notes)

    def test_clients_of_any_form_or_none(self):
        for clients in (list(range(12)), np.arange(12), torch.arange(12), [f"{k}" for k in range(12)]):
            assert read(attributes={"clients": clients}).clients == {"train": [f"{k}" for k in range(12)]}
        assert read(attributes={"clients": [None] * 12}).clients == {}
        with refused("Odd, item 3 has no client, others have: give all one, or none"):
            read(attributes={"clients": [0, 0, 0, None] * 3})
        with refused("clients has 2 names for 12 items"):
            read(attributes={"clients": ["a", "b"]})


class TestSplits:
    @staticmethod
    def made(split="train"):
        return [(np.full((4, 4), k, dtype=np.uint8), k % 2) for k in range({"training": 8, "valid": 4}[split])]

    def test_their_names_may_be_others(self, tmp_path):
        source = load(tmp_path, dataset=(self.made, {"splits": {"train": "training", "test": "valid"}}))
        assert (len(source.train.labels), len(source.test.labels)) == (8, 4)
        source = load(tmp_path, dataset=(self.made, {"splits": {"train": "training", "test": None}}))
        assert source.notes == (sources.HELD_OUT,)

    def test_what_names_no_splits_of_theirs(self):
        for splits, split in (({}, "train"), ({"splits": {"train": "training"}}, "test")):
            with refused(rf"made with split={split}: KeyError: '{split}'; data\.options\.splits="):
                of_dataset(self.made, splits)
        for splits in ("val", ["a", "b"], {"val": "x"}, {"train": None}):
            with refused(r"data\.options\.splits=.*: give what its splits are called"):
                of_dataset(self.made, {"splits": splits})
        with refused(r"data\.options\.splits: .*list has no argument split"):
            of_dataset(list, {"splits": {"test": "val"}})

    def test_a_test_with_other_classes_is_refused(self):
        with refused("train and test have other `classes`"):
            of_dataset(lambda train=True: Odd(attributes={"classes": NAMES if train else NAMES[::-1]}), {})


class TestImages:
    @pytest.mark.parametrize(
        ("items", "line"),
        [
            (lambda: TensorDataset(torch.randn(9, 3, 4, 4)), "before normalisation"),
            (lambda: TensorDataset(torch.rand(9, 4)), r"uint8 \[4\]"),
            (list, "builtins.list has no item in train"),
            (lambda: iter(()), r"has no length: TypeError: .*: give it __len__ and __getitem__"),
            (lambda tall=1: [], r"data\.options\.wide: .* has tall$"),
        ],
    )
    def test_other_datasets_are_refused(self, items, line):
        with refused(line):
            of_dataset(items, {"wide": 1} if "wide" in line else {})

    def test_images_alone_as_floats(self, tmp_path):
        images = TensorDataset(torch.arange(10).view(10, 1, 1, 1).expand(10, 1, 4, 4) / 10)
        mine = load(tmp_path, dataset=(lambda: images, {}))
        assert not mine.labelled
        levels = np.concatenate([mine.train.images, mine.test.images])[:, 0, 0, 0]
        assert sorted(levels) == [round(255 * np.float32(k / 10)) for k in range(10)]

    def test_other_images_or_labels_are_another_data_set_also_in_the_cache(self, tmp_path):
        first, brighter, turned = (
            load(tmp_path, dataset=(lambda: items, {}))  # noqa: B023 - called at once
            for items in (
                [(np.full((4, 4), k * scale, np.uint8), (k + more) % 3) for k in range(20)]
                for scale, more in ((1, 0), (9, 0), (1, 1))
            )
        )
        assert brighter.train.images.max() > first.train.images.max() == turned.train.images.max()
        assert len({first.sha256, brighter.sha256, turned.sha256}) == 3

    def test_images_of_every_usual_type(self):
        colour, grey = picture((5, 4)), picture((5, 4), channels=1)
        for image in (colour, Image.fromarray(colour), colour.transpose(2, 0, 1), torch.from_numpy(colour)):
            assert np.array_equal(as_image(image, "it").values, colour.transpose(2, 0, 1))
        for image in (grey, Image.fromarray(grey), grey[None], grey[..., None], torch.from_numpy(grey / 255)):
            assert np.array_equal(as_image(image, "it").values, grey[None])
        for kind in (np.float32, np.int32):
            with refused(r"it cannot be read \(its pixels are numbers of 32 bits"):
                as_image(Image.fromarray(np.ones((3, 3), dtype=kind)), "it")
