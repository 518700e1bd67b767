"""Published data sets in the layouts that their authors give them, three images of each kind: what is read of them.

Each is written as its archive unpacks. What cannot be read is refused in a line that names the cause or the way.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from datamodules import sources
from datamodules.listing import formats
from tests.datamodules.own_data import load, picture, refused, save

IMAGES = 3
"""Of each kind."""


class Read(NamedTuple):
    """What is read: numbers of classes, training and test images, of clients by folder, and words of the notes."""

    classes: int
    train: int
    test: int
    clients: int = 0
    notes: tuple[str, ...] = ()


def fill(root: Path, *folders: str, name: str = "{}.png", images: int = IMAGES) -> None:
    """Images in folders, numbered; the number goes on from folder to folder where their names are to differ."""
    for folder in folders:
        for number in range(images):
            file = root / folder / name.format(number)
            if file.suffix.lower() in (".ppm", ".jpg", ".jpeg", ".png", ".tif"):
                save(file)


def write_csv(file: Path, header: str, rows: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(line.split(",") for line in [header, *rows])


def each(pattern: str, *names: str) -> list[str]:
    return [pattern.format(name) for name in names]


def tiny_imagenet(root: Path) -> None:
    fill(root, *each("train/{}/images", "n01443537", "n01629819"), name="n_{}.JPEG")
    for wnid in ("n01443537", "n01629819"):
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("n_0.JPEG\t0\t10\t63\t58\n")
    fill(root, "val/images", name="val_{}.JPEG", images=2 * IMAGES)
    fill(root, "test/images", name="test_{}.JPEG")
    wnids = ["n01443537", "n01629819"] * IMAGES
    lines = [f"val_{k}.JPEG\t{wnid}\t0\t32\t44\t62" for k, wnid in enumerate(wnids)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("n01443537\nn01629819\n")


def imagenet(root: Path) -> None:
    fill(root, *each("train/{}", "n01440764", "n01443537"), *each("val/{}", "n01440764", "n01443537"), name="{}.JPEG")


def fruits_360(root: Path) -> None:
    fill(root, *each("Training/{}", "Apple Braeburn 1", "Banana 1"), *each("Test/{}", "Apple Braeburn 1", "Banana 1"))
    fill(root, "test-multiple_fruits", name="apple_{}.jpg")
    (root / "readme.md").write_text("Fruits-360")


def gtsrb(root: Path) -> None:
    fill(root, *each("Train/{}", "0", "1"), "Test", "Meta")
    write_csv(root / "Test.csv", "Width,Height,ClassId,Path", ["53,54,1,Test/0.png"])


def brain_tumour(root: Path) -> None:
    kinds = ("glioma", "meningioma", "notumor", "pituitary")
    fill(root, *each("Training/{}", *kinds), *each("Testing/{}", *kinds), name="Te-gl_{}.jpg")


def omniglot(root: Path) -> None:
    fill(root, *(f"{alphabet}/character0{k}" for alphabet in ("Greek", "Latin") for k in (1, 2)))


def medmnist(root: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = rng.integers(0, 256, (2 * IMAGES, 28, 28, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(2 * IMAGES) % 2)[:, None].astype(np.uint8)
    np.savez(root.with_suffix(".npz"), **arrays)


def keras_mnist(root: Path) -> None:
    x, y = np.zeros((2 * IMAGES, 28, 28), dtype=np.uint8), np.arange(2 * IMAGES, dtype=np.uint8) % 2
    np.savez(root.with_suffix(".npz"), x_train=x, y_train=y, x_test=x, y_test=y)


def leaf(root: Path, x: Callable[[int], Any]) -> None:
    for split in ("train", "test"):
        data = {
            user: {"x": [x(k) for k in range(IMAGES)], "y": [(k + first) % 2 for k in range(IMAGES)]}
            for first, user in enumerate(("f1", "f2"))
        }
        content = {"users": list(data), "num_samples": [IMAGES] * 2, "user_data": data}
        (root / split).mkdir(parents=True)
        (root / split / f"all_data_0_niid_0_keep_0_{split}_9.json").write_text(json.dumps(content))


def femnist(root: Path) -> None:
    leaf(root, lambda k: [k / IMAGES] * 784)


def celeba(root: Path) -> None:
    leaf(root, lambda k: f"00000{k}.jpg")


def cats_and_dogs(root: Path) -> None:
    for kind in ("cat", "dog"):
        fill(root, "train", name=f"{kind}.{{}}.jpg")
    fill(root, "test1", name="{}.jpg")


def cats_and_dogs_by_folder(root: Path) -> None:
    fill(root, *each("train/{}", "cats", "dogs"), "test", name="{}.jpg")


def training_set_twice(root: Path) -> None:
    fill(root, *(f"{name}/{name}/{kind}" for name in ("training_set", "test_set") for kind in ("cats", "dogs")))


def intel(root: Path) -> None:
    fill(root, *(f"{name}/{name}/{kind}" for name in ("seg_train", "seg_test") for kind in ("sea", "street")))
    fill(root, "seg_pred/seg_pred")


def chest_xray(root: Path) -> None:
    kinds = ("NORMAL", "PNEUMONIA")
    fill(root, *(f"{split}/{kind}" for split in ("train", "val", "test") for kind in kinds), name="IM-{}.jpeg")


def chest_xray_in_a_folder(root: Path) -> None:
    chest_xray(root / "chest_xray")


def eurosat(root: Path) -> None:
    fill(root, *each("{}", "AnnualCrop", "Forest", "River"), name="Forest_{}.jpg", images=5)


def pacs(root: Path) -> None:
    fill(root, *(f"{domain}/{kind}" for domain in ("art_painting", "photo", "sketch") for kind in ("dog", "house")))


def domainnet(root: Path) -> None:
    fill(root, *(f"{domain}/{kind}" for domain in ("clipart", "real") for kind in ("train", "zebra")))
    (root / "clipart_train.txt").write_text("clipart/zebra/0.png 1\n")


def office_31(root: Path) -> None:
    fill(root, *(f"{domain}/images/{kind}" for domain in ("amazon", "dslr") for kind in ("bike", "mug")))


def cub(root: Path) -> None:
    fill(root, *each("images/{}", "001.Black_footed_Albatross", "002.Laysan_Albatross"), name="{}.jpg", images=5)
    (root / "attributes").mkdir()
    (root / "attributes" / "image_attribute_labels.txt").write_text("1 1 0 3 27.7\n")
    (root / "images.txt").write_text("1 001.Black_footed_Albatross/0.jpg\n")


def pets(root: Path) -> None:
    fill(root, "images", name="Abyssinian_{}.jpg")
    fill(root, "annotations/trimaps", name="Abyssinian_{}.png")


def ham10000(root: Path, images: str = "") -> None:
    names = [f"ISIC_002{k}" for k in range(10)]
    for name in names:
        save(root.parent / images / f"{name}.jpg")
    rows = [f"HAM_{k},{name},{'nv' if k % 2 else 'mel'},histo,80.0,male,scalp" for k, name in enumerate(names)]
    write_csv(root.with_suffix(".csv"), "lesion_id,image_id,dx,dx_type,age,sex,localization", rows)


def ham10000_in_a_folder(root: Path) -> None:
    ham10000(root, "HAM10000_images")


def isic_2019(root: Path) -> None:
    save(root.parent / "ISIC_0000000.jpg")
    write_csv(root.with_suffix(".csv"), "image,MEL,NV,BCC", ["ISIC_0000000,0.0,1.0,0.0"])


def plant_village(root: Path) -> None:
    fill(root, *(f"{kind}/Apple___{state}" for kind in ("color", "segmented") for state in ("rust", "healthy")))


def cifar10_png(root: Path) -> None:
    fill(root, *(f"{split}/{kind}" for split in ("train", "test") for kind in ("airplane", "cat")))
    (root / "labels.txt").write_text("airplane\ncat\n")


def coco(root: Path) -> None:
    fill(root, "train2017", "val2017", name="00000000000{}.jpg")
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_val2017.json").write_text("{}")


def imagefolder_csv(root: Path) -> None:
    for split in ("train", "test"):
        fill(root, split, name="{}.png", images=4)
        write_csv(root / split / "metadata.csv", "file_name,label,note", [f"{k}.png,{'ab'[k % 2]},x" for k in range(4)])


def imagefolder_jsonl(root: Path) -> None:
    for split in ("train", "validation"):
        fill(root, split, name="{}.png", images=4)
        lines = [json.dumps({"file_name": f"{k}.png", "label": k % 2, "boxes": [1]}) for k in range(4)]
        (root / split / "metadata.jsonl").write_text("\n".join(lines))


def imagefolder_at_its_root(root: Path) -> None:
    fill(root, "train", "test", images=4)
    rows = [f"{split}/{k}.png,{'ab'[k % 2]}" for split in ("train", "test") for k in range(4)]
    write_csv(root / "metadata.csv", "file_name,label", rows)


def imagefolder_captions(root: Path) -> None:
    fill(root, "train", "test")
    write_csv(root / "train" / "metadata.csv", "file_name,text", ["0.png,a dog"])


def hub_parquet(root: Path) -> None:
    (root / "data").mkdir(parents=True)
    (root / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")


def photos_of_a_phone(root: Path) -> None:
    fill(root, *each("{}", "cat", "dog"), images=5)
    (root / "cat" / "IMG_1.HEIC").write_bytes(b"no image")


LAYOUTS: list[tuple[Callable[[Path], None], dict[str, Any], Read | str]] = [
    (tiny_imagenet, {}, Read(2, 6, 6, notes=("val/ is the test set", "test/ (3 images), which has no labels, is left",
                                            "the labels of val/ are those of val_annotations.txt", ": 2 .txt"))),
    (imagenet, {}, Read(2, 6, 6, notes=("val/ is the test set",))),
    (fruits_360, {}, Read(2, 6, 6, notes=("Training/ is the training set", "test-multiple_fruits/ (3 images)"))),
    (gtsrb, {}, "train has labels, Test/ has none: .* data.options.splits.test=null"),
    (gtsrb, {"splits": {"test": None}},
     Read(2, 4, 2, notes=("Meta/ (3 images) is left out", "Test/ (3 images), which has no"))),
    (brain_tumour, {}, Read(4, 12, 12, notes=("Training/ is the training set", "Testing/ is the test set"))),
    (omniglot, {}, Read(2, 10, 2, 2, ("first folders (Greek, Latin) are read as clients, which partition.name=iid does",
                                      "their 4 folders as 2 classes", "data.options.classes=path"))),
    (omniglot, {"classes": "path"}, Read(4, 8, 4)),
    (medmnist, {}, Read(2, 6, 6, notes=("val (6 images) is left out",))),
    (medmnist, {"splits": {"test": "val"}},
     Read(2, 6, 6, notes=("val is the test set", "test (6 images) is left out"))),
    (keras_mnist, {}, Read(2, 6, 6)),
    (femnist, {}, Read(2, 6, 6, 2)),
    (celeba, {}, "x is '000000.jpg', no pixels: .* LEAF's CelebA, give a table"),
    (cats_and_dogs, {}, Read(0, 6, 3, notes=("test1/ is the test set",))),
    (cats_and_dogs_by_folder, {},
     "train has labels, test/ has none: give both, or neither; data.options.splits.test=null"),
    (cats_and_dogs_by_folder, {"splits": {"test": None}},
     Read(2, 4, 2, notes=("test/ (3 images), which has no labels, is left",))),
    (training_set_twice, {}, Read(2, 6, 6, notes=("training_set/ is the training set", "test_set/ is the test set"))),
    (intel, {}, Read(2, 6, 6, notes=("seg_pred/ (3 images) is left out",))),
    (chest_xray, {}, Read(2, 6, 6, notes=("val/ (6 images) is left out",))),
    (chest_xray, {"splits": {"test": "val"}}, Read(2, 6, 6, notes=("test/ (6 images) is left out",))),
    (chest_xray_in_a_folder, {}, "the folders test, train, val in chest_xray/ look like splits: .*=chest_xray"),
    (eurosat, {}, Read(3, 12, 3)),
    (pacs, {}, Read(2, 14, 4, 3, ("first folders (art_painting, photo, sketch) are read as clients",))),
    (domainnet, {}, Read(2, 10, 2, 2, ("first folders (clipart, real) are read as clients", "1 .txt"))),
    (office_31, {}, Read(2, 10, 2, 2)),
    (cub, {}, Read(2, 8, 2, notes=("2 .txt",))),
    (pets, {}, "lie at several depths, annotations/trimaps/Abyssinian_0.png and images/Abyssinian_0.jpg"),
    (ham10000, {}, "has a column 'lesion_id': .* data.options.label=COLUMN"),
    (ham10000, {"label": "dx"}, Read(2, 8, 2, notes=("left out: lesion_id, dx_type, age, sex, localization",))),
    (ham10000_in_a_folder, {"label": "dx"}, "data.options.folder=NAME"),
    (ham10000_in_a_folder, {"label": "dx", "folder": "HAM10000_images"}, Read(2, 8, 2)),
    (isic_2019, {}, "has a column 'MEL'"),
    (plant_village, {}, Read(2, 10, 2, 2, ("first folders (color, segmented) are read as clients",))),
    (cifar10_png, {}, Read(2, 6, 6)),
    (coco, {}, Read(0, 3, 3, notes=("train2017/ is the training set", "val2017/ is the test set"))),
    (imagefolder_csv, {}, Read(2, 4, 4, notes=("the labels of train/ are those of metadata.csv",))),
    (imagefolder_jsonl, {}, Read(2, 4, 4, notes=("validation/ is the test set", "metadata.jsonl"))),
    (imagefolder_at_its_root, {}, Read(2, 4, 4, notes=("the labels of test/ are those of",))),
    (imagefolder_captions, {}, Read(0, 3, 3, notes=("train/metadata.csv is not read: it has no column of labels",))),
    (hub_parquet, {}, "no image in .*: .*1 .parquet .*load_dataset.*save_to_disk"),
    (photos_of_a_phone, {}, Read(2, 8, 2, notes=("1 .heic", "'.[heif]'"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "options", "expected"), LAYOUTS, ids=[f"{write.__name__}-{options}" for write, options, _ in LAYOUTS]
)
def test_a_published_layout(tmp_path, monkeypatch, write, options, expected):
    if write is photos_of_a_phone:  # also where pillow-heif is installed
        readable = formats() - {".heic"}
        monkeypatch.setattr("datamodules.listing.formats", lambda: readable)
    root = tmp_path / "data" / "published"
    root.parent.mkdir()
    write(root)
    given = {"root": root.parent, "cache": tmp_path / "cache", "options": options, "unused_by": "partition.name=iid"}
    if isinstance(expected, str):
        with refused(expected):
            sources.load("published", **given)
        return
    read = sources.load("published", **given)
    assert len(read.classes) == expected.classes
    assert (len(read.train.labels), len(read.test.labels)) == (expected.train, expected.test)
    clients = read.train.clients
    assert (0 if clients is None else len(set(clients.tolist()))) == expected.clients
    notes = " | ".join(read.notes)
    assert [words for words in expected.notes if words not in notes] == [], notes
    if expected.classes:  # every class has as many images as every other
        assert len(set(Counter(np.concatenate([read.train.labels, read.test.labels]).tolist()).values())) == 1


def test_femnist_has_its_pixels_and_its_writers(tmp_path):
    femnist(tmp_path / "femnist")
    read = load(tmp_path, "femnist")
    assert read.train.images.shape == (6, 1, 28, 28)
    assert read.train.images[:, 0, 0, 0].tolist() == [0, 85, 170] * 2
    assert read.train.clients.tolist() == ["f1"] * 3 + ["f2"] * 3
    assert read.train.labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_tiny_imagenet_has_the_classes_of_its_annotations(tmp_path):
    tiny_imagenet(tmp_path / "tiny")
    image = picture()
    save(tmp_path / "tiny" / "val" / "images" / "val_1.png", image)
    annotations = tmp_path / "tiny" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("val_1.JPEG", "val_1.png"))
    (tmp_path / "tiny" / "val" / "images" / "val_1.JPEG").unlink()
    read = load(tmp_path, "tiny")
    position = read.test.paths.tolist().index("images/val_1.png")
    assert np.array_equal(read.test.images[position], image.transpose(2, 0, 1))
    assert read.classes[read.test.labels[position]] == "n01629819"
