"""Published data sets in the layouts that their authors give them, three images of each kind: what is read of them.

Each is written as its archive unpacks. What cannot be read is refused in a line that names the cause or the way.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from datamodules.listing import formats
from tests.datamodules.own_data import load, picture, refused, save


class Read(NamedTuple):
    """What is read: numbers of classes, training and test images, of clients by folder, and words of the notes."""

    classes: int
    train: int
    test: int
    clients: int = 0
    notes: tuple[str, ...] = ()


def unpack(root: Path, *entries: str | tuple[str, str]) -> None:
    """Writes images, with each choice in braces, and numbers 0 to 2 for `*`, 0 to 4 for `**`; and files of a text."""
    for entry in entries:
        pattern, text = entry if isinstance(entry, tuple) else (entry, None)
        parts = re.split("[{}]", pattern.replace("**", "{0,1,2,3,4}").replace("*", "{0,1,2}"))
        for words in itertools.product(*(part.split(",") if k % 2 else [part] for k, part in enumerate(parts))):
            file = root / "".join(words)
            file.parent.mkdir(parents=True, exist_ok=True)
            save(file) if text is None else file.write_text(text, newline="")


TINY = {f"val_{k}.JPEG": ("n01443537", "n01629819")[k % 2] for k in range(6)}


def tiny_imagenet(root: Path) -> None:
    boxes = [(f"train/{wnid}/{wnid}_boxes.txt", "n_0.JPEG\t0\t10\t63\t58\n") for wnid in ("n01443537", "n01629819")]
    lines = "".join(f"{name}\t{wnid}\t0\t32\t44\t62\n" for name, wnid in TINY.items())
    unpack(root, "train/{n01443537,n01629819}/images/n_*.JPEG", *(f"val/images/{name}" for name in TINY), *boxes)
    unpack(root, "test/images/test_*.JPEG", ("val/val_annotations.txt", lines), ("wnids.txt", "n01443537\nn01629819\n"))


def medmnist(root: Path) -> None:
    images, labels = np.zeros((6, 28, 28, 3), dtype=np.uint8), (np.arange(6) % 2)[:, None].astype(np.uint8)
    splits = ("train", "val", "test")
    arrays = {f"{split}_images": images + k for k, split in enumerate(splits)}
    np.savez(root.with_suffix(".npz"), **arrays, **{f"{split}_labels": labels for split in splits})


def keras_mnist(root: Path) -> None:
    x, y = np.zeros((6, 28, 28), dtype=np.uint8), np.arange(6, dtype=np.uint8) % 2
    np.savez(root.with_suffix(".npz"), x_train=x, y_train=y, x_test=x, y_test=y)


def leaf(root: Path, x: Callable[[int], Any]) -> None:
    users = ("f1", "f2")
    data = {
        user: {"x": [*map(x, range(3))], "y": [(k + first) % 2 for k in range(3)]} for first, user in enumerate(users)
    }
    content = json.dumps({"users": users, "num_samples": [3] * 2, "user_data": data})
    unpack(root, *((f"{split}/all_data_0_niid_0_keep_0_{split}_9.json", content) for split in ("train", "test")))


def femnist(root: Path) -> None:
    leaf(root, lambda k: [k / 3] * 784)


def ham10000(root: Path, images: str = ".") -> None:
    rows = [f"HAM_{k},ISIC_002{k},{'nv' if k % 2 else 'mel'},histo,80.0,male,scalp" for k in range(10)]
    text = "\r\n".join(["lesion_id,image_id,dx,dx_type,age,sex,localization", *rows])
    unpack(root.parent, images + "/ISIC_002{0,1,2,3,4,5,6,7,8,9}.jpg", ("mine.csv", text))


HAM_IN_A_FOLDER = partial(ham10000, images="HAM10000_images")
IMAGES = "{train,test}/{0,1,2,3}.png"
BY_NAME = "file_name,label,note\n" + "\n".join(f"{k}.png,{'ab'[k % 2]},x" for k in range(4))
BY_PATH = "file_name,label\n" + "\n".join(
    f"{split}/{k}.png,{'ab'[k % 2]}" for split in ("train", "test") for k in range(4)
)
OBJECTS = "\n".join(json.dumps({"file_name": f"{k}.png", "label": k % 2, "boxes": [1]}) for k in range(4))
GTSRB = ("Train/{0,1}/*.png", "{Test,Meta}/*.png", ("Test.csv", "Width,Height,ClassId,Path\n53,54,1,Test/0.png\n"))
CATS_BY_FOLDER = ("train/{cats,dogs}/*.jpg", "test/*.jpg")
OMNIGLOT = ("{Greek,Latin}/character0{1,2}/*.png",)
CHEST_XRAY = "{train,val,test}/{NORMAL,PNEUMONIA}/IM-*.jpeg"
LAYOUTS: list[tuple[str, Callable[[Path], None] | tuple, dict[str, Any], Read | str]] = [
    ("tiny-imagenet", tiny_imagenet, {},
     Read(2, 6, 6, notes=("val/ is the test set", "test/ (3 images), which has no labels, is left",
                          "the labels of val/ are those of val_annotations.txt", ": 2 .txt"))),
    ("imagenet", ("{train,val}/{n01440764,n01443537}/*.JPEG",), {}, Read(2, 6, 6, notes=("val/ is the test set",))),
    ("fruits-360", ("{Training,Test}/{Apple Braeburn 1,Banana 1}/*.png", "test-multiple_fruits/apple_*.jpg",
                    ("readme.md", "Fruits-360")), {},
     Read(2, 6, 6, notes=("Training/ is the training set", "test-multiple_fruits/ (3 images)"))),
    ("gtsrb", GTSRB, {}, "Train/ has labels, Test/ has none: .* data.options.splits.test=null"),
    ("gtsrb", GTSRB, {"splits": {"test": None}},
     Read(2, 4, 2, notes=("Meta/ (3 images) is left out", "Test/ (3 images), which has no"))),
    ("brain-tumour", ("{Training,Testing}/{glioma,meningioma,notumor,pituitary}/Te-gl_*.jpg",), {},
     Read(4, 12, 12, notes=("Training/ is the training set", "Testing/ is the test set"))),
    ("omniglot", OMNIGLOT, {},
     Read(2, 10, 2, 2, ("first folders (Greek, Latin) are read as clients, which partition.name=iid does",
                        "their 4 folders as 2 classes", "data.options.classes=path"))),
    ("omniglot", OMNIGLOT, {"classes": "path"}, Read(4, 8, 4)),
    ("medmnist", medmnist, {}, Read(2, 6, 6, notes=("val (6 images) is left out",))),
    ("medmnist", medmnist, {"splits": {"test": "val"}},
     Read(2, 6, 6, notes=("val is the test set", "test (6 images) is left out"))),
    ("keras-mnist", keras_mnist, {}, Read(2, 6, 6)),
    ("femnist", femnist, {}, Read(2, 6, 6, 2)),
    ("celeba", lambda root: leaf(root, lambda k: f"00000{k}.jpg"), {},
     "x is '000000.jpg', no pixels: .* LEAF's CelebA, give a table"),
    ("cats-and-dogs", ("train/{cat,dog}.*.jpg", "test1/*.jpg"), {}, Read(0, 6, 3, notes=("test1/ is the test set",))),
    ("cats-and-dogs-by-folder", CATS_BY_FOLDER, {},
     "train/ has labels, test/ has none: give both, or neither; data.options.splits.test=null"),
    ("cats-and-dogs-by-folder", CATS_BY_FOLDER, {"splits": {"test": None}},
     Read(2, 4, 2, notes=("test/ (3 images), which has no labels, is left",))),
    ("training-set-twice", ("training_set/training_set/{cats,dogs}/*.png", "test_set/test_set/{cats,dogs}/*.png"), {},
     Read(2, 6, 6, notes=("training_set/ is the training set", "test_set/ is the test set"))),
    ("intel", ("seg_train/seg_train/{sea,street}/*.png", "seg_test/seg_test/{sea,street}/*.png",
               "seg_pred/seg_pred/*.png"), {}, Read(2, 6, 6, notes=("seg_pred/ (3 images) is left out",))),
    ("chest-xray", (CHEST_XRAY,), {}, Read(2, 6, 6, notes=("val/ (6 images) is left out",))),
    ("chest-xray", (CHEST_XRAY,), {"splits": {"test": "val"}}, Read(2, 6, 6, notes=("test/ (6 images) is left out",))),
    ("chest-xray-in-a-folder", (f"chest_xray/{CHEST_XRAY}",), {},
     "the folders test, train, val in chest_xray/ look like splits: .*=chest_xray"),
    ("eurosat", ("{AnnualCrop,Forest,River}/Forest_**.jpg",), {}, Read(3, 12, 3)),
    ("pacs", ("{art_painting,photo,sketch}/{dog,house}/*.png",), {},
     Read(2, 14, 4, 3, ("first folders (art_painting, photo, sketch) are read as clients",))),
    ("domainnet", ("{clipart,real}/{train,zebra}/*.png", ("clipart_train.txt", "clipart/zebra/0.png 1\n")), {},
     Read(2, 10, 2, 2, ("first folders (clipart, real) are read as clients", "1 .txt"))),
    ("office-31", ("{amazon,dslr}/images/{bike,mug}/*.png",), {}, Read(2, 10, 2, 2)),
    ("cub", ("images/{001.Black_footed_Albatross,002.Laysan_Albatross}/**.jpg",
             ("attributes/image_attribute_labels.txt", "1 1 0 3 27.7\n"),
             ("images.txt", "1 001.Black_footed_Albatross/0.jpg\n")), {}, Read(2, 8, 2, notes=("2 .txt",))),
    ("pets", ("images/Abyssinian_*.jpg", "annotations/trimaps/Abyssinian_*.png"), {},
     "lie at several depths, annotations/trimaps/Abyssinian_0.png and images/Abyssinian_0.jpg"),
    ("ham10000", ham10000, {}, "has a column 'lesion_id': .* data.options.label=COLUMN"),
    ("ham10000", ham10000, {"label": "dx"},
     Read(2, 8, 2, notes=("left out: lesion_id, dx_type, age, sex, localization",))),
    ("ham10000-in-a-folder", HAM_IN_A_FOLDER, {"label": "dx"}, "data.options.folder=NAME"),
    ("ham10000-in-a-folder", HAM_IN_A_FOLDER, {"label": "dx", "folder": "HAM10000_images"}, Read(2, 8, 2)),
    ("isic-2019", lambda root: unpack(root.parent, "ISIC_0000000.jpg", ("mine.csv", "image,MEL\nISIC_0000000,0.0")), {},
     "has a column 'MEL'"),
    ("plant-village", ("{color,segmented}/Apple___{rust,healthy}/*.png",), {},
     Read(2, 10, 2, 2, ("first folders (color, segmented) are read as clients",))),
    ("cifar10-png", ("{train,test}/{airplane,cat}/*.png", ("labels.txt", "airplane\ncat\n")), {}, Read(2, 6, 6)),
    ("coco", ("{train,val}2017/00000000000*.jpg", ("annotations/instances_val2017.json", "{}")), {},
     Read(0, 3, 3, notes=("train2017/ is the training set", "val2017/ is the test set"))),
    ("imagefolder-csv", (IMAGES, ("{train,test}/metadata.csv", BY_NAME)), {},
     Read(2, 4, 4, notes=("the labels of train/ are those of metadata.csv",))),
    ("imagefolder-jsonl", ("{train,validation}/{0,1,2,3}.png", ("{train,validation}/metadata.jsonl", OBJECTS)), {},
     Read(2, 4, 4, notes=("validation/ is the test set", "metadata.jsonl"))),
    ("imagefolder-at-its-root", (IMAGES, ("metadata.csv", BY_PATH)), {},
     Read(2, 4, 4, notes=("labels of test/ are those of",))),
    ("captions", ("{train,test}/*.png", ("train/metadata.csv", "file_name,text\n0.png,a dog\n")), {},
     Read(0, 3, 3, notes=("train/metadata.csv is not read: it has no column of labels",))),
    ("parquet", (("data/train-00000-of-00001.parquet", "PAR1"),), {},
     "mine cannot be read as a Hugging Face data set: "),
    ("parquet-of-something-else", (("tables/numbers.parquet", "PAR1"),), {},
     "no image in .*: .*1 .parquet .*load_dataset.*save_to_disk"),
    ("phone", ("{cat,dog}/**.png", ("cat/IMG_1.HEIC", "no image")), {}, Read(2, 8, 2, notes=("1 .heic", "ful[heif]"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "options", "expected"), [row[1:] for row in LAYOUTS], ids=[f"{row[0]}-{row[2]}" for row in LAYOUTS]
)
def test_a_published_layout(tmp_path, monkeypatch, write, options, expected):
    readable = formats() - {".heic"}  # also where pillow-heif is installed
    monkeypatch.setattr("datamodules.listing.formats", lambda: readable)
    unpack(tmp_path / "mine", *write) if isinstance(write, tuple) else write(tmp_path / "mine")
    if isinstance(expected, str):
        with refused(expected):
            load(tmp_path, options=options, unused_by="partition.name=iid")
        return
    read = load(tmp_path, options=options, unused_by="partition.name=iid")
    clients = set() if read.train.clients is None else set(read.train.clients.tolist())
    notes, sizes = " | ".join(read.notes), (len(read.train.labels), len(read.test.labels))
    assert (len(read.classes), *sizes, len(clients)) == expected[:4]
    assert [words for words in expected.notes if words not in notes] == [], notes
    if expected.classes:  # every class has as many images as every other
        assert len(set(Counter(np.concatenate([read.train.labels, read.test.labels]).tolist()).values())) == 1


def test_femnist_has_its_pixels_and_its_writers(tmp_path):
    femnist(tmp_path / "mine")
    read = load(tmp_path, order="source")
    assert read.train.images.shape == (6, 1, 28, 28)
    assert read.train.images[:, 0, 0, 0].tolist() == [0, 85, 170] * 2
    assert read.train.clients.tolist() == ["f1"] * 3 + ["f2"] * 3
    assert read.train.labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_tiny_imagenet_has_the_classes_of_its_annotations(tmp_path):
    tiny_imagenet(tmp_path / "mine")
    image, folder = picture(), tmp_path / "mine" / "val"
    save(folder / "images" / "val_1.png", image)
    annotations = (folder / "val_annotations.txt").read_text()
    (folder / "val_annotations.txt").write_text(annotations.replace("val_1.JPEG", "val_1.png"))
    (folder / "images" / "val_1.JPEG").unlink()
    read = load(tmp_path)
    position = read.test.paths.tolist().index("images/val_1.png")
    assert np.array_equal(read.test.images[position], image.transpose(2, 0, 1))
    assert read.classes[read.test.labels[position]] == "n01629819"
