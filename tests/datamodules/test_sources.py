"""Sources against the libraries of their data and against small files written here; nothing is decoded twice."""

import fcntl
import gzip
import hashlib
import os
import pickle
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from datamodules import cache, sources
from datamodules.sources import DataError, Source

RNG = np.random.default_rng(0)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {"root": tmp_path / "data", "cache": tmp_path / "cache"}


def smooth(size: tuple[int, int] = (12, 12)) -> np.ndarray:
    """A random `[H, W, 3]` image that survives lossy formats."""
    coarse = Image.fromarray(RNG.integers(0, 256, (3, 3, 3), dtype=np.uint8))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC))


def make_folder(root: Path, name: str = "pets", suffix: str = ".png") -> dict[str, np.ndarray]:
    """Three training and one test image of two classes; `{path under the folder: [H, W, 3]}`."""
    arrays = {}
    for split, numbers in (("train", "201"), ("test", "3")):
        for label in ("dog", "cat"):
            (root / name / split / label).mkdir(parents=True)
            for index in numbers:
                path = f"{split}/{label}/{index}{suffix}"
                arrays[path] = smooth()
                Image.fromarray(arrays[path]).save(
                    root / name / path, **({"lossless": True} if suffix == ".webp" else {})
                )
    return arrays


def expected_arrays(arrays: dict[str, np.ndarray], split: str) -> np.ndarray:
    return np.stack([arrays[path] for path in sorted(arrays) if path.startswith(split)]).transpose(0, 3, 1, 2)


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


def test_synthetic_classes_can_be_learned(folders: dict[str, Path]) -> None:
    synthetic = sources.load("synthetic", **folders)
    assert (synthetic.train.images.shape, synthetic.test.images.shape) == ((480, 3, 8, 8), (120, 3, 8, 8))
    assert synthetic.classes == ("0", "1", "2", "3")
    np.testing.assert_array_equal(np.bincount(synthetic.test.labels), [30] * 4)
    knn = KNeighborsClassifier(5).fit(synthetic.train.images.reshape(480, -1), synthetic.train.labels)
    assert knn.score(synthetic.test.images.reshape(120, -1), synthetic.test.labels) > 0.9
    shuffled = KNeighborsClassifier(5).fit(
        synthetic.train.images.reshape(480, -1), RNG.permutation(synthetic.train.labels)
    )
    assert shuffled.score(synthetic.test.images.reshape(120, -1), synthetic.test.labels) < 0.5


def test_synthetic_options(folders: dict[str, Path]) -> None:
    synthetic = sources.load(
        "synthetic", **folders, image_size=5, options={"examples": 50, "classes": 2, "channels": 1}
    )
    assert (synthetic.train.images.shape, synthetic.test.images.shape) == ((40, 1, 5, 5), (10, 1, 5, 5))
    hashes = {sources.load("synthetic", **folders, options={"seed": seed, "examples": 50}).sha256 for seed in (0, 1)}
    assert len(hashes) == 2


def test_hash_is_of_shapes_and_bytes(folders: dict[str, Path]) -> None:
    synthetic = sources.load("synthetic", **folders, options={"examples": 20})
    digest = hashlib.sha256()
    for array in (synthetic.train.images, synthetic.train.labels, synthetic.test.images, synthetic.test.labels):
        digest.update(str(array.shape).encode() + array.tobytes())
    assert synthetic.sha256 == digest.hexdigest()


@pytest.mark.parametrize("suffix", [".png", ".webp", ".bmp"])
def test_folder(folders: dict[str, Path], suffix: str) -> None:
    arrays = make_folder(folders["root"], suffix=suffix)
    (folders["root"] / "pets/train/.hidden").mkdir()
    (folders["root"] / "pets/train/cat/notes.txt").write_text("not an image")
    pets = sources.load("pets", **folders)
    assert pets.classes == ("cat", "dog")
    for split, decoded, labels in (("train", pets.train, [0, 0, 0, 1, 1, 1]), ("test", pets.test, [0, 1])):
        np.testing.assert_array_equal(decoded.images, expected_arrays(arrays, split))
        np.testing.assert_array_equal(decoded.labels, labels)
        assert (decoded.images.dtype, decoded.labels.dtype) == (np.uint8, np.int64)


def test_lossy_and_grey_images_become_rgb(folders: dict[str, Path]) -> None:
    arrays = make_folder(folders["root"], suffix=".jpg")
    grey = np.full((12, 12), 77, dtype=np.uint8)
    Image.fromarray(grey).save(folders["root"] / "pets/train/cat/0.jpg")
    pets = sources.load("pets", **folders)
    assert (pets.train.images[0] == 77).all()
    difference = pets.test.images.astype(int) - expected_arrays(arrays, "test")
    assert np.abs(difference).mean() < 10


def test_image_size_resizes_bilinearly(folders: dict[str, Path]) -> None:
    arrays = make_folder(folders["root"])
    odd = smooth((20, 9))
    Image.fromarray(odd).save(folders["root"] / "pets/test/cat/3.png")
    arrays["test/cat/3.png"] = odd
    pets = sources.load("pets", **folders, image_size=6, resize="squash")
    for split, decoded in (("train", pets.train), ("test", pets.test)):
        paths = [path for path in sorted(arrays) if path.startswith(split)]
        for image, path in zip(decoded.images, paths, strict=True):
            reference = Image.fromarray(arrays[path]).resize((6, 6), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(image, np.asarray(reference).transpose(2, 0, 1))
    assert sources.load("digits", **folders, image_size=10).train.images.shape == (1438, 1, 10, 10)


def test_threads_decode_large_images_in_order(folders: dict[str, Path]) -> None:
    for split in ("train", "test"):
        (folders["root"] / "large" / split / "any").mkdir(parents=True)
        for red in range(200):
            Image.new("RGB", (80, 60), (red, 255 - red, 7)).save(
                folders["root"] / "large" / split / f"any/{red:03}.png", compress_level=1
            )
    calls: list[tuple[int, int]] = []
    large = sources.load("large", **folders, progress=lambda done, total: calls.append((done, total)))
    np.testing.assert_array_equal(large.train.images[:, 0, 0, 0], np.arange(200))
    np.testing.assert_array_equal(large.test.images[:, 1, 59, 79], 255 - np.arange(200))
    assert [done for done, _ in calls] == [64, 128, 192, 200, 264, 328, 392, 400]
    assert {total for _, total in calls} == {400}


def test_a_second_load_reads_no_image(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(folders["root"])
    opened: list[object] = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or original(path))
    first = sources.load("pets", **folders)
    assert len({str(path) for path in opened}) == 8
    opened.clear()
    calls: list[int] = []
    assert_same(sources.load("pets", **folders, progress=lambda done, total: calls.append(done)), first)
    assert not opened
    assert not calls


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
        Image.fromarray(smooth() // 2).save(path.with_name("7.png") if change == "add" else path)
        if change == "size":
            os.utime(path, ns=times)
    second = sources.load("pets", **folders)
    assert len([entry for entry in folders["cache"].iterdir() if entry.is_dir()]) == 2
    assert (second.sha256 == first.sha256) == (change == "touch")


def test_a_failed_build_leaves_nothing(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(folders["root"])

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.load("pets", **folders, progress=interrupt)
    assert list(folders["cache"].iterdir()) == []
    assert len(sources.load("pets", **folders).train.labels) == 6


DIGITS_FILES = ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy", "meta.json")


def cached(folders: dict[str, Path], pattern: str = "digits-*") -> Path:
    (folder,) = folders["cache"].glob(pattern)
    return folder


@pytest.mark.parametrize("file", DIGITS_FILES)
@pytest.mark.parametrize("spoil", ["zeros", "flip", "empty", "shorter", "longer", "text", "gone", "folder"])
def test_a_damaged_cache_is_decoded_again_and_reported(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, file: str, spoil: str
) -> None:
    intact = sources.load("digits", **folders)
    target = cached(folders) / file
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    spoiled = {
        "zeros": bytes(len(content)), "flip": bytes(content), "empty": b"", "shorter": content[:-1],
        "longer": content + b"0", "text": b"[" * 2000,
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


def test_a_large_cache_is_compared_by_a_sample_and_on_request_whole(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with os.scandir(held):
        descriptor = os.open(held, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        sources.load("digits", **folders)
        os.close(descriptor)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, fresh.name, held.name}


def test_a_folder_that_cannot_be_written_is_named_with_its_key(folders: dict[str, Path]) -> None:
    folders["cache"].write_text("a file")
    with pytest.raises(DataError, match=r"decoded images cannot be written to .*cache.*set data\.cache=") as error:
        sources.load("digits", **folders)
    assert "\n" not in str(error.value)


def test_a_full_disk_while_decoding_is_an_error_of_one_line(folders: dict[str, Path]) -> None:
    code = (
        "import resource, sys; from datamodules import sources; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try: sources.load('digits', root=sys.argv[1], cache=sys.argv[2])\n"
        "except sources.DataError as error: print(error)"
    )
    words = [sys.executable, "-c", code, str(folders["root"]), str(folders["cache"])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout
    assert done.stdout.count("\n") == 1
    assert list(folders["cache"].iterdir()) == []


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


def test_a_folder_takes_precedence_over_the_archive_of_its_name(folders: dict[str, Path]) -> None:
    make_folder(folders["root"], "cifar10")
    assert sources.load("cifar10", **folders).classes == ("cat", "dog")


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10's own layout, in small: rows of 1,024 red, green and blue values, pickled with byte keys."""
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    images, labels = RNG.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8), np.array([3, 1, 4, 1, 9])
    files = {
        "data_batch_1": {b"data": images[:3].reshape(3, -1), b"labels": labels[:3].tolist()},
        "test_batch": {b"data": images[3:].reshape(2, -1), b"labels": labels[3:].tolist()},
        "batches.meta": {b"label_names": [f"kind {i}" for i in range(10)]},
    }
    sums = {}
    for name, content in files.items():
        text = pickle.dumps({key.decode(): value for key, value in content.items()})
        (folder / name).write_bytes(text)
        sums[name] = hashlib.md5(text).hexdigest()
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    return images, labels


def write_fashion_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """IDX files: two zeros, the type 8 (uint8), the number of axes, big-endian sizes, bytes."""
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    images, labels = RNG.integers(0, 256, (5, 1, 28, 28), dtype=np.uint8), np.array([3, 1, 4, 1, 9])
    for prefix, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        for kind, array in (("images-idx3", images[rows, 0]), ("labels-idx1", labels[rows].astype(np.uint8))):
            text = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(text)
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(text))
    return images, labels


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """MATLAB files of `X: [32, 32, 3, N]` and `y: [N, 1]`, the digit 0 written as 10."""
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    root.mkdir()
    images, labels = RNG.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8), np.array([0, 1, 4, 1, 9])
    files = {}
    for split, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        path = root / f"{split}.mat"
        savemat(path, {"X": images[rows].transpose(2, 3, 1, 0), "y": np.where(labels == 0, 10, labels)[rows, None]})
        files[split] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(SVHN, "split_list", files)
    return images, labels


def write_stl10(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Raw bytes `[N, 3, 96, 96]`, each channel column after column, and labels from 1."""
    from torchvision.datasets import STL10

    folder = root / STL10.base_folder
    folder.mkdir(parents=True)
    images, labels = RNG.integers(0, 256, (5, 3, 96, 96), dtype=np.uint8), np.array([3, 1, 4, 1, 9])
    (folder / "class_names.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    lists: dict[str, list] = {"train": [], "test": []}
    for split, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        contents = {
            "X": images[rows].transpose(0, 1, 3, 2).tobytes(),
            "y": (labels[rows] + 1).astype(np.uint8).tobytes(),
        }
        for letter, content in contents.items():
            (folder / f"{split}_{letter}.bin").write_bytes(content)
            lists[split].append([f"{split}_{letter}.bin", hashlib.md5(content).hexdigest()])
    monkeypatch.setattr(STL10, "train_list", lists["train"])
    monkeypatch.setattr(STL10, "test_list", lists["test"])
    return images, labels


@pytest.mark.parametrize(
    ("name", "write", "classes"),
    [
        ("cifar10", write_cifar10, "kind 3"),
        ("fashion_mnist", write_fashion_mnist, "Dress"),
        ("svhn", write_svhn, "3"),
        ("stl10", write_stl10, "kind 3"),
    ],
)
def test_torchvision_archives(folders: dict, monkeypatch: pytest.MonkeyPatch, name: str, write, classes: str) -> None:
    images, labels = write(folders["root"], monkeypatch)
    source = sources.load(name, **folders)
    np.testing.assert_array_equal(np.concatenate([source.train.images, source.test.images]), images)
    np.testing.assert_array_equal(np.concatenate([source.train.labels, source.test.labels]), labels)
    assert (len(source.train.labels), len(source.classes), source.classes[3]) == (3, 10, classes)


def test_torchvision_has_all_archives_and_a_failed_download_is_an_error_of_one_line(folders: dict, monkeypatch) -> None:
    from torchvision import datasets

    def offline(root: Path, *, train: bool, download: bool) -> None:
        raise OSError(f"download={download},\nno route to host")

    assert all(hasattr(datasets, kind) for kind in sources.ARCHIVES.values())
    monkeypatch.setattr(datasets, "CIFAR100", offline)
    with pytest.raises(DataError, match=r"\(download=True, no route to host\); set data\.download=true"):
        sources.load("cifar100", **folders, download=True)


def remove_test(folder: Path) -> None:
    (folder / "test").rename(folder.parent / "elsewhere")


def empty_class(folder: Path) -> None:
    (folder / "train/cat").rename(folder / "cats")
    (folder / "train/cat").mkdir()


def rename_class(folder: Path) -> None:
    (folder / "test/dog").rename(folder / "test/wolf")


def no_class(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split).rename(folder / f"old_{split}")
        (folder / split).mkdir()


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_16_bit_grey_levels_are_scaled_to_8_bits(folders: dict[str, Path], suffix: str) -> None:
    make_folder(folders["root"])
    levels = np.arange(144, dtype=np.uint16).reshape(12, 12) * 455
    replaced = folders["root"] / "pets" / "train" / "cat" / f"0{suffix}"
    replaced.with_suffix(".png").unlink()
    Image.fromarray(levels).save(replaced)
    image = sources.load("pets", **folders).train.images[0]
    expected = np.rint(levels / 65535 * 255)
    np.testing.assert_array_equal(image, np.stack([expected] * 3))
    assert np.ptp(image) > 250


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_known_white_are_refused(folders: dict[str, Path], dtype: type) -> None:
    make_folder(folders["root"])
    Image.fromarray(np.ones((12, 12), dtype=dtype)).save(folders["root"] / "pets" / "train" / "cat" / "3.tiff")
    with pytest.raises(DataError, match=r"cannot read the image .*3\.tiff \(its pixels are numbers of 32 bits"):
        sources.load("pets", **folders)


def corrupt(folder: Path) -> None:
    (folder / "train/dog/1.png").write_bytes((folder / "train/dog/1.png").read_bytes()[:90])


def not_an_image(folder: Path) -> None:
    (folder / "test/cat/3.png").write_text("<html>404</html>")


def other_size(folder: Path) -> None:
    Image.new("RGB", (13, 12)).save(folder / "test/dog/3.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove_test, r"pets has train/ and no folder test/: the layout is .*pets/\{train,test\}/<class>/<image>"),
        (empty_class, r"no image in .*pets/train/cat: fill it"),
        (rename_class, r"class '\w+' is in test and not in train \(1 such\): no probe could learn it"),
        (no_class, r"no image in .*pets/train: the layout"),
        (corrupt, r"cannot read the image .*train/dog/1\.png \(.+\): replace or remove it"),
        (not_an_image, r"cannot read the image .*test/cat/3\.png"),
        (other_size, r"train/cat/0\.png is 12 x 12 and .*test/dog/3\.png is 13 x 12; set data\.image_size=N"),
    ],
)
def test_broken_folders_are_errors_of_one_line(folders: dict[str, Path], spoil, message: str) -> None:
    make_folder(folders["root"])
    spoil(folders["root"] / "pets")
    with pytest.raises(DataError, match=message) as caught:
        sources.load("pets", **folders)
    assert "\n" not in str(caught.value)
    assert not folders["cache"].exists() or not list(folders["cache"].iterdir())


@pytest.mark.parametrize("names", [("train/cat/1", "train/dog/0", "train/dog/2"), ("train/cat/0", "test/cat/3")])
def test_all_images_that_cannot_be_read_are_named_at_once(folders: dict[str, Path], names: tuple[str, ...]) -> None:
    make_folder(folders["root"])
    files = [folders["root"] / "pets" / f"{name}.png" for name in names]
    for file in files:
        file.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        sources.load("pets", **folders)
    assert str(caught.value).startswith(f"cannot read the image {files[0]} (")
    assert str(caught.value).endswith(f"; the same holds for {', '.join(map(str, files[1:]))}")
    assert not list(folders["cache"].iterdir())


def test_of_many_images_that_cannot_be_read_some_are_named(folders: dict[str, Path]) -> None:
    for index in range(40):
        file = folders["root"] / "pets" / f"{index:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        sources.load("pets", **folders)
    assert str(caught.value).partition("; the same holds for ")[2].count(".png") == 19
    assert str(caught.value).endswith(", ...")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "imagenet"},
            r"'imagenet': looked for .*data/imagenet/\{train,test\}/<class>/; .*data\.root=.* digits, ",
        ),
        ({"name": "digist"}, r"no data set 'digist' in .*data \(did you mean 'digits'\?\); set data\.root=.*"),
        (
            {"name": "mine", "root": "/nowhere"},
            r"no data set 'mine': data\.root=/nowhere is no folder; set data\.root=",
        ),
        (
            {"name": "stl10"},
            r"looked for .*data/stl10/.* STL10 archive in .*data \(.+\); set data\.download=true, or data",
        ),
        (
            {"name": "photos", "archive": True},
            r"'photos': looked for .*/photos/\{train,test\}/<class>/; set data\.root",
        ),
        ({"name": "../x"}, r"data\.name='\.\./x' is not a plain name"),
        ({"name": "digits", "image_size": 0}, r"data\.image_size=0: give a number of pixels, at least 1"),
        (
            {"name": "digits", "options": {"examples": 9}},
            r"'digits' has no option 'examples'; only 'synthetic' has any: examples, cl",
        ),
        ({"name": "synthetic", "options": {"sed": 9}}, r"'synthetic' has no option 'sed'"),
        (
            {"name": "synthetic", "options": {"examples": 19}},
            r"19 examples, 4 classes, 3 channels: give .* five examples a class",
        ),
    ],
)
def test_impossible_requests_are_errors_of_one_line(folders: dict[str, Path], arguments: dict, message: str) -> None:
    folders["root"].mkdir(exist_ok=True)
    if arguments.pop("archive", False):
        (folders["root"] / "photos.zip").touch()  # it is no data set, and its name no suggestion
    with pytest.raises(DataError, match=message) as caught:
        sources.load(**folders | arguments)
    assert "\n" not in str(caught.value)
