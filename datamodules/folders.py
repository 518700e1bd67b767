"""Image files in folders: which class and which client each belongs to.

    <folder>/{train,test}/<class>/<image>             classes
    <folder>/{train,test}/<client>/<class>/<image>    clients and classes
    <folder>/{train,test}/<client>/<image>            clients, no labels: where the partition is `folders`
    <folder>/{train,test}/<image>                     no labels, or those of a `metadata.csv` beside them

`splits.NAMES` has other names of train and test; a `val` beside a test is left out, without one it is the test set.
Without any of them the folder itself is one of these, and a fifth of its images is held out as test. A folder `images`
that all images of a split lie in names nothing (Tiny-ImageNet's `<class>/images/<image>`). Images in
`<folder>/probe/` are another data set, see `datamodules.sources`. Every folder and file that is left out is in a note.
"""

import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules.cache import Raw
from datamodules.errors import DataError, UnreadableError, first
from datamodules.layout import Layout, is_probe, probe_of
from datamodules.listing import (
    Files,
    ImageFile,
    Listing,
    formats,
    is_skipped,
    other_formats,
    settled,
    suffix_of,
)
from datamodules.pictures import Picture, of_pillow
from datamodules.splits import OPTIONS, SPLITS, split_of

# an image that cannot be read is an error with a line of its own
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.\w+ImagePlugin")
warnings.filterwarnings("ignore", message="Palette images with Transparency", module="PIL")  # a note says it

CLASSES = ("folder", "path")
"""Values of `data.options.classes`: a class is an image's own folder, or the path to it."""
FOLDER_OPTIONS = ("classes", *OPTIONS)


def in_folder(
    folder: Path, *, labels: bool, clients: bool, options: Mapping[str, Any] | None = None, unused_by: str = ""
) -> Listing:
    """The images of a folder; see the module for its layouts.

    Args:
        labels: whether folders name classes. clients: whether the first folder is the client's where there is only one.
        options: `classes`, one of CLASSES; `train` and `test`, names of folders. unused_by: what does not use clients
            that folders name, for a line that says so; none where it is empty.

    Raises DataError: another layout, an empty folder, a file that is not one, or test images without labels where the
    training images have some.
    """
    options = dict(options or {})
    if options.get("classes", CLASSES[0]) not in CLASSES:
        raise DataError(f"data.options.classes={options['classes']}: give one of {', '.join(CLASSES)}")
    other: Counter[str] = Counter()
    layout = f"the layout is {folder}/{{train,test}}/<class>/<image>"
    splits = _splits(folder, options, layout)
    read = Layout(folder, labels, clients, options.get("classes") == "path")
    if not splits:
        files, notes = {"train": read.split(folder, layout, other, whole=True)}, list(read.notes)
    else:
        found = {}
        for name, path in splits.items():
            try:
                found[name] = read.split(path, layout, other)
            except DataError:
                has_test = any(split_of(each) == "test" for each in found)
                if not has_test or split_of(name) != "val" or name in options.values():  # it would not be left out
                    raise
        listing = settled(found, str(folder), options, "/")
        files, beside = listing.files, _beside_splits(folder, found)
        notes = [*listing.notes, *read.notes, *beside]
        if beside and labels and not (options or "test" in files or "/" in files["train"][0].path):
            raise DataError(
                f"{folder} has images in {next(iter(splits))}/ and in folders beside it ({beside[0]}): if it is a "
                f"class, rename it; else put its images into {next(iter(splits))}/<class>/"
            )
        has_probe = probe_of(folder) is not None
        if not ("test" in files or "test" in options or clients or has_probe) and files["train"][0].label:
            raise DataError(
                f"{folder} has {next(iter(splits))}/ and no folder test/: {layout}; data.options.splits.test=null "
                "holds a fifth out; if the folders in train/ are clients, set partition.name=folders, and "
                "data.labels=false if they are anything else than classes"
            )
    if other := other - read.used:
        notes.append(f"left out, as no images that are read: {other_formats(other)}")
    if unused_by and files["train"][0].client is not None:
        notes.append(_unused(files["train"], unused_by))
    return Listing(files, tuple(notes))


def _unused(images: Sequence[ImageFile], unused_by: str) -> str:
    """The line that says that folders are read as clients whom nothing uses."""
    names = sorted({image.client or "" for image in images})
    pairs = len({(image.client, image.label) for image in images})
    classes = len({image.label for image in images})
    merged = f", and their {pairs:,} folders as {classes:,} classes, by name" if pairs > classes else ""
    return (
        f"first folders ({first(names)}) are read as clients, which {unused_by} does not use{merged}; "
        "data.options.classes=path makes a class of each folder in them"
    )


def _splits(folder: Path, options: Mapping[str, Any], layout: str) -> dict[str, Path]:
    """The folders of splits by their names, train first; none where the folder itself is a layout.

    Raises DataError: there is a test and no train.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not is_skipped(entry.name))
    given = [options[key] for key in SPLITS if options.get(key) is not None]
    if missing := [name for name in given if name not in names]:
        raise DataError(
            f"data.options.splits: {folder} has no folder {missing[0]}: its folders are {', '.join(names[:10])}"
        )
    kinds = {name: split_of(name) for name in names}
    train = options.get("train") or next((name for name in names if kinds[name] == "train"), None)
    if train is None:
        if tests := [name for name in names if kinds[name] == "test" or name in given]:
            raise DataError(
                f"{folder} has {tests[0]}/ and no folder train/: {layout}; "
                "data.options.splits.train=NAME names another folder; rename it if it is a class or a client"
            )
        return {}
    rank = {"train": 0, "test": 1, "val": 2, None: 3}
    others = [name for name in names if name != train and (kinds[name] or name in given)]
    order = [train, *sorted(others, key=lambda name: rank[kinds[name]])]
    return {name: _inner(folder / name) for name in order}


def _inner(path: Path) -> Path:
    """The folder of a split, or the only one in it, where that has the split's name again: `seg_train/seg_train/`."""
    entries = [entry for entry in os.scandir(path) if not is_skipped(entry.name)]
    again = len(entries) == 1 and entries[0].is_dir() and split_of(entries[0].name) == split_of(path.name) is not None
    return path / entries[0].name if again else path


def _beside_splits(folder: Path, read: Collection[str]) -> list[str]:
    """A line for each folder with images beside those of the splits that were read, and for images beside them."""
    loose, notes = 0, []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_skipped(entry.name) or entry.name in read or (is_probe(entry.name) and entry.is_dir()):
            continue
        if entry.is_dir():
            names = [name for _, _, files in os.walk(entry.path) for name in files]
            if count := sum(suffix_of(name) in formats() and name[0] != "." for name in names):
                notes.append(f"{entry.name}/ ({count:,} images) is left out")
        else:
            loose += suffix_of(entry.name) in formats()
    return [*notes, *([f"{loose:,} images beside the folders of splits are left out"] if loose else [])]


def raw(files: Files) -> Raw:
    """What is to be decoded: files, labels and clients. Raises DataError: classes of test that train has not."""
    names = {split: [image.label for image in images] for split, images in files.items()}
    classes = sorted({name for name in names["train"] if name is not None})
    if classes and (unknown := sorted({name or "" for name in names.get("test", ())} - set(classes))):
        raise DataError(
            f"class {unknown[0]!r} is in test and not in train ({len(unknown)} such): no probe could learn it; "
            "give train images of it, or remove it from test"
        )
    positions = {name: position for position, name in enumerate(classes)}
    return Raw(
        tuple(classes),
        {split: [image.file for image in images] for split, images in files.items()},
        {
            split: np.array([positions[name or ""] for name in each] if classes else [0] * len(each), dtype=np.int64)
            for split, each in names.items()
        },
        read_image,
        {
            split: [image.client or "" for image in images]
            for split, images in files.items()
            if images[0].client is not None
        },
        {split: [image.path for image in images] for split, images in files.items()},
    )


def stamps(files: Files) -> list[tuple[str, str, str | None, str | None, int, int]]:
    """What changes where the files do: split, path, class, client, size and time of each."""
    stats = ((split, image, os.stat(image.file)) for split, images in files.items() for image in images)
    return [
        (split, image.path, image.label, image.client, stat.st_size, stat.st_mtime_ns) for split, image, stat in stats
    ]


def read_image(path: str) -> Picture:
    """An image file as a picture of three channels."""
    try:
        with Image.open(path) as image:
            read = of_pillow(image)
            return read._replace(values=np.repeat(read.values, 3 // len(read.values), axis=0))
    except Exception as error:  # decoders raise errors of many unrelated classes for a broken file
        raise UnreadableError(path, str(error)) from error
