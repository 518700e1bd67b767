"""Sources of images: embedded, generated, image folders, torchvision archives; decoded once, memory-mapped.

A source's arrays are stored in `<cache>/<name>-<key>/` (see `datamodules.cache`); the key changes with everything that
would change their content. Nothing is unpickled here: torchvision checks the md5 of CIFAR's archives before it reads
them, and `numpy.load` refuses objects.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules.cache import SPLITS, Progress, Raw, opened
from datamodules.errors import DataError

FORMAT = 3  # included in every key; increase it when the same request produces other content, or another layout
SYNTHETIC = {"examples": 600, "classes": 4, "channels": 3, "seed": 0}
ARCHIVES = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion_mnist": "FashionMNIST"}
ARCHIVES |= {"stl10": "STL10", "svhn": "SVHN"}


@dataclass(frozen=True)
class Split:
    """`images: [N, C, H, W]` uint8, memory-mapped, and `labels: [N]` int64, positions in the source's `classes`."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Source:
    """A data set; `sha256` is of the shapes and bytes of images and labels, train before test."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    sha256: str


def load(
    name: str,
    *,
    root: str | Path,
    cache: str | Path,
    download: bool = False,
    image_size: int | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    **options: int,
) -> Source:
    """Open a data set, decoding it into the cache the first time.

    Args:
        name: `digits`, `synthetic`, the folder `root/<name>/{train,test}/<class>/*`, or the torchvision archive of
            that name; a folder takes precedence over an archive.
        root: the folder of image folders and archives; cache: the folder for decoded arrays.
        download: let torchvision download a missing archive.
        image_size: pixels; images are resized to this square, bilinearly. None: as they are (`synthetic`: 8).
        verify: compare all decoded images with their hashes, not only a sample of large files.
        progress: called with (images decoded, images in total) while decoding.
        options: of `synthetic`: `examples`, `classes`, `channels`, `seed`.

    Raises DataError: missing or unusable data, or an impossible request.
    """
    if Path(name).name != name:
        raise DataError(f"data.name={name!r} is not a plain name: give the folder's own name, its parent as data.root")
    if image_size is not None and image_size < 1:
        raise DataError(f"data.image_size={image_size}: give a number of pixels, at least 1")
    if unknown := sorted(options.keys() - (SYNTHETIC.keys() if name == "synthetic" else ())):
        raise DataError(f"{name!r} has no option {unknown[0]!r}; only 'synthetic' has any: {', '.join(SYNTHETIC)}")
    for key, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise DataError(f"data.options.{key}={value!r}: give a whole number of at least 0")
    request: dict[str, Any] = {"format": FORMAT, "image_size": image_size}
    folder = Path(root) / name
    if name == "digits":
        read_raw: Callable[[], Raw] = _digits
    elif name == "synthetic":
        settings = SYNTHETIC | options | {"image_size": image_size or 8}
        request |= settings
        read_raw = partial(_synthetic, **settings)
    elif folder.is_dir():
        files = _list_folder(folder)
        stats = [(os.path.relpath(file.path, folder), file.stat()) for split in SPLITS for _, file in files[split]]
        request["files"] = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
        read_raw = partial(_folder, files, image_size)
    else:
        read_raw = partial(_archive, name, Path(root), download)
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]
    arrays, classes, sha256 = opened(
        Path(cache) / f"{name}-{key}", read_raw, image_size, verify=verify, progress=progress
    )
    train, test = (Split(arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in SPLITS)
    return Source(name, train, test, classes, sha256)


def _as_raw(images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> Raw:
    """Hold out a fifth of each class as test, drawn with seed 0; both splits keep the order of `images`."""
    rng = np.random.default_rng(0)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(len(classes)):
        members = np.flatnonzero(labels == label)
        test[rng.permutation(members)[: round(len(members) / 5)]] = True
    split_images = {"train": images[~test], "test": images[test]}
    return Raw(classes, split_images, {"train": labels[~test], "test": labels[test]}, np.asarray)


def _digits() -> Raw:
    """Scikit-learn's 1,797 handwritten digits, 8 x 8, one channel, intensities 0..16 scaled to 0..255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)[:, None]
    return _as_raw(images, digits.target, tuple(map(str, digits.target_names)))


def _synthetic(examples: int, classes: int, channels: int, seed: int, image_size: int) -> Raw:
    """A smooth pattern of three waves per class and channel, with random contrast and pixel noise per example."""
    if channels < 1 or classes < 1 or examples < 5 * classes:
        counts = f"{examples} examples, {classes} classes, {channels} channels"
        raise DataError(f"synthetic data of {counts}: give at least one channel, one class, five examples a class")
    rng = np.random.default_rng(seed)
    frequency = rng.integers(0, 3, (2, classes, channels, 3, 1, 1))
    phase = rng.uniform(0, 2 * np.pi, (classes, channels, 3, 1, 1))
    y, x = np.mgrid[:image_size, :image_size] * (2 * np.pi / image_size)
    patterns = np.cos(frequency[0] * y + frequency[1] * x + phase).mean(axis=2)
    labels = np.arange(examples) % classes
    images = 128 + rng.uniform(60, 120, (examples, 1, 1, 1)) * patterns[labels]
    images = np.rint(images + rng.normal(0, 25, images.shape)).clip(0, 255).astype(np.uint8)
    return _as_raw(images, labels, tuple(map(str, range(classes))))


def _archive(name: str, root: Path, download: bool) -> Raw:
    missing = f"no data set {name!r}: looked for {root / name}/{{train,test}}/<class>/"
    if name not in ARCHIVES:
        choices = ", ".join(("digits", "synthetic", *ARCHIVES))
        raise DataError(f"{missing}; set data.root=... to the folder that holds {name}/, or choose one of {choices}")
    from torchvision import datasets

    kind = getattr(datasets, ARCHIVES[name])
    images, labels = {}, {}
    for split in SPLITS:
        selection: dict[str, Any] = {"split": split} if name in ("svhn", "stl10") else {"train": split == "train"}
        try:
            data = kind(root, download=download, **selection)
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split()).partition(". You can use download")[0]  # it is `data.download` here
            raise DataError(
                f"{missing} and for torchvision's {kind.__name__} archive in {root} ({reason}); "
                "set data.download=true, or data.root=... to the folder that holds one of them"
            ) from error
        array = np.asarray(data.data)  # [N, H, W], [N, H, W, 3] or [N, 3, H, W]
        array = array[:, None] if array.ndim == 3 else array
        images[split] = array.transpose(0, 3, 1, 2) if array.shape[-1] == 3 else array
        labels[split] = np.asarray(data.labels if name in ("svhn", "stl10") else data.targets)
    return Raw(tuple(getattr(data, "classes", "0123456789")), images, labels, np.asarray)


Files = dict[str, list[tuple[str, os.DirEntry[str]]]]
"""Split -> (class, image file) of every image, sorted."""


def _list_folder(folder: Path) -> Files:
    """Image files by split, classes and files in alphabetical order; hidden files and other formats are skipped."""
    formats = {suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN}
    files: Files = {split: [] for split in SPLITS}
    for split in SPLITS:
        if not (folder / split).is_dir():
            raise DataError(f"{folder} has no folder {split}/: the layout is {folder}/{{train,test}}/<class>/<image>")
        for label in filter(os.DirEntry.is_dir, _visible(folder / split)):
            if not label.name.isprintable():
                raise DataError(f"the class folder {label.path!a} has a name that cannot be printed: rename it")
            images = [entry for entry in _visible(label) if Path(entry.name).suffix.lower() in formats]
            if not images:
                raise DataError(f"no image in {label.path}: fill the class, or remove it from train/ and test/")
            for entry in images:
                if not entry.is_file():  # opening a pipe would wait for somebody to write into it
                    raise DataError(f"{entry.path} is a pipe, a device, a folder or a link to nothing: remove it")
            files[split] += [(label.name, entry) for entry in images]
        if not files[split]:
            raise DataError(f"no class folder in {folder / split}: the layout is {folder / split}/<class>/<image>")
    train, test = ({label for label, _ in files[split]} for split in SPLITS)
    if unmatched := sorted(train ^ test):
        present, missing = SPLITS if unmatched[0] in train else SPLITS[::-1]
        raise DataError(
            f"class folders of {folder} differ: {unmatched[0]!r} is in {present}/ and not in {missing}/ "
            f"({len(unmatched)} such); give both the same classes"
        )
    return files


def _visible(folder: str | Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    return sorted((entry for entry in os.scandir(folder) if entry.name[0] != "."), key=lambda entry: entry.name)


def _folder(files: Files, image_size: int | None) -> Raw:
    classes = sorted({label for label, _ in files["train"]})
    positions = {label: position for position, label in enumerate(classes)}
    images = {split: [entry.path for _, entry in files[split]] for split in SPLITS}
    labels = {split: np.array([positions[label] for label, _ in files[split]]) for split in SPLITS}
    first = images["train"][0]
    expected = _read_image(first).shape

    def read(path: str) -> np.ndarray:
        image = _read_image(path)
        if image_size is None and image.shape != expected:
            sizes = f"{first} is {expected[2]} x {expected[1]} and {path} is {image.shape[2]} x {image.shape[1]}"
            raise DataError(f"images differ in size: {sizes}; set data.image_size=N (pixels) to resize all")
        return image

    return Raw(tuple(classes), images, labels, read)


def _read_image(path: str) -> np.ndarray:
    """An image file as uint8 `[3, H, W]`; 16-bit grey levels, the most that PNG has, are scaled to 8 bits."""
    try:
        with Image.open(path) as image:
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
                grey = np.rint(np.asarray(image).astype(np.float64) / 257).astype(np.uint8)
                return np.repeat(grey[None], 3, axis=0)
            if image.mode in ("I", "F"):  # Pillow would clip them at 0 and 255
                raise ValueError("its pixels are numbers of 32 bits, and which of them is white is not known")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # decoders raise errors of many unrelated classes for a broken file
        raise DataError(f"cannot read the image {path} ({error}): replace or remove it") from error
