"""Image files of a data set before they are read, with their classes and clients; and what of it is left out."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from datamodules.errors import DataError, first
from datamodules.pictures import read_image
from datamodules.raw import Raw, raw
from datamodules.splits import Part, choose

LONGEST = 200
"""Most characters of the name of a class or a client."""
_DISK = "datasets.load_dataset(FOLDER).save_to_disk(OTHER) makes a folder that data.name can name"
_ARRAYS = "give arrays train_images, train_labels, test_images, ... in NAME.npz"
_UNPACK = "unpack them"
_PICKLE = f"a pickle can run code and is not opened; {_ARRAYS}"
_HEIF = "pip install 'fulcrum-ful[heif]' reads HEIC"
_CONVERT = "convert them, for example to PNG"
WAYS = {
    **dict.fromkeys((".heic", ".heif", ".hif"), _HEIF),
    **dict.fromkeys((".avif", ".avifs"), "a Pillow of today reads AVIF"),
    **dict.fromkeys((".dcm", ".nii", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"), _CONVERT),
    **dict.fromkeys((".parquet", ".arrow"), _DISK),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar"), _UNPACK),
    **dict.fromkeys((".pkl", ".pickle", ".pt", ".pth"), _PICKLE),
    **dict.fromkeys((".npy", ".npz", ".mat", ".h5", ".hdf5", ".tfrecord", ".bin"), _ARRAYS),
    ".csv": "a table is named by data.name, and lies beside its images: NAME.csv with path,label",
}
"""Format that is not read as an image -> what to do."""
SYSTEM = ("__MACOSX", "@eaDir")
"""Folders that archivers and file servers add."""
IMAGES = frozenset(suffix for suffix, way in WAYS.items() if way in (_HEIF, _CONVERT) or suffix.startswith(".avif"))
"""Formats of images that may not be readable."""


class ImageFile(NamedTuple):
    """An image file: its path, its path within the split, and the names of its class and client, where it has them."""

    file: str
    path: str
    label: str | None
    client: str | None


def is_skipped(name: str) -> bool:
    """Whether a file or folder is none of the data's: hidden, or made by a system."""
    return name[0] == "." or name in SYSTEM


@cache
def formats() -> frozenset[str]:
    """Suffixes of the images that can be read: Pillow's and, where pillow-heif is installed, HEIC."""
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN)


def other_formats(counts: Mapping[str, int]) -> str:
    """How many files of which suffix are no images, and what to do with the first that there is a way for."""
    shown = sorted(counts, key=lambda suffix: (suffix not in IMAGES, -counts[suffix], suffix))
    numbers = [f"{counts[suffix]:,} {suffix or 'without a suffix'}" for suffix in shown]
    way = next((f" ({WAYS[suffix]})" for suffix in shown if suffix in WAYS), "")
    return first(numbers, 6) + way


def of_files(found: Mapping[str, Sequence[ImageFile]], where: str, options: Mapping[str, Any], mark: str = "") -> Raw:
    """The data set of image files, by the data's own names of splits; see `splits.choose`.

    Raises DataError: images of which only some have a label or a client, or a test set without labels where train has.
    """
    parts = {}
    for name, images in found.items():
        files, paths, labels, clients = map(list, zip(*images, strict=True))
        parts[name] = Part(files, labels if any(labels) else None, clients if any(clients) else None, paths)
    names, notes = choose(parts, where, options, mark)
    chosen = {split: parts[name] for split, name in names.items()}
    if chosen["train"].labels is None and "test" in chosen and chosen["test"].labels is not None:
        notes += (f"the labels of {names['test']}{mark} are not used: {names['train']}{mark} has none",)
    return raw(chosen, where, read_image, notes=notes)


def stamps(files: Raw) -> list[tuple[Any, ...]]:
    """What changes where the files do: split, path, class, client, size and time of each."""
    made: list[tuple[Any, ...]] = []
    for split, images in files.images.items():
        labels = [files.classes[label] if files.classes else None for label in files.labels[split]]
        clients = files.clients.get(split, [None] * len(images))
        for image, *said in zip(images, files.paths[split], labels, clients, strict=True):
            stat = os.stat(image)
            made.append((split, *said, stat.st_size, stat.st_mtime_ns))
    return made


def suffix_of(name: str) -> str:
    """The suffix of a file's name, in small letters."""
    return os.path.splitext(name)[1].lower()


def walk(folder: Path | str, root: Path, other: Counter[str], without: Path | None = None) -> Iterator[str]:
    """Paths of the images under a folder relative to `root`, in order; hidden files are left out.

    other: counts files of other formats by suffix. without: a folder in it that is passed over.
    """
    entries = sorted((entry for entry in os.scandir(folder) if not is_skipped(entry.name)), key=lambda each: each.name)
    others: Counter[str] = Counter()
    empty = True
    for entry in entries:
        if without is not None and entry.path == str(without):
            continue
        if entry.is_dir():
            if not entry.name.isprintable() or len(entry.name) > LONGEST:
                raise DataError(
                    f"the folder {entry.path!a} has a name that cannot be printed, or one of more than {LONGEST} "
                    "characters: rename it"
                )
            if entry.is_symlink() and Path(folder).resolve().is_relative_to(Path(entry.path).resolve()):
                raise DataError(f"{entry.path} is a link to a folder that it lies in: remove it")
            yield from walk(entry.path, root, other)
            empty = False
        elif (suffix := suffix_of(entry.name)) in formats():
            if not entry.is_file():  # opening a pipe would wait for somebody to write into it
                raise DataError(f"{entry.path} is a pipe, a device, a folder or a link to nothing: remove it")
            empty = False
            yield os.path.relpath(entry.path, root).replace(os.sep, "/")
        else:
            others[suffix] += 1
    other.update(others)
    # a folder of texts is no class; one of images that cannot be read is
    if empty and Path(folder) != root and (not others or others.keys() & IMAGES):
        holds = f"it holds {other_formats(others)}" if others else "fill it, or remove it"
        raise DataError(f"no image in {folder}: {holds}")
