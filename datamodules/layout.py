"""What the folders of a split are: classes, clients, or nothing; and what a file beside the images says of them."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from datamodules.errors import DataError
from datamodules.listing import ImageFile, other_formats, suffix_of, walk
from datamodules.splits import split_of
from datamodules.tables import beside

PROBE = "probe"
"""Folder beside train/ with labelled images for the protocols."""
NAMELESS = "images"
"""Folder that names neither a class nor a client where all images of a split lie in one, in any case."""


def probe_of(folder: Path) -> Path | None:
    """The folder of labelled images for the protocols, in any case; None where there is none."""
    return next((path for path in sorted(folder.iterdir()) if path.is_dir() and is_probe(path.name)), None)


def is_probe(name: str) -> bool:
    """Whether a folder is that of labelled images for the protocols."""
    return name.casefold() == PROBE


def _refuse_splits_below(folder: Path, paths: Sequence[str]) -> None:
    """Raises DataError: the second folders have the names of splits, and would be taken for classes."""
    names = sorted({parts[1] for path in paths if len(parts := path.split("/")) > 2})
    kinds = {split_of(name) for name in names}
    if "train" in kinds and (kinds & {"test", "val"} or kinds == {"train"}):
        first = paths[0].split("/")[0]
        shown = ", ".join(name for name in names if split_of(name))
        raise DataError(
            f"{folder}: the folders {shown} in {first}/ look like splits: put them first, {folder}/{{train,test}}/..., "
            f"or set data.root={folder} data.name={first}"
        )


class Layout:
    """How the folders of splits are read, one after another, train first; and a line for each thing to know."""

    def __init__(self, root: Path, labels: bool, clients: bool, by_path: bool) -> None:
        self.root, self.labels, self.clients, self.by_path = root, labels, clients, by_path
        self.first: ImageFile | None = None
        self.notes: list[str] = []
        self.used: Counter[str] = Counter()  # files that are no images and were read, by suffix

    def split(self, folder: Path, layout: str, other: Counter[str], whole: bool = False) -> list[ImageFile]:
        """The images of a split's folder. other: counts the files that are no images. Raises DataError.

        whole: whether it is the data set's folder, which may have a probe/ in it.
        """
        mine: Counter[str] = Counter()
        probe = probe_of(folder) if whole else None
        paths = list(walk(folder, folder, mine, without=probe.name if probe else None))
        other.update(mine)
        if not paths:
            holds = f"; it holds {other_formats(mine)}" if mine else ""
            raise DataError(f"no image in {folder}: {layout}{holds}")
        if whole:
            _refuse_splits_below(folder, paths)
        folders = [path.split("/")[:-1] for path in paths]
        drop = {k for k in range(min(map(len, folders))) if all(each[k].casefold() == NAMELESS for each in folders)}
        names = [[name for k, name in enumerate(each) if k not in drop] for each in folders]
        depths: dict[int, str] = {}
        for each, path in zip(names, paths, strict=True):
            depths.setdefault(len(each), path)
        if len(depths) > 1 and not (self.by_path and 0 not in depths):
            first, second = list(depths.values())[:2]
            raise DataError(
                f"images of {folder} lie at several depths, {first} and {second}: put all as deep as each other, or "
                "name the folder that has the images alone"
            )
        if (depth := max(depths)) > 2 and not self.by_path:
            raise DataError(
                f"{folder}/{depths[depth]} lies too deep: the layout is <client>/<class>/<image> at most; "
                "data.options.classes=path makes a class of each folder, however deep"
            )
        # class folders of test/ beside client folders with classes in train/
        one_is_client = self.clients and not (self.first and self.first.client and self.first.label)
        images = [self._file(folder, path, each, one_is_client) for path, each in zip(paths, names, strict=True)]
        images = self._annotated(folder, images) if self.labels and depth == 0 else images
        self.first = self.first or images[0]
        return images

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
            self.used[suffix_of(said.file.name)] += 1
        return [ImageFile(image.file, image.path, *each) for image, each in zip(images, names, strict=True)]
