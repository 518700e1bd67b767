"""Sources of images: embedded, generated, a user's own, torchvision archives; decoded once, memory-mapped.

A source's arrays are stored in `<cache>/<name>-<key>/` (see `datamodules.cache`); the key changes with everything that
would change their content. Only CIFAR's archives are unpickled, whose md5 torchvision has checked; `numpy.load` refuses
objects.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules import arrays, embedded, folders, leaf
from datamodules.archives import archive
from datamodules.cache import Decoded, Progress, opened
from datamodules.columns import COLUMNS
from datamodules.damaged import OPTION as SKIP
from datamodules.embedded import EMBEDDED, SYNTHETIC
from datamodules.errors import DataError, first
from datamodules.listing import stamps
from datamodules.order import ordered
from datamodules.partition import of_every_class
from datamodules.pictures import checked_levels
from datamodules.raw import HELD_OUT as HELD_OUT
from datamodules.raw import Raw, with_test
from datamodules.sizes import fitting
from datamodules.splits import OPTIONS, SPLITS, is_training_images, split_names
from datamodules.tables import TABLE_OPTIONS, in_table
from datamodules.torch_dataset import of_dataset

FORMAT = 6  # included in every key; increase it when the same request produces other content, or another layout
KNOWN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "huggingface": (*COLUMNS, *OPTIONS),
    "folder": (*folders.FOLDER_OPTIONS, SKIP),
    "csv": (*TABLE_OPTIONS, SKIP),
    "leaf": OPTIONS,
    "npy": OPTIONS,
    "npz": OPTIONS,
}
"""Kind of source -> its keys of `data.options`; `synthetic` has those of SYNTHETIC."""
FROM_FILES: Mapping[str, Callable[[Path, Mapping[str, Any]], Raw]] = {
    "huggingface": arrays.of_huggingface,
    "leaf": leaf.of_leaf,
    "npy": arrays.of_numpy,
    "npz": arrays.of_numpy,
}
"""Kind of source -> what reads its files, with the options."""


@dataclass(frozen=True)
class Split:
    """`images: [N, C, H, W]` uint8, memory-mapped, and `labels: [N]` int64, positions in the source's `classes`.

    clients, paths: `[N]` texts where the data have them: the name of an image's client, its file's path in the split.
    positions: `[N]` int64, of each image in the order that its source has; None: it is the same.
    """

    images: np.ndarray
    labels: np.ndarray
    clients: np.ndarray | None = None
    paths: np.ndarray | None = None
    positions: np.ndarray | None = None

    def __getitem__(self, rows: np.ndarray) -> "Split":
        """Some of the images, copied."""
        further = (self.clients, self.paths, self.positions)
        return Split(self.images[rows], self.labels[rows], *(None if each is None else each[rows] for each in further))


@dataclass(frozen=True)
class Source:
    """A data set; `sha256` and `in_order` are hashes of images and labels, of all if limited, see `datamodules.order`.

    notes: what a reader of its scores has to know, a line each. probe: labelled images for the protocols, where these
    are not its own. whole, rows: of a limited data set, the whole one and the positions in its train. own: whether a
    user brought them, neither embedded nor an archive of torchvision. levels: of images of 16 bits
    the grey level that the request made white; None: it made none. in_folders: whether they are files in folders
    that name their classes or clients.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    sha256: str
    notes: tuple[str, ...] = ()
    in_order: str = ""
    probe: "Source | None" = None
    whole: "Source | None" = None
    rows: np.ndarray | None = None
    own: bool = False
    levels: int | None = None
    in_folders: bool = False

    @property
    def labelled(self) -> bool:
        """Whether its images have labels: at least two classes."""
        return len(self.classes) > 1

    def __str__(self) -> str:
        """Its name, classes and sizes: what a reader of a folder has made of it."""
        classes = f"{len(self.classes)} classes ({first(self.classes)})" if self.labelled else "no labels"
        sizes = f"{len(self.train.labels):,} training and {len(self.test.labels):,} test images"
        return f"{self.name}: {classes}, {sizes}"


def load(
    name: str,
    *,
    root: str | Path,
    cache: str | Path,
    download: bool = False,
    image_size: int | None = None,
    resize: str | None = None,
    channels: int | None = None,
    labels: bool = True,
    client_folders: bool = False,
    unused_by: str = "",
    hold_out: bool | None = None,
    dataset: tuple[Any, Mapping[str, Any]] | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
    levels: int | str | None = None,
    order: str = "canonical",
) -> Source:
    """Open a data set, decoding it into the cache the first time.

    Args:
        name: of `EMBEDDED`, or what is there first of `root/<name>/` (a Hugging Face data set, saved to disk or in
            parquet, the arrays of `arrays.of_numpy`, LEAF's JSON files, or image files as in `datamodules.folders`),
            `root/<name>.csv`, `root/<name>.npz`, and the torchvision archive of that name.
        root: the folder of these; cache: of decoded arrays. download: let torchvision download a missing archive.
        image_size, resize, channels: see `sizes.fitting`; `synthetic` has 8 pixels, image files have 3 channels.
        labels, client_folders, unused_by: see `folders.in_folder`.
        hold_out: whether a fifth of unlabelled images without test images is held out as test; None: unless labelled
            ones in probe/ are scored instead. Test is empty where it is not.
        dataset: target and options of `torch_dataset.of_dataset`, in place of what `name` says.
        options: of `synthetic` those of SYNTHETIC, of others KNOWN_OPTIONS.
        verify, progress, levels: see `cache.opened`. order: `canonical`, see `datamodules.order`, or
            `source`, as the source has them.

    Raises DataError: missing or unusable data, or an impossible request.
    """
    if Path(name).name != name or name in ("", ".", ".."):
        raise DataError(f"data.name={name!r} is not a plain name: give the folder's own name, its parent as data.root")
    size: dict[str, Any] = {"image_size": image_size, "resize": resize, "channels": channels}
    request: dict[str, Any] = {"format": FORMAT, **size, "levels": checked_levels(levels)}
    how: dict[str, Any] = {"verify": verify, "progress": progress}
    fit, folder = fitting(image_size, resize, channels), Path(root) / name
    of_folders = {"labels": labels, "clients": client_folders, "unused_by": unused_by}
    reader = _reader(folder, dict(options or {}), dataset, download, image_size, of_folders)
    probe_folder = folders.probe_of(folder) if reader.kind == "folder" else None
    holds_out = probe_folder is None if hold_out is None else hold_out
    sorts = order == "canonical" and reader.kind != "embedded"
    request |= {**reader.request, **({} if holds_out else {"hold_out": False}), **({"sorted": True} if sorts else {})}
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]
    read = partial(with_test, (lambda: ordered(reader.read())) if sorts else reader.read, holds_out)
    skip = bool(request.get(SKIP))
    stored = opened(Path(cache) / f"{name}-{key}", read, fit=fit, levels=levels, skip_damaged=skip, **how)
    probe = None
    if probe_folder is not None:
        kept = {key: value for key, value in (options or {}).items() if key in ("classes", SKIP)}
        probe = _probe(probe_folder, cache=cache, options=kept, levels=stored.levels, order=order, **how, **size)
    return _source(name, reader, stored, probe)


def _source(name: str, reader: "_Reader", stored: Decoded, probe: Source | None) -> Source:
    """The data set of decoded arrays."""
    kinds = [field.name for field in fields(Split)]
    train, test = (
        Split(**{kind: stored.arrays[key] for kind in kinds if (key := f"{split}_{kind}") in stored.arrays})
        for split in SPLITS
    )
    notes = (*reader.notes, *stored.notes, *_missing_classes(stored.classes, test))
    return Source(
        name,
        train,
        test,
        stored.classes,
        stored.hashes.sha256,
        notes,
        stored.hashes.in_order,
        probe,
        own=reader.kind not in ("embedded", "torchvision"),
        levels=stored.levels,
        in_folders=reader.kind == "folder" and train.paths is not None and "/" in train.paths[0],
    )


def _probe(folder: Path, **how: Any) -> Source:
    """The labelled images in a folder for the protocols. how: further arguments of `load`."""
    try:
        probe = load(folder.name, root=folder.parent, unused_by="training", **how)
    except DataError as error:  # `data.options` are not those of the probe
        cause, remedy, _ = str(error).partition("; data.options.splits.test=null")
        raise DataError(f"{cause}{'; without test/ in it a fifth is held out' if remedy else ''}") from error
    if not probe.labelled:
        raise DataError(
            f"{folder} is for labelled images, and has no two classes: the layout is "
            "probe/{train,test}/<class>/<image>"
        )
    return probe


class _Reader(NamedTuple):
    """A kind of source of images, the function that lists them, what tells its content from that of another, and notes.

    notes: those that do not depend on the content, and are not stored with it.
    """

    kind: str
    read: Callable[[], Raw]
    request: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def _reader(
    folder: Path,
    options: dict[str, Any],
    dataset: tuple[Any, Mapping[str, Any]] | None,
    download: bool,
    image_size: int | None,
    folder_options: Mapping[str, Any],
) -> _Reader:
    """How the data set is read whose folder, which need not exist, this is; the arguments are those of `load`.

    folder_options: further arguments of `folders.in_folder`.
    """
    name, files = folder.name, {kind: folder.with_name(f"{folder.name}.{kind}") for kind in ("csv", "npz")}
    kinds = {  # the first that is there
        "dataset": dataset is not None,
        "embedded": name in EMBEDDED,
        "huggingface": any((folder / file).is_file() for file in ("dataset_dict.json", "dataset_info.json"))
        or bool(arrays.parquet_files(folder)),
        "npy": any(is_training_images(file.stem) for file in folder.glob("*.npy")),
        "leaf": bool(leaf.files_of(folder)),
        "folder": folder.is_dir(),
        "csv": files["csv"].is_file(),
        "npz": files["npz"].is_file(),
        "torchvision": True,
    }
    kind = next(kind for kind, applies in kinds.items() if applies)
    options = _checked_options(name, kind, options)
    skip = {SKIP: True} if options.pop(SKIP, False) else {}
    place = {"folder": str(folder.resolve())}
    if dataset is not None:
        read_dataset, items = of_dataset(*dataset)
        return _Reader(kind, read_dataset, {"items": items})
    if name == "synthetic":
        settings = SYNTHETIC | options | {"image_size": image_size or 8}
        return _Reader(kind, partial(embedded.synthetic, **settings), {"options": settings})
    if kind == "embedded":
        return _Reader(kind, EMBEDDED[name], {})
    if kind == "torchvision":
        return _Reader(kind, partial(archive, name, folder.parent, download), {})
    if kind in FROM_FILES:
        path = files["npz"] if kind == "npz" else folder
        word = "columns" if kind == "huggingface" else "options"
        return _Reader(kind, partial(FROM_FILES[kind], path, options), {**place, "files": _stamps(path), word: options})
    if kind == "csv":
        listed = in_table(files["csv"], options, labels=folder_options["labels"])
    else:
        listed = folders.in_folder(folder, options=options, **folder_options)
    beside = [file.name for other, file in files.items() if other != kind and file.is_file()]
    notes = [f"{other} is not read, since {'the folder' if kind == 'folder' else 'the table'} is" for other in beside]
    request = {**place, "files": stamps(listed), **skip}
    return _Reader(kind, lambda: replace(listed, notes=()), request, (*listed.notes, *notes))


def limited(source: Source, limit: float) -> Source:
    """A part of a data set for a quick look: the same share of each class of train and test, drawn with seed 0.

    limit: that share where it is below 1, else about the number of training images; at least one image a class.

    Raises DataError: no share or number, or more than there are.
    """
    total = len(source.train.labels)
    if not 0 < limit <= total or (limit > 1 and limit != int(limit)):
        raise DataError(
            f"data.limit={limit:g}: give a share in (0, 1), or a number of training images, up to {total:,}"
        )
    share = limit if limit < 1 else limit / total
    rows, test_rows = (of_every_class(split.labels, share, seed=0) for split in (source.train, source.test))
    note = f"only {len(rows):,} of {total:,} training and {len(test_rows):,} of {len(source.test.labels):,} test images"
    left_out = "; natural clients of fewer than two do not take part" if source.train.paths is not None else ""
    return replace(
        source,
        train=source.train[rows],
        test=source.test[test_rows],
        notes=(*source.notes, f"{note} (data.limit={limit:g}){left_out}"),
        whole=source,
        rows=rows,
    )


def _checked_options(name: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the source takes them: numbers of `synthetic`, and names of others. Raises DataError."""
    known = tuple(SYNTHETIC) if name == "synthetic" else KNOWN_OPTIONS.get(kind, ())
    if unknown := sorted(options.keys() - set(known)):
        which = f"its options are {', '.join(known)}" if known else f"only 'synthetic' has any: {', '.join(SYNTHETIC)}"
        raise DataError(f"{name!r} has no option {unknown[0]!r}; {which}")
    checked: dict[str, Any] = {}
    for key, value in options.items():
        if key == "splits":
            checked |= split_names(value)
            continue
        if key == SKIP and kind in ("folder", "csv"):
            if not isinstance(value, bool):
                raise DataError(f"data.options.{SKIP}={value!r}: give true or false")
            checked[key] = value
            continue
        if name == "synthetic":
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise DataError(f"data.options.{key}={value!r}: give a whole number of at least 0")
        elif not isinstance(value, str | int) and not (value is None and kind == "huggingface"):
            raise DataError(f"data.options.{key}={value!r}: give a name")
        checked[key] = str(value) if value is not None and name != "synthetic" else value
    return checked


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    """Path, size and time of a file, or of each file under a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = ((str(file.relative_to(path.parent)), file.stat()) for file in files if file.is_file())
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _missing_classes(classes: tuple[str, ...], test: Split) -> list[str]:
    """A line that names the classes without test images, if there are any."""
    counts = np.bincount(test.labels, minlength=len(classes))
    if len(classes) < 2:  # without labels there is none to miss
        return []
    missing = [name for name, count in zip(classes, counts, strict=False) if not count]
    return [f"test has no image of {len(missing)} of {len(classes)} classes: {first(missing, 5)}"] if missing else []
