"""A user's `Dataset`: whatever its class does, it is read, or refused in one line that names the class."""

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
        self.raises = raises or {}
        self.label = label
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
        if name in ("targets", "labels", "classes", "clients"):
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
        with refused() as error:
            read(raises={place: kind(text)})
        line = str(error.value)
        assert "test_torch_dataset.Odd" in line
        assert kind.__name__ in line
        assert place in ("made", "length", "item") or f"`{place}`" in line

    def test_all_of_torchvision_without_their_files(self, tmp_path):
        for name in set(torchvision.datasets.__all__) - {"FakeData"}:  # which needs none
            options = {} if name == "wrap_dataset_for_transforms_v2" else {"root": str(tmp_path)}
            with refused(f"{name} (cannot be made|has no length)"):
                of_dataset(getattr(torchvision.datasets, name), options)

    def test_an_argument_that_is_required(self):
        with refused(r"PhotoTour cannot be made without its argument name: set data\.options"):
            of_dataset(torchvision.datasets.PhotoTour, {"root": "x"})

    @pytest.mark.parametrize("content", [{"image": 1}, None, "it", [[1], [1, 2]], (), np.zeros((0, 4, 3), np.uint8)])
    def test_items_that_are_no_images(self, monkeypatch, content):
        monkeypatch.setattr(Odd, "__getitem__", lambda *_: content)
        with refused("Odd, item 0 "):
            read()

    def test_a_dataset_without_a_length(self):
        with refused(r"has no length: TypeError: .*: give it __len__ and __getitem__"):
            of_dataset(lambda: iter(()), {})


def as_column(labels: list[int], kind: str):
    """Labels in one of the forms that data sets have."""
    array = np.array(labels)
    return {
        "list": labels,
        "tuple": tuple(labels),
        "array": array,
        "uint8": array.astype(np.uint8),
        "[N, 1]": array[:, None],
        "tensor": torch.tensor(labels),
        "tensors": list(torch.tensor(labels)),
        "names": [NAMES[label] for label in labels],
        "array of names": np.array(NAMES)[array],
    }[kind]


FORMS = ["list", "tuple", "array", "uint8", "[N, 1]", "tensor", "tensors", "names", "array of names"]


class TestLabels:
    @generated
    @given(
        st.sampled_from(["targets", "labels"]), st.sampled_from(FORMS), st.booleans(), st.permutations([0, 1, 2] * 4)
    )
    def test_every_form_of_labels_is_read(self, attribute, form, classes, labels):
        attributes = {attribute: as_column(labels, form)} | ({"classes": NAMES} if classes else {})
        raw = read(attributes=attributes)
        assert raw.labels["train"].tolist() == list(labels)
        assert raw.classes == (tuple(NAMES) if classes or "names" in form else ("0", "1", "2"))
        assert raw.notes == ()

    @pytest.mark.parametrize("label", [int, np.int64, np.uint8, torch.tensor, str, np.array, lambda k: np.array([k])])
    def test_so_are_those_of_items(self, label):
        assert read(label=label).labels["train"].tolist() == [0, 1, 2] * 4
        assert read(label=lambda k: label(k) == label(0)).labels["train"].tolist() == [1, 0, 0] * 4  # bits

    @pytest.mark.parametrize("label", [float, np.float32, torch.rand, lambda k: [k, k], lambda k: {"id": k}, Image.new])
    def test_what_is_no_label_is_one_line(self, label):
        if label is Image.new:
            label = lambda k: Image.new("L", (3, 3))  # noqa: E731
        with refused(r"Odd, item \d: a label is no whole number or text, but"):
            read(label=label)

    def test_none_is_no_label(self):
        assert read(label=lambda k: None).classes == ()
        with refused("item 2 of train has no label, others have: give all one, or none"):
            read(label=lambda k: None if k == 2 else k)


class TestAttributes:
    @generated
    @given(
        st.sampled_from(["targets", "labels", "classes", "clients"]),
        st.sampled_from([3, 2.5, "ab", {"a": 0, "b": 1}, len, object(), np.array(3)]),
    )
    def test_what_is_no_list_is_said_and_not_used(self, attribute, value):
        raw = read(attributes={attribute: value})
        assert raw.labels["train"].tolist() == [0, 1, 2] * 4
        assert raw.classes == ("0", "1", "2")
        assert raw.clients == {}
        (note,) = raw.notes
        assert f"Odd: its `{attribute}` is" in note
        assert note.endswith("no list, and is not used")

    def test_none_is_none(self):
        raw = read(attributes=dict.fromkeys(["targets", "labels", "classes", "clients"]))
        assert (raw.notes, raw.clients, raw.classes) == ((), {}, ("0", "1", "2"))
        assert raw.labels["train"].tolist() == [0, 1, 2] * 4

    @pytest.mark.parametrize("clients", [list(range(12)), np.arange(12), torch.arange(12), [f"{k}" for k in range(12)]])
    def test_clients_of_any_form(self, clients):
        assert read(attributes={"clients": clients}).clients == {"train": [f"{k}" for k in range(12)]}

    def test_clients_that_are_none(self):
        assert read(attributes={"clients": [None] * 12}).clients == {}
        with refused("Odd, item 3 has no client, others have: give all one, or none"):
            read(attributes={"clients": [0, 0, 0, None] * 3})
        with refused("clients has 2 names for 12 items"):
            read(attributes={"clients": ["a", "b"]})


class TestSplits:
    @staticmethod
    def made(split="train"):
        images = {"training": 8, "valid": 4}[split]
        return [(np.full((4, 4), k, dtype=np.uint8), k % 2) for k in range(images)]

    def test_their_names_may_be_others(self, tmp_path):
        names = {"train": "training", "test": "valid"}
        source = load(tmp_path, dataset=(self.made, {"splits": names}))
        assert (len(source.train.labels), len(source.test.labels)) == (8, 4)
        alone = {"train": "training", "test": None}
        source = load(tmp_path, dataset=(self.made, {"splits": alone}))
        assert source.notes == (sources.HELD_OUT,)

    def test_an_unknown_one_says_how_to_name_it(self):
        with refused(r"made with split=train: KeyError: 'train'; data\.options\.splits="):
            of_dataset(self.made, {})
        with refused(r"made with split=test: KeyError: 'test'; data\.options\.splits="):
            of_dataset(self.made, {"splits": {"train": "training"}})

    @pytest.mark.parametrize("splits", ["val", ["a", "b"], {"val": "x"}, {"train": None}])
    def test_what_names_no_splits(self, splits):
        with refused(r"data\.options\.splits=.*: give what its splits are called"):
            of_dataset(self.made, {"splits": splits})

    def test_a_class_that_takes_no_split(self):
        with refused(r"data\.options\.splits: .*list has no argument split"):
            of_dataset(list, {"splits": {"test": "val"}})

    def test_a_test_with_other_classes_is_refused(self):
        def made(train=True):
            return Odd(attributes={"classes": NAMES if train else NAMES[::-1]})

        with refused("train and test have other `classes`"):
            of_dataset(made, {})


class TestImages:
    @pytest.mark.parametrize(
        ("items", "line"),
        [
            (lambda: TensorDataset(torch.randn(9, 3, 4, 4)), "before normalisation"),
            (lambda: TensorDataset(torch.rand(9, 4)), r"uint8 \[4\]"),
            (list, "builtins.list has no item in train"),
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
