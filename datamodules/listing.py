"""Image files of a data set before they are read, with their classes and clients; and what of it is left out."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from datamodules.errors import DataError, first
from datamodules.splits import choose, split_of

LONGEST = 200
"""Most characters of the name of a class or a client."""
_DISK = "datasets.load_dataset(FOLDER).save_to_disk(OTHER) makes a folder that data.name can name"
_ARRAYS = "give arrays train_images, train_labels, test_images, ... in NAME.npz"
_UNPACK = "unpack them"
_PICKLE = f"a pickle can run code and is not opened; {_ARRAYS}"
_HEIF = "pip install -e '.[heif]' reads HEIC"
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


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file: its path, its path within the split, and the names of its class and client, where it has them."""

    file: str
    path: str
    label: str | None
    client: str | None


Files = dict[str, list[ImageFile]]
"""Split -> its images in order of their paths; a data set without test images has no `test`."""


class Listing(NamedTuple):
    """The files of a data set, and a line for each thing that a reader of its scores has to know."""

    files: Files
    notes: tuple[str, ...] = ()


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


def settled(found: Mapping[str, list[ImageFile]], where: str, options: Mapping[str, Any], mark: str = "") -> Listing:
    """The files of train and test, of images by the data's own names of splits; see `splits.choose`.

    Raises DataError: images of which only some have a label or a client, or a test set without labels where train has.
    """
    train = options.get("train") or next((name for name in found if split_of(name) == "train"), "")
    labelled = any(image.label for image in found.get(train, ()))
    unlabelled = {name for name, images in found.items() if labelled and not any(image.label for image in images)}
    sizes = {name: len(images) for name, images in found.items()}
    names, notes = choose(sizes, where, given=options, unlabelled=unlabelled - {train}, mark=mark)
    files = {split: found[name] for split, name in names.items()}
    for split, images in files.items():
        for key in ("label", "client"):
            without = [image.path for image in images if getattr(image, key) is None]
            if 0 < len(without) < len(images):
                way = "; data.labels=false uses none" if key == "label" else ""
                raise DataError(
                    f"{where}: {without[0]} of {split} has no {key}, others have: give all one, or none{way}"
                )
    if not labelled and any(image.label for image in files.get("test", ())):
        notes = (*notes, f"the labels of {names['test']}{mark} are not used: {names['train']}{mark} has none")
    return Listing(files, notes)


def suffix_of(name: str) -> str:
    """The suffix of a file's name, in small letters."""
    return os.path.splitext(name)[1].lower()


def walk(folder: Path | str, root: Path, other: Counter[str], without: str | None = None) -> Iterator[str]:
    """Paths of the images under a folder relative to `root`, in order; hidden files are left out.

    other: counts files of other formats by suffix. without: a folder in it that is passed over.
    """
    entries = sorted((entry for entry in os.scandir(folder) if not is_skipped(entry.name)), key=lambda each: each.name)
    others: Counter[str] = Counter()
    empty = True
    for entry in entries:
        if entry.is_dir():
            if entry.name == without:
                continue
            _check_folder(entry, folder)
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


def _check_folder(entry: os.DirEntry[str], folder: Path | str) -> None:
    """Raises DataError: a folder with a name that cannot be a class's, or a link upwards."""
    if not entry.name.isprintable() or len(entry.name) > LONGEST:
        raise DataError(
            f"the folder {entry.path!a} has a name that cannot be printed, or one of more than {LONGEST} "
            "characters: rename it"
        )
    if entry.is_symlink() and Path(folder).resolve().is_relative_to(Path(entry.path).resolve()):
        raise DataError(f"{entry.path} is a link to a folder that it lies in: remove it")
