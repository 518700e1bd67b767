"""Sources against the libraries of their data and against small files written here; nothing is decoded twice."""

import errno
import fcntl
import hashlib
import os
import pickle
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torchvision import datasets

from datamodules import cache, sources
from datamodules.archives import ARCHIVES
from datamodules.embedded import SYNTHETIC, synthetic
from datamodules.sources import DataError, Source
from tests.datamodules.own_data import make, picture, refused

RNG = np.random.default_rng(0)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "data").mkdir()
    return {"root": tmp_path / "data", "cache": tmp_path / "cache"}


def make_folder(root: Path, name: str = "pets") -> None:
    """Three training and one test image of two classes."""
    make(root / name, "train", "dog cat", images=3)
    make(root / name, "test", "dog cat", images=1)


def assert_same(a: Source, b: Source) -> None:
    assert (a.name, a.classes, a.sha256) == (b.name, b.classes, b.sha256)
    for x, y in ((a.train, b.train), (a.test, b.test)):
        np.testing.assert_array_equal(x.images, y.images)
        np.testing.assert_array_equal(x.labels, y.labels)


def test_importing_does_not_import_torch() -> None:
    code = "import sys, datamodules.sources; print(*({'torch', 'torchvision', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_digits_are_scikit_learns(folders: dict[str, Path]) -> None:
    digits = sources.load("digits", **folders)
    reference = load_digits()
    assert (digits.train.images.shape, digits.test.images.shape) == ((1438, 1, 8, 8), (359, 1, 8, 8))
    assert digits.classes == tuple("0123456789")
    assert isinstance(digits.train.images, np.memmap)
    assert (digits.train.images.dtype, digits.train.labels.dtype) == (np.uint8, np.int64)
    assert not digits.train.images.flags.writeable
    scaled = {}  # every picture, by its bytes; no two of the 1,797 are equal
    for image, label in zip(reference.images, reference.target, strict=True):
        scaled[bytes(int(v * 255 / 16 + 0.5) for v in image.ravel())] = label
    loaded = {
        image.tobytes(): label
        for split in (digits.train, digits.test)
        for image, label in zip(split.images, split.labels, strict=True)
    }
    assert loaded == scaled
    fraction = np.bincount(digits.test.labels) / np.bincount(reference.target)
    np.testing.assert_allclose(fraction, 0.2, atol=0.5 / 170)  # within half an image of a fifth
    # the held-out fifth is fixed: results on another split are not comparable
    assert digits.sha256.startswith("390b1b06acd9")


def test_synthetic_classes_can_be_learned_and_the_hash_is_of_shapes_and_bytes(folders: dict[str, Path]) -> None:
    made = sources.load("synthetic", **folders)
    assert (made.train.images.shape, made.test.images.shape) == ((480, 3, 8, 8), (120, 3, 8, 8))
    assert made.classes == ("0", "1", "2", "3")
    np.testing.assert_array_equal(np.bincount(made.test.labels), [30] * 4)
    train, test = (split.images.reshape(len(split.labels), -1) for split in (made.train, made.test))
    for labels, low, high in ((made.train.labels, 0.9, 1), (RNG.permutation(made.train.labels), 0, 0.5)):
        assert low < KNeighborsClassifier(5).fit(train, labels).score(test, made.test.labels) <= high
    digest = hashlib.sha256()
    for array in (made.train.images, made.train.labels, made.test.images, made.test.labels):
        digest.update(str(array.shape).encode() + array.tobytes())
    assert made.sha256 == made.in_order == digest.hexdigest()  # as records have it; see test_order
    options = {"examples": 50, "classes": 2, "channels": 1}
    first, second = (sources.load("synthetic", **folders, image_size=5, options=options | {"seed": k}) for k in (0, 1))
    assert (first.train.images.shape, first.test.images.shape) == ((40, 1, 5, 5), (10, 1, 5, 5))
    assert first.sha256 != second.sha256


def test_synthetic_images_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SYNTHETIC | {"examples": 33, "image_size": 5}
    whole = synthetic(**settings)
    monkeypatch.setattr("datamodules.embedded.PART", 4)
    parts = synthetic(**settings)
    for split in ("train", "test"):
        np.testing.assert_array_equal(parts.images[split], whole.images[split])


def test_threads_decode_large_images_in_order(folders: dict[str, Path]) -> None:
    for split in ("train", "test"):
        folder = folders["root"] / "large" / split / "any"
        folder.mkdir(parents=True)
        for red in range(200):
            Image.new("RGB", (80, 60), (red, 255 - red, 7)).save(folder / f"{red:03}.png", compress_level=1)
    calls: list[tuple[int, int]] = []
    large = sources.load("large", **folders, progress=lambda done, total: calls.append((done, total)))
    np.testing.assert_array_equal(large.train.images[:, 0, 0, 0], np.arange(200))
    np.testing.assert_array_equal(large.test.images[:, 1, 59, 79], 255 - np.arange(200))
    assert calls == [(done, 400) for done in (64, 128, 192, 200, 264, 328, 392, 400)]


def test_a_second_load_reads_no_image(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(folders["root"])
    opened: list[object] = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or original(path))
    first = sources.load("pets", **folders)
    assert len({str(path) for path in opened}) == 8
    opened.clear()
    assert_same(sources.load("pets", **folders, progress=lambda *done: opened.append(done)), first)
    assert not opened


@pytest.mark.parametrize("change", ["touch", "rename", "add", "content", "size"])
def test_a_changed_folder_is_decoded_again(folders: dict[str, Path], change: str) -> None:
    make_folder(folders["root"])
    first = sources.load("pets", **folders)
    path = folders["root"] / "pets/train/cat/0.png"
    if change == "touch":
        os.utime(path, ns=(1, 1))
    elif change == "rename":
        path.rename(path.with_name("9.png"))
    else:
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        Image.fromarray(picture() // 16).save(path.with_name("7.png") if change == "add" else path)
        if change == "size":
            os.utime(path, ns=times)
    second = sources.load("pets", **folders)
    assert len([entry for entry in folders["cache"].iterdir() if entry.is_dir()]) == 2
    assert (second.sha256 == first.sha256) == (change in ("touch", "rename"))
    assert (second.in_order == first.in_order) == (change == "touch")


DIGITS_FILES = ("train_images.npy", "test_labels.npy", "test_images.npy", "train_labels.npy", "meta.json")


def cached(folders: dict[str, Path], pattern: str = "digits-*") -> Path:
    (folder,) = folders["cache"].glob(pattern)
    return folder


SPOILS = ("zeros", "empty", "shorter", "longer", "text", "gone", "folder")


@pytest.mark.parametrize(
    ("file", "spoil"),
    [*((file, "flip") for file in DIGITS_FILES), ("meta.json", "renamed")]
    + [(file, spoil) for file in ("train_images.npy", "meta.json") for spoil in SPOILS],
)
def test_a_damaged_cache_is_decoded_again_and_reported(folders, caplog, file: str, spoil: str) -> None:
    intact = sources.load("digits", **folders)
    target = cached(folders) / file
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    spoiled = {
        "zeros": bytes(len(content)), "flip": bytes(content), "empty": b"", "shorter": content[:-1],
        "longer": content + b"0", "text": b"[" * 2000, "renamed": target.read_bytes().replace(b'"9"', b'"8"'),
    }  # fmt: skip
    target.unlink()
    if spoil == "folder":
        target.mkdir()
    elif spoil != "gone":
        target.write_bytes(spoiled[spoil])
    assert_same(sources.load("digits", **folders), intact)
    assert f"{cached(folders)} is damaged ({file}" in caplog.text
    caplog.clear()
    assert_same(sources.load("digits", **folders), intact)  # it was replaced
    assert not caplog.text
    assert [path.name for path in folders["cache"].iterdir()] == [cached(folders).name]


def test_a_large_cache_is_compared_by_a_sample_and_on_request_whole(folders, caplog, monkeypatch) -> None:
    monkeypatch.setattr(cache, "BLOCK", 1024)
    monkeypatch.setattr(cache, "CHECKED", 4)
    sources.load("digits", **folders)  # 91 blocks, of which 0, 23, 46 and 69 are sampled
    with (cached(folders) / "train_images.npy").open("r+b") as stream:
        stream.seek(1024 * 50)
        stream.write(b"\xff\xfe\xfd")
    sources.load("digits", **folders)
    assert not caplog.text
    intact = sources.load("digits", root=folders["root"], cache=folders["root"] / "another")
    assert_same(sources.load("digits", **folders, verify=True), intact)
    assert "train_images.npy has changed" in caplog.text


def test_unfinished_folders_of_killed_processes_are_removed(folders: dict[str, Path]) -> None:
    sources.load("digits", **folders)
    folder = cached(folders)
    old, fresh, held = (folder.parent / f".{folder.name}-{name}" for name in ("old", "fresh", "held"))
    for path in (old, fresh, held):
        (path / "finished").mkdir(parents=True)
    for path in (old, held):
        os.utime(path, (1.0, 1.0))
    (folder / "meta.json").unlink()
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    sources.load("digits", **folders)
    os.close(descriptor)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, fresh.name, held.name}


def test_a_folder_that_cannot_be_written_and_a_full_disk_are_errors_of_one_line(folders, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("a file")
    with refused(r"decoded images cannot be written to .*file.*set data\.cache="):
        sources.load("digits", root=folders["root"], cache=tmp_path / "file")

    def reserve(number: int) -> None:
        def fail(*_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", fail)

    reserve(errno.ENOSPC)
    with refused(r"cannot be written to .* \(No space left on device\)"):
        sources.load("digits", **folders)
    assert list(folders["cache"].iterdir()) == []
    reserve(errno.EOPNOTSUPP)  # of a file system that cannot
    assert len(sources.load("digits", **folders).test.labels) == 359


@pytest.mark.parametrize("what", ["pipe", "folder", "dangling", "loop"])
def test_what_is_no_image_file_is_refused_at_once(folders: dict[str, Path], what: str) -> None:
    make_folder(folders["root"])
    path = folders["root"] / "pets" / "train" / "cat" / "9.png"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if what == "loop" else path.with_name("nothing"))
    with pytest.raises((DataError, OSError), match=r"9\.png"):
        sources.load("pets", **folders)


def test_concurrent_loads_agree(folders: dict[str, Path]) -> None:
    """Four loads at the same time; each returns complete data and one cache remains."""
    make_folder(folders["root"])
    with ThreadPoolExecutor(4) as pool:
        barrier = Barrier(4)
        synchronise = lambda done, total: barrier.wait(20) if done == total else None  # noqa: E731
        loaded = list(pool.map(lambda _: sources.load("pets", **folders, progress=synchronise), range(4)))
    for other in loaded[1:]:
        assert_same(loaded[0], other)
    assert [entry.name[:5] for entry in folders["cache"].iterdir()] == ["pets-"]


ROWS = {"train": slice(0, 3), "test": slice(3, 5)}
PLACES = np.array([0, 1, 4, 1, 9])
"""Labels of the five images of an archive."""


def write_cifar10(root: Path, images: np.ndarray) -> None:
    """CIFAR-10's own layout, in small: rows of 1,024 red, green and blue values, pickled."""
    folder = root / datasets.CIFAR10.base_folder
    folder.mkdir()
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"kind {i}" for i in range(10)]}))
    for name, rows in (("data_batch_1", ROWS["train"]), ("test_batch", ROWS["test"])):
        content = {"data": images[rows].reshape(-1, 3072), "labels": PLACES[rows].tolist()}
        (folder / name).write_bytes(pickle.dumps(content))


def write_fashion_mnist(root: Path, images: np.ndarray) -> None:
    """IDX files: two zeros, the type 8 (uint8), the number of axes, big-endian sizes, bytes."""
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for prefix, rows in (("train", ROWS["train"]), ("t10k", ROWS["test"])):
        for kind, array in (("images-idx3", images[rows, 0]), ("labels-idx1", PLACES[rows].astype(np.uint8))):
            text = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(text)


def write_svhn(root: Path, images: np.ndarray) -> None:
    """MATLAB files of `X: [32, 32, 3, N]` and `y: [N, 1]`, the digit 0 written as 10."""
    for split, rows in ROWS.items():
        digits = np.where(PLACES == 0, 10, PLACES)[rows, None]
        savemat(root / f"{split}_32x32.mat", {"X": images[rows].transpose(2, 3, 1, 0), "y": digits})


def write_stl10(root: Path, images: np.ndarray) -> None:
    """Raw bytes `[N, 3, 96, 96]`, each channel column after column, and labels from 1."""
    folder = root / datasets.STL10.base_folder
    folder.mkdir()
    (folder / "unlabeled_X.bin").touch()  # which is not read
    (folder / "class_names.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    for split, rows in ROWS.items():
        (folder / f"{split}_X.bin").write_bytes(images[rows].transpose(0, 1, 3, 2).tobytes())
        (folder / f"{split}_y.bin").write_bytes((PLACES[rows] + 1).astype(np.uint8).tobytes())


@pytest.mark.parametrize(
    ("name", "module", "write", "shape", "classes"),
    [
        ("cifar10", "cifar", write_cifar10, (5, 3, 32, 32), "kind 3"),
        ("fashion_mnist", "mnist", write_fashion_mnist, (5, 1, 28, 28), "Dress"),
        ("svhn", "svhn", write_svhn, (5, 3, 32, 32), "3"),
        ("stl10", "stl10", write_stl10, (5, 3, 96, 96), "kind 3"),
    ],
)
def test_torchvision_archives(folders: dict, monkeypatch, name: str, module: str, write, shape, classes: str) -> None:
    images = RNG.integers(0, 256, shape, dtype=np.uint8)
    monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda path, *_: Path(path).is_file())
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", ""]])
    write(folders["root"], images)
    source = sources.load(name, **folders)
    np.testing.assert_array_equal(np.concatenate([source.train.images, source.test.images]), images)
    np.testing.assert_array_equal(np.concatenate([source.train.labels, source.test.labels]), PLACES)
    assert (len(source.train.labels), len(source.classes), source.classes[3]) == (3, 10, classes)
    make_folder(folders["root"], name)
    assert sources.load(name, **folders).classes == ("cat", "dog")  # a folder takes precedence over its archive


def test_torchvision_has_all_archives_and_a_failed_download_is_an_error_of_one_line(folders: dict, monkeypatch) -> None:
    def offline(root: Path, *, train: bool, download: bool) -> None:
        raise OSError(f"download={download},\nno route to host")

    assert all(hasattr(datasets, kind) for kind in ARCHIVES.values())
    monkeypatch.setattr(datasets, "CIFAR100", offline)
    with refused(r"\(download=True, no route to host\); set data\.download=true"):
        sources.load("cifar100", **folders, download=True)


@pytest.mark.parametrize("names", ["train/dog/1", "train/cat/1 train/dog/0 train/dog/2", "train/cat/0 test/cat/0"])
def test_all_images_that_cannot_be_read_are_named_at_once(folders: dict[str, Path], names: str) -> None:
    make_folder(folders["root"])
    files = [folders["root"] / "pets" / f"{name}.png" for name in names.split()]
    for file in files:
        file.write_bytes(file.read_bytes()[:90])
    others = f"; the same holds for {', '.join(map(str, files[1:]))}" if files[1:] else ""
    with refused(rf"cannot read the image {files[0]} \(.+\): replace or remove it, or .+skip_damaged=true{others}$"):
        sources.load("pets", **folders)
    assert not list(folders["cache"].iterdir())
    (folders["root"] / "many").mkdir()
    for index in range(40):
        (folders["root"] / "many" / f"{index:02}.png").write_bytes(b"no image")
    with refused(r", \.\.\.$") as caught:  # of many, some
        sources.load("many", **folders)
    assert str(caught.value).partition("; the same holds for ")[2].count(".png") == 19


def test_damaged_images_are_left_out_where_that_is_asked_for(folders: dict[str, Path]) -> None:
    make(folders["root"] / "pets", "train test", "dog cat", images=3)
    whole = sources.load("pets", **folders)
    gone = [folders["root"] / "pets" / f"{name}.png" for name in ("test/cat/1", "train/cat/0", "train/dog/2")]
    for file in gone:
        file.write_bytes(file.read_bytes()[:90])
    skip = {"skip_damaged": True}
    for levels in (None, "max"):  # which reads all training images first
        part = sources.load("pets", **folders, options=skip, levels=levels)
        assert part.notes == (
            f"3 of {len(whole.train.labels) + len(whole.test.labels)} images cannot be read and are left out "
            f"(data.options.skip_damaged); the first is {gone[1]}",
        )
        for split, lost in (("train", ["cat/0.png", "dog/2.png"]), ("test", ["cat/1.png"])):
            mine, all_of_it = getattr(part, split), getattr(whole, split)
            rows = np.flatnonzero(~np.isin(all_of_it.paths, lost))
            assert (len(rows), mine.paths.tolist()) == (
                len(all_of_it.paths) - len(lost),
                all_of_it.paths[rows].tolist(),
            )
            assert np.array_equal(mine.images, all_of_it.images[rows])
            assert np.array_equal(mine.labels, all_of_it.labels[rows])
    with refused("skip_damaged=true"):  # what was decoded with the option is not taken without it
        sources.load("pets", **folders)
    with refused("skip_damaged='yes': give true or false"):
        sources.load("pets", **folders, options={"skip_damaged": "yes"})
    with refused("'digits' has no option 'skip_damaged'"):
        sources.load("digits", **folders, options=skip)
    for where, words in (("test", "test"), ("train/dog", "class 'dog' in train"), ("train", "train")):
        for file in (folders["root"] / "pets" / where).rglob("*.png"):
            file.write_bytes(b"no image")
        with refused(f"no image of {words} would be left: cannot read the image .*/pets/{where}"):
            sources.load("pets", **folders, options=skip)
        make_folder(folders["root"])


def test_an_error_that_passes_is_no_damage(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same start again reads the image, and a cache without it would stay."""
    make(folders["root"] / "pets", "train test", "dog cat", images=2)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        with refused("Too many open files"):
            sources.load("pets", **folders, options={"skip_damaged": True})
    assert not sources.load("pets", **folders, options={"skip_damaged": True}).notes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "imagenet"}, r"'imagenet': looked for .*/imagenet/, imagenet\.csv, .* has none; .*data\.root=.* dig"),
        ({"name": "digist"}, r"no data set 'digist' in .*data \(did you mean 'digits'\?\); set data\.root=.*"),
        ({"name": "mine", "root": "/nowhere"}, r"no data set 'mine': data\.root=/nowhere is no folder; set data\.ro"),
        ({"name": "stl10"}, r"looked for .*data/stl10/, .* STL10 archive in .*data \(.+\); set data\.download=true"),
        ({"name": "photos"}, r"'photos': looked for .*/photos/, photos\.csv, photos\.npz; .*; set data\.root"),
        ({"name": "digits", "options": {"examples": 9}},
         r"'digits' has no option 'examples'; only 'synthetic' has any: examples, cl"),
        ({"name": "synthetic", "options": {"sed": 9}}, r"'synthetic' has no option 'sed'"),
        ({"name": "synthetic", "options": {"examples": 19}},
         r"19 examples, 4 classes, 3 channels: give .* five examples a class"),
    ],
)  # fmt: skip
def test_impossible_requests_are_errors_of_one_line(folders: dict[str, Path], arguments: dict, message: str) -> None:
    (folders["root"] / "photos.zip").touch()  # it is no data set, and its name no suggestion
    with refused(message):
        sources.load(**folders | arguments)
