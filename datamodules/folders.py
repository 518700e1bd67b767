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
from dataclasses import replace
from pathlib import Path
from typing import Any

from datamodules.errors import DataError, first
from datamodules.listing import ImageFile, formats, is_skipped, of_files, other_formats, suffix_of, walk
from datamodules.raw import Raw
from datamodules.splits import OPTIONS, SPLITS, split_of
from datamodules.tables import beside

# an image that cannot be read is an error with a line of its own
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.\w+ImagePlugin")
warnings.filterwarnings("ignore", message="Palette images with Transparency", module="PIL")  # a note says it

CLASSES = ("folder", "path")
"""Values of `data.options.classes`: a class is an image's own folder, or the path to it."""
FOLDER_OPTIONS = ("classes", *OPTIONS)
PROBE = "probe"
"""Folder beside train/ with labelled images for the protocols, in any case."""
NAMELESS = "images"
"""Folder that names neither a class nor a client where all images of a split lie in one, in any case."""


def in_folder(
    folder: Path, *, labels: bool, clients: bool, options: Mapping[str, Any] | None = None, unused_by: str = ""
) -> Raw:
    """The images of a folder; see the module for its layouts.

    Args:
        labels: whether folders name classes. clients: whether the first folder is the client's where there is only one.
        options: `classes`, one of CLASSES; `train` and `test`, names of folders. unused_by: what does not use clients
            that folders name, for a line that says so; none where it is empty.

    Raises DataError: another layout, an empty folder, a file that is not one, or test images without labels where the
    training images have some.
    """
    options = options or {}
    if options.get("classes", CLASSES[0]) not in CLASSES:
        raise DataError(f"data.options.classes={options['classes']}: give one of {', '.join(CLASSES)}")
    layout = f"the layout is {folder}/{{train,test}}/<class>/<image>"
    splits = _splits(folder, options, layout)
    layers = _Layers(folder, layout, labels, clients, options.get("classes") == "path")
    found = {} if splits else {"train": layers.read(folder, whole=True)}
    for name, path in splits.items():
        try:
            found[name] = layers.read(path)
        except DataError:
            has_test = any(split_of(each) == "test" for each in found)
            if not has_test or split_of(name) != "val" or name in options.values():  # it would not be left out
                raise
    read = of_files(found, str(folder), options, "/")
    left_out = _beside_splits(folder, found) if splits else []
    if splits and "test" not in read.images:
        train = next(iter(splits))
        if left_out and labels and not (options or "/" in read.paths["train"][0]):
            raise DataError(
                f"{folder} has images in {train}/ and in folders beside it ({left_out[0]}): if it is a class, rename "
                f"it; else put its images into {train}/<class>/"
            )
        if read.classes and not ("test" in options or clients or probe_of(folder)):
            raise DataError(
                f"{folder} has {train}/ and no folder test/: {layout}; data.options.splits.test=null holds a fifth "
                "out; if the folders in train/ are clients, set partition.name=folders, and data.labels=false if they "
                "are anything else than classes"
            )
    notes = [*read.notes, *layers.notes, *left_out]
    if layers.other:
        notes.append(f"left out, as no images that are read: {other_formats(layers.other)}")
    if unused_by and "train" in read.clients:
        notes.append(_unused(read.clients["train"], read.labels["train"].tolist(), unused_by))
    return replace(read, notes=tuple(notes))


def _unused(clients: Sequence[str], labels: Sequence[int], unused_by: str) -> str:
    """The line that says that folders are read as clients whom nothing uses."""
    pairs, classes = len(set(zip(clients, labels, strict=True))), len(set(labels))
    merged = f", and their {pairs:,} folders as {classes:,} classes, by name" if pairs > classes else ""
    return (
        f"first folders ({first(sorted(set(clients)))}) are read as clients, which {unused_by} does not use{merged}; "
        "data.options.classes=path makes a class of each folder in them"
    )


def probe_of(folder: Path) -> Path | None:
    """The folder of labelled images for the protocols; None where there is none."""
    return next((path for path in sorted(folder.iterdir()) if path.is_dir() and path.name.casefold() == PROBE), None)


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
        if is_skipped(entry.name) or entry.name in read or (entry.is_dir() and entry.name.casefold() == PROBE):
            continue
        if entry.is_dir():
            names = [name for _, _, files in os.walk(entry.path) for name in files]
            if count := sum(suffix_of(name) in formats() and name[0] != "." for name in names):
                notes.append(f"{entry.name}/ ({count:,} images) is left out")
        else:
            loose += suffix_of(entry.name) in formats()
    return [*notes, *([f"{loose:,} images beside the folders of splits are left out"] if loose else [])]


class _Layers:
    """How the folders of splits are read, one after another, train first; and a line for each thing to know."""

    def __init__(self, root: Path, layout: str, labels: bool, clients: bool, by_path: bool) -> None:
        self.root, self.layout, self.labels, self.clients, self.by_path = root, layout, labels, clients, by_path
        self.first: ImageFile | None = None
        self.notes: list[str] = []
        self.other: Counter[str] = Counter()  # files that are no images and were not read, by suffix

    def read(self, folder: Path, whole: bool = False) -> list[ImageFile]:
        """The images of a split's folder. Raises DataError.

        whole: whether it is the data set's folder, which may have a probe/ in it.
        """
        mine: Counter[str] = Counter()
        paths = list(walk(folder, folder, mine, without=probe_of(folder) if whole else None))
        self.other += mine
        if not paths:
            inner = first([f"{entry.name}/" for entry in os.scandir(folder) if entry.is_dir()])
            holds = ", ".join(filter(None, (inner, other_formats(mine)))) or "nothing"
            layout = f"looked for {folder}/<class>/<image>, or train/ and test/ with such" if whole else self.layout
            raise DataError(f"no image in {folder}: it holds {holds}; {layout}")
        if whole:
            _refuse_splits_below(folder, paths)
        names = self._names(folder, paths)
        # class folders of test/ beside client folders with classes in train/
        one_is_client = self.clients and not (self.first and self.first.client and self.first.label)
        images = [self._file(folder, path, each, one_is_client) for path, each in zip(paths, names, strict=True)]
        images = self._annotated(folder, images) if self.labels and not any(names) else images
        self.first = self.first or images[0]
        return images

    def _names(self, folder: Path, paths: Sequence[str]) -> list[list[str]]:
        """The folders of each image that name something. Raises DataError: some lie deeper than others, or too deep."""
        folders = [path.split("/")[:-1] for path in paths]
        drop = {k for k in range(min(map(len, folders))) if all(each[k].casefold() == NAMELESS for each in folders)}
        names = [[name for k, name in enumerate(each) if k not in drop] for each in folders]
        depths: dict[int, str] = {}
        for each, path in zip(names, paths, strict=True):
            depths.setdefault(len(each), path)
        if len(depths) > 1 and not (self.by_path and 0 not in depths):
            one, other = list(depths.values())[:2]
            raise DataError(
                f"images of {folder} lie at several depths, {one} and {other}: put all as deep as each other, or "
                "name the folder that has the images alone"
            )
        if (depth := max(depths)) > 2 and not self.by_path:
            raise DataError(
                f"{folder}/{depths[depth]} lies too deep: the layout is <client>/<class>/<image> at most; "
                "data.options.classes=path makes a class of each folder, however deep"
            )
        return names

    def _file(self, folder: Path, path: str, names: Sequence[str], one_is_client: bool) -> ImageFile:
        """The image file at a path within a split's folder, in these folders."""
        file = os.path.join(folder, path)
        if self.by_path and self.labels:
            return ImageFile(file, path, "/".join(names) or None, names[0] if names and self.clients else None)
        client = names[0] if len(names) == 2 or (names and one_is_client) else None
        label = names[-1] if self.labels and names and (client is None or len(names) == 2) else None
        return ImageFile(file, path, label, client)

    def _annotated(self, folder: Path, images: list[ImageFile]) -> list[ImageFile]:
        """The images with the classes and clients that a file in their folder gives, or one in the data set's."""
        said, prefix = beside(folder), ""
        if said is None and folder != self.root:
            said, prefix = beside(self.root), f"{folder.relative_to(self.root)}/"
        if said is None:
            return images
        short = {path.rpartition("/")[2]: names for path, names in said.names.items()} if said.by_name else {}
        names = [
            said.names.get(prefix + image.path) or short.get(image.path.rpartition("/")[2], (None, None))
            for image in images
        ]
        if not any(label for label, _ in names):
            self.notes.append(f"{said.file} is not read: {said.reason or f'it has no label of {images[0].path}'}")
            return images
        self.notes.append(f"the labels of {folder.name}/ are those of {said.file.name}")
        if said.file.parent == folder:
            self.other -= Counter([suffix_of(said.file.name)])
        return [image._replace(label=each[0], client=each[1]) for image, each in zip(images, names, strict=True)]


def _refuse_splits_below(folder: Path, paths: Sequence[str]) -> None:
    """Raises DataError: the second folders have the names of splits, and would be taken for classes."""
    names = sorted({parts[1] for path in paths if len(parts := path.split("/")) > 2})
    kinds = {split_of(name) for name in names}
    if "train" in kinds and (kinds & {"test", "val"} or kinds == {"train"}):
        top = paths[0].split("/")[0]
        shown = ", ".join(name for name in names if split_of(name))
        raise DataError(
            f"{folder}: the folders {shown} in {top}/ look like splits: put them first, {folder}/{{train,test}}/..., "
            f"or set data.root={folder} data.name={top}"
        )
