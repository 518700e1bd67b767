"""One data set has one hash and one order in whatever layout it is stored; the order is worked out here by hand."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from datamodules import natural, partition, rebuilt
from datamodules.federated import Batch, FederatedDataModule
from datamodules.order import SHIPPED, hashes, ordered
from datamodules.raw import Raw, with_test
from datamodules.recipe import Recipe
from datamodules.sources import Source
from tests.datamodules.own_data import load, seeded

CLASSES = [f"kind {k}" for k in range(10)]
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 60)
NAMES = [f"{CLASSES[label]}_s_{number:06}" for label, number in zip(LABELS, RNG.permutation(60), strict=True)]
SPLITS = {"train": slice(0, 50), "test": slice(50, 60)}
ORDER = {  # by class, then by name
    split: [k for _, _, k in sorted((LABELS[k], NAMES[k], k) for k in range(60)[rows])]
    for split, rows in SPLITS.items()
}
BATCHES = {"data_batch_1": range(30), "data_batch_2": range(30, 50), "test_batch": range(50, 60)}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same images as an archive of CIFAR-10, where no other is called so, and as folder, table and arrays."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, *_: Path(path).is_file())
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", ""], ["data_batch_2", ""]])
    archive = tmp_path / datasets.CIFAR10.base_folder
    archive.mkdir()
    (archive / "batches.meta").write_bytes(pickle.dumps({"label_names": CLASSES}))
    for batch, rows in BATCHES.items():
        content = {"data": IMAGES[rows].reshape(-1, 3072), "labels": LABELS[rows].tolist()}
        content["filenames"] = [f"{NAMES[k]}.png" for k in rows]
        (archive / batch).write_bytes(pickle.dumps(content))
    table = ["path,label,split"]
    for split, rows in SPLITS.items():
        for k in range(60)[rows]:
            file = f"{split}/{CLASSES[LABELS[k]]}/{NAMES[k]}.webp"
            os.makedirs((tmp_path / "folder" / file).parent, exist_ok=True)
            Image.fromarray(IMAGES[k].transpose(1, 2, 0)).save(tmp_path / "folder" / file, lossless=True)
            table.append(f"folder/{file},{CLASSES[LABELS[k]]},{split}")
    (tmp_path / "table.csv").write_text("\n".join([table[0], *reversed(table[1:])]))
    arrays = {f"{split}_images": IMAGES[rows] for split, rows in SPLITS.items()}
    arrays |= {f"{split}_labels": LABELS[rows] for split, rows in SPLITS.items()}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez(tmp_path / "named.npz", **arrays, **{f"{s}_names": np.array(NAMES)[rows] for s, rows in SPLITS.items()})
    return tmp_path


def first_batch(source: Source) -> tuple[list[list[int]], Batch]:
    """A partition by label, and the first batch of its first client."""
    parts = partition.dirichlet_balanced(source.train.labels, 3, alpha=0.5, seed=7)
    module = FederatedDataModule(source, parts, Recipe(32))
    batches = module.batches(0, ("augment", "plain"), 4, order=seeded(1), views=seeded(2))
    return [part.tolist() for part in parts], next(iter(batches))


def test_archive_folder_table_and_named_arrays_have_one_hash_one_partition_and_one_first_batch(root):
    read = {name: load(root, name) for name in ("cifar10", "folder", "table", "named")}
    parts, batch = first_batch(read["folder"])
    for name, source in read.items():
        for split, rows in ORDER.items():
            assert np.array_equal(getattr(source, split).images, IMAGES[rows]), name
            assert getattr(source, split).labels.tolist() == LABELS[rows].tolist()
        assert (source.sha256, source.in_order) == (read["folder"].sha256, read["folder"].in_order)
        again, other = first_batch(source)
        assert again == parts
        assert torch.equal(other.index, batch.index)
        assert all(map(torch.equal, other.views, batch.views))
    # what the archive has as image k is image `positions[k]` here
    assert read["cifar10"].train.positions.tolist() == ORDER["train"]
    assert read["folder"].train.positions is None


def test_arrays_without_names_have_that_hash_too_and_an_order_of_their_own_that_their_writer_does_not_change(root):
    folder, plain = load(root, "folder"), load(root, "plain")
    assert plain.sha256 == folder.sha256
    assert plain.in_order != folder.in_order
    assert sorted(zip(plain.train.labels, [each.tobytes() for each in plain.train.images], strict=True)) == sorted(
        (LABELS[k], IMAGES[k].tobytes()) for k in range(50)
    )
    assert (np.diff(plain.train.labels) >= 0).all()
    rows = RNG.permutation(50)
    arrays = {"train_images": IMAGES[rows], "train_labels": LABELS[rows]}
    np.savez(root / "mixed.npz", **arrays, test_images=IMAGES[50:], test_labels=LABELS[50:])
    assert load(root, "mixed").in_order == plain.in_order
    arrays["train_labels"] = np.roll(arrays["train_labels"], 1)  # other images have these labels
    np.savez(root / "wrong.npz", **arrays, test_images=IMAGES[50:], test_labels=LABELS[50:])
    assert load(root, "wrong").sha256 != folder.sha256


def test_what_is_held_out_does_not_depend_on_the_layout(root):
    rows = RNG.permutation(60)
    for name, order in (("one", np.arange(60)), ("other", rows)):
        np.savez(root / f"{name}.npz", train_images=IMAGES[order], train_labels=LABELS[order])
    assert load(root, "one").in_order == load(root, "other").in_order


def test_the_order_of_the_source_is_kept_on_request_and_is_what_an_index_counts(root, tmp_path):
    archive = load(root, "cifar10", order="source")
    assert np.array_equal(archive.train.images, IMAGES[:50])
    assert archive.train.positions is None
    assert archive.sha256 == load(root, "cifar10").sha256
    (tmp_path / "clients.csv").write_text("client,index\n" + "\n".join(f"c{k % 4},{k}" for k in range(50)))
    for source in (archive, load(root, "cifar10")):
        held = natural.by_file(tmp_path / "clients.csv", None, 50, order=source.train.positions)
        for client, rows in enumerate(held.parts):
            mine = {source.train.images[row].tobytes() for row in rows}
            assert mine == {IMAGES[k].tobytes() for k in range(client, 50, 4)}


def test_the_hash_is_of_sets_of_images_with_labels():
    """Against the definition, written out."""
    digest = hashlib.sha256()
    for rows in SPLITS.values():
        each = [hashlib.sha256(IMAGES[k].tobytes()).digest() + bytes([LABELS[k], *[0] * 7]) for k in range(60)[rows]]
        digest.update(f"({len(each)}, 3, 32, 32)".encode() + b"".join(sorted(each)))
    assert hashes((IMAGES[rows], LABELS[rows]) for rows in SPLITS.values()).sha256 == digest.hexdigest()


@pytest.mark.parametrize("name", ["digits", "domains", "synthetic"])
def test_shipped_data_sets_keep_the_hash_of_their_records_in_any_layout(tmp_path, name):
    source = load(tmp_path, name)
    assert source.sha256 == source.in_order == SHIPPED[name][0]
    arrays = {
        f"{split}_{kind}": getattr(getattr(source, split), kind) for split in SPLITS for kind in ("images", "labels")
    }
    np.savez(tmp_path / "mine.npz", **arrays)
    assert load(tmp_path).sha256 == source.sha256
    assert load(tmp_path).in_order != source.in_order


def test_a_committed_record_has_the_listed_hash_of_its_data_set():
    files = (Path(__file__).parents[2] / "leaderboards" / "results").rglob("seed0.json")
    records = [json.loads(file.read_text()) for file in files]
    pairs = {(record["settings"]["data.name"], record["provenance"]["dataset"]) for record in records}
    shipped = {(name, SHIPPED[name][0]) for name in ("cifar10", "digits")}
    assert pairs == {*shipped, *((name, rebuilt.listed(name)["sha256"]) for name in ("icons", "typefaces"))}


def test_names_follow_the_order_of_their_images():
    images, labels = {"train": IMAGES[:50]}, {"train": LABELS[:50].astype(np.int64)}
    raw = Raw(tuple(CLASSES), images, labels, lambda image: image, names={"train": np.array(NAMES[:50])})
    assert list(ordered(raw).names["train"]) == [NAMES[k] for k in ORDER["train"]]
    made = with_test(lambda: raw, hold_out=True)
    for split in SPLITS:
        assert len(made.names[split]) == len(made.images[split]) > 0
