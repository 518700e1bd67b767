"""Image files in folders, or listed by a CSV file: which class and which client each belongs to.

    <folder>/{train,test}/<class>/<image>             classes
    <folder>/{train,test}/<client>/<class>/<image>    clients and classes
    <folder>/{train,test}/<client>/<image>            clients, no labels: where the partition is `folders`
    <folder>/{train,test}/<image>                     no labels

Without train/ and test/ the folder itself is one of these, and a fifth of its images is held out as test. Images in
`<folder>/probe/` are another data set, see `datamodules.sources`.
"""

import csv
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from datamodules.cache import SPLITS, Raw
from datamodules.errors import DataError, UnreadableError
from datamodules.pictures import Picture, of_pillow

# an image that cannot be read is an error with a line of its own
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.\w+ImagePlugin")

PROBE = "probe"
"""Folder beside train/ with labelled images for the protocols."""
LONGEST = 200
"""Most characters of the name of a class or a client."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file: its path, its path within the split, and the names of its class and client, where it has them."""

    file: str
    path: str
    label: str | None
    client: str | None


Files = dict[str, list[ImageFile]]
"""Split -> its images in order of their paths; a data set without test images has no `test`."""


def in_folder(folder: Path, *, labels: bool, clients: bool) -> Files:
    """The images of a folder; see the module for its layouts.

    Args:
        labels: whether folders name classes. clients: whether the first folder is the client's where there is only one.

    Raises DataError: another layout, an empty folder, or a file that is not one.
    """
    splits = {split: folder / split for split in SPLITS if (folder / split).is_dir()} or {"train": folder}
    layout = f"the layout is {folder}/{{train,test}}/<class>/<image>"
    if "train" not in splits:
        raise DataError(f"{folder} has test/ and no folder train/: {layout}")
    files: Files = {}
    for split, path in splits.items():
        images = list(_walk(path, path, (PROBE,) if path == folder else ()))
        if not images:
            raise DataError(f"no image in {path}: {layout}")
        depths = {image.count("/"): image for image in images}
        if len(depths) > 1:
            first, second = list(depths.values())[:2]
            raise DataError(
                f"images of {path} lie at several depths, {first} and {second}: put all as deep as each other"
            )
        (depth,) = depths
        if depth > 2:
            raise DataError(f"{path}/{images[0]} lies too deep: the layout is <client>/<class>/<image> at most")
        # class folders of test/ beside client folders with classes in train/
        one_is_client = clients and not (split == "test" and any(file.client and file.label for file in files["train"]))
        files[split] = [_file(path, image, labels, one_is_client) for image in images]
    has_probe = (folder / PROBE).is_dir()
    if "test" not in files and splits["train"] != folder and files["train"][0].label and not (clients or has_probe):
        raise DataError(
            f"{folder} has train/ and no folder test/: {layout}; if the folders in train/ are clients, set "
            "partition.name=folders, and data.labels=false if they are anything else than classes"
        )
    return files


def _file(folder: Path, path: str, labels: bool, one_is_client: bool) -> ImageFile:
    """The image file at a path within a split's folder."""
    *names, _ = path.split("/")
    client = names[0] if len(names) == 2 or (names and one_is_client) else None
    label = names[-1] if labels and names and (client is None or len(names) == 2) else None
    return ImageFile(os.path.join(folder, path), path, label, client)


def _walk(folder: Path | str, root: Path, skipped: Sequence[str] = ()) -> Iterator[str]:
    """Paths of the images under a folder relative to `root`, in order; hidden files and other formats are left out."""
    formats = {suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN}
    entries = sorted((entry for entry in os.scandir(folder) if entry.name[0] != "."), key=lambda entry: entry.name)
    images, empty = 0, True
    for entry in entries:
        if entry.name in skipped:
            continue
        if entry.is_dir():
            if not entry.name.isprintable() or len(entry.name) > LONGEST:
                raise DataError(
                    f"the folder {entry.path!a} has a name that cannot be printed, or one of more than {LONGEST} "
                    "characters: rename it"
                )
            if entry.is_symlink() and Path(folder).resolve().is_relative_to(Path(entry.path).resolve()):
                raise DataError(f"{entry.path} is a link to a folder that it lies in: remove it")
            yield from _walk(entry.path, root)
            empty = False
        elif Path(entry.name).suffix.lower() in formats:
            if not entry.is_file():  # opening a pipe would wait for somebody to write into it
                raise DataError(f"{entry.path} is a pipe, a device, a folder or a link to nothing: remove it")
            images, empty = images + 1, False
            yield os.path.relpath(entry.path, root).replace(os.sep, "/")
    if empty and Path(folder) != root:
        raise DataError(f"no image in {folder}: fill it, or remove it")


def in_table(file: Path) -> Files:
    """The images that a CSV file lists: columns `path`, from the file's folder, and any of `label`, `client`, `split`.

    split: train or test; without that column a fifth of the images is held out as test.

    Raises DataError: a missing or unknown column, a path that leads out of the folder, twice the same image, a missing
    file, or images of which only some have a label or a client.
    """
    files: Files = {}
    seen: set[str] = set()
    for row in rows(file, ("path",), ("label", "client", "split")):
        split = row.text.get("split") or "train"
        if split not in SPLITS:
            raise DataError(f"{row}: split={split!r}: give train or test")
        path = inside(row.text["path"], str(row))
        if path in seen:
            raise DataError(f"{row}: {path} is listed twice: give each image once")
        seen.add(path)
        if not (file.parent / path).is_file():
            raise DataError(f"{row}: there is no image {file.parent / path}")
        names = [row.text.get(key) or None for key in ("label", "client")]
        files.setdefault(split, []).append(ImageFile(str(file.parent / path), path, *names))
    for split, images in files.items():
        for key in ("label", "client"):
            without = [image.path for image in images if getattr(image, key) is None]
            if 0 < len(without) < len(images):
                raise DataError(f"{file}: {without[0]} of {split} has no {key}, others have: give all one, or none")
        images.sort(key=lambda image: image.path)
    if "train" not in files:
        raise DataError(f"{file} lists no training image: give it rows, and a header of path,label[,client][,split]")
    return files


@dataclass(frozen=True)
class Row:
    """A row of a CSV file: its texts by column. As a string, the file and the line."""

    file: Path
    line: int
    text: dict[str, str]

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


def rows(file: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a CSV file with a header, of texts that can be printed.

    Raises DataError: it cannot be read, or lacks a required column, or has one that is neither required nor optional.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            known = f"the columns are {', '.join(required)}"
            known += f", and any of {', '.join(optional)}" if optional else ""
            if twice := [name for name in header if header.count(name) > 1]:
                raise DataError(f"{file} has two columns {twice[0]!r}: {known}")
            if missing := [name for name in required if name not in header]:
                marks = {";": "semicolons", "\t": "tabs"}
                mark = next((word for mark, word in marks.items() if mark in "".join(reader.fieldnames)), None)
                hint = f"; separate columns by commas, not by {mark}" if mark else ""
                raise DataError(f"{file} has no column {missing[0]!r}: {known}{hint}")
            if unknown := [name for name in header if name not in (*required, *optional)]:
                raise DataError(f"{file} has a column {unknown[0]!r}: {known}")
            for content in reader:
                row = Row(file, reader.line_num, {key: (content[key] or "").strip() for key in header})
                if None in content or not all(map(str.isprintable, row.text.values())):
                    raise DataError(f"{row}: it has more values than columns, or characters that cannot be printed")
                if any(len(row.text.get(key, "")) > LONGEST for key in ("label", "client")):
                    raise DataError(f"{row}: a name of more than {LONGEST} characters: shorten it")
                if empty := [key for key in required if not row.text[key]]:
                    raise DataError(f"{row}: {empty[0]} is empty")
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is no CSV file in UTF-8 ({error})") from error


def inside(path: str, where: str) -> str:
    """A relative path in its shortest form. Raises DataError where it leads out of its folder; where: for messages."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if path.startswith("/"):
        raise DataError(f"{where}: {path!r} leads out of the folder: give a path within it, relative to it")
    if not parts or ".." in parts:
        raise DataError(f"{where}: {path!r} leads out of the folder: give a path within it")
    return str(PurePosixPath(*parts))


def raw(files: Files) -> Raw:
    """What is to be decoded: files, labels and clients. Raises DataError: classes of test that train has not."""
    names = {split: [image.label for image in images] for split, images in files.items()}
    classes = sorted({name for name in names["train"] if name is not None})
    if unknown := sorted({name for name in names.get("test", ()) if name is not None} - set(classes)):
        if classes:
            raise DataError(
                f"class {unknown[0]!r} is in test and not in train ({len(unknown)} such): no probe could learn it; "
                "give train images of it, or remove it from test"
            )
        names["test"] = [None] * len(names["test"])
    positions = {name: position for position, name in enumerate(classes)}
    return Raw(
        tuple(classes),
        {split: [image.file for image in images] for split, images in files.items()},
        {split: np.array([positions.get(name or "", 0) for name in each]) for split, each in names.items()},
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
