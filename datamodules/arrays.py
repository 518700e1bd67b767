"""Images that other libraries hold: NumPy files, and Hugging Face data sets saved to disk."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules import columns
from datamodules.cache import Raw
from datamodules.errors import DataError
from datamodules.pictures import Picture, as_image
from datamodules.splits import SPLITS, choose, is_missing, split_and_key, split_of

KEYS = ("images", "labels", "clients")
"""Arrays of a split, of which labels and clients may be missing."""


def of_numpy(arrays: Mapping[str, Any], where: Path, options: Mapping[str, Any] | None = None) -> Raw:
    """A data set of arrays `{train,test}_{images,labels,clients}`, of which only the training images are required.

    Images are uint8 or uint16, `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]`; labels are whole numbers or
    texts `[N]`; clients whole numbers or texts `[N]`. `splits` has other words, in either order: `val_labels`,
    `x_train`. where: for messages. options: `train` and `test`, names of splits.
    """
    known = f"the arrays are {', '.join(f'{split}_{key}' for split in SPLITS for key in KEYS)}"
    found: dict[str, dict[str, str]] = {}  # split as the arrays call it -> key -> name of the array
    for name in arrays:
        split, key = split_and_key(name)
        if split is None or key is None:
            raise DataError(f"{where} has an array {name!r}: {known}")
        if key in found.setdefault(split, {}):
            raise DataError(f"{where}: {found[split][key]} and {name} are both {key} of {split}: keep one")
        found[split][key] = name
    by_split = {split: names for split, names in found.items() if "images" in names}
    train = (options or {}).get("train") or next((split for split in by_split if split_of(split) == "train"), None)
    if train is None:
        raise DataError(f"{where} has no array train_images: {known}")
    for names in by_split.values():
        if (given_as := names.get("labels")) and all(map(is_missing, arrays[given_as].reshape(-1).tolist())):
            del names["labels"]
    has_labels = "labels" in by_split.get(train, {})
    unlabelled = {split for split, names in by_split.items() if has_labels and "labels" not in names}
    sizes = {split: len(arrays[names["images"]]) for split, names in by_split.items()}
    splits, notes = choose(sizes, str(where), given=options, unlabelled=unlabelled)
    texts: dict[str, dict[str, Sequence[Any]]] = {"labels": {}, "clients": {}}
    images = {}
    for split, given in splits.items():
        name = by_split[given]["images"]
        images[split] = channels_first(arrays[name], f"{where}, {name}")
        for key, by_key in texts.items():
            if name := by_split[given].get(key, ""):
                by_key[split] = _column(arrays[name], len(images[split]), f"{where}, {name}")
    made = labelled(images, texts["labels"], texts["clients"], np.asarray, str(where))
    alone = [name for split, names in found.items() if split not in by_split for name in names.values()]
    return replace(made, notes=(*notes, *(f"{name} is left out: its split has no images" for name in alone)))


def _column(array: np.ndarray, length: int, where: str) -> list[Any]:
    """An array of one value an image, `[N]` or `[N, 1]`, as a list."""
    column = array.reshape(-1) if array.shape in ((length,), (length, 1)) else None
    if column is None or column.dtype.kind not in "iuU":
        raise DataError(
            f"{where} is {array.dtype} {list(array.shape)}: give {length} whole numbers or texts, one an image"
        )
    values: list[Any] = column.tolist()
    return values


def channels_first(images: np.ndarray, where: str) -> np.ndarray:
    """Images of any usual layout as `[N, C, H, W]`, uint8 or uint16; C is 1, 3, or what is in its place."""
    images = images.astype(images.dtype.newbyteorder("="), copy=False)
    if images.dtype not in (np.uint8, np.uint16):
        raise DataError(f"{where} is {images.dtype}: give uint8, 0 to 255, or uint16 (see data.levels)")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] <= 4:
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or not images.size:
        raise DataError(f"{where} has shape {list(images.shape)}: give [N, H, W], [N, H, W, C] or [N, C, H, W]")
    return images


def labelled(
    images: Mapping[str, Any],
    labels: Mapping[str, Sequence[Any]],
    clients: Mapping[str, Sequence[Any]],
    read: Callable[[Any], np.ndarray | Picture],
    where: str,
    classes: Sequence[str] | None = None,
) -> Raw:
    """A data set with the names of its classes and clients: labels are positions or names in `classes`, else names.

    classes: None: the distinct labels of train, in increasing order. where: for messages.
    """
    if "train" not in labels:
        labels = {}
    for split, each in labels.items():
        if missing := [k for k, label in enumerate(each) if is_missing(label)]:
            raise DataError(
                f"{where}: {len(missing):,} of {len(each):,} images of {split} have no label, the first is image "
                f"{missing[0]} ({each[missing[0]]!r}): give all one, or remove them"
            )
    known = sorted(set(labels.get("train", ())), key=lambda label: (isinstance(label, str), label))
    positions: dict[Any, int] = {label: k for k, label in enumerate(known)}
    if classes is not None:
        positions = {key: k for k, name in enumerate(classes) for key in (k, name)}
    encoded = {}
    for split, items in images.items():
        given = labels.get(split)
        if labels and given is None:
            raise DataError(f"{where}: train has labels, {split} has none: give both, or neither")
        if unknown := [label for label in given or () if label not in positions]:
            raise DataError(f"{where}: label {unknown[0]!r} of {split} is none of train's classes")
        encoded[split] = np.array([positions[label] for label in given] if given else [0] * len(items), dtype=np.int64)
    names = tuple(map(str, known if classes is None else classes)) if labels else ()
    return Raw(names, images, encoded, read, {split: list(map(str, each)) for split, each in clients.items()})


def of_huggingface(folder: Path, options: Mapping[str, Any]) -> Raw:
    """A Hugging Face data set that `save_to_disk` wrote; its splits are of `splits.NAMES`, or it is one without.

    options: `image`, `label` and `client`, names of columns, see `datamodules.columns`; `train` and `test`, of splits.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{folder} is a Hugging Face data set: pip install -e '.[datasets]'") from error
    try:
        stored = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library's errors are of many unrelated classes
        reason = " ".join(str(error).split())
        raise DataError(f"{folder} cannot be read as a Hugging Face data set: {reason}") from error
    splits = dict(stored) if isinstance(stored, datasets.DatasetDict) else {"train": stored}
    sizes = {name: len(each) for name, each in splits.items()}
    train = choose(sizes, str(folder), given=options).names["train"]
    names, notes = columns.chosen(splits[train].features, options, str(folder))
    image, label = names["image"], names["label"]
    unlabelled = {name for name, each in splits.items() if label and not _has_labels(each, label)} - {train}
    chosen, kept = choose(sizes, str(folder), given=options, unlabelled=unlabelled)
    splits = {split: splits[name] for split, name in chosen.items()}
    features = {split: each.features for split, each in splits.items()}
    if image not in features.get("test", {image}):
        raise DataError(f"{folder}: train has a column {image}, test has none: give both the same columns")
    if label is not None and any(
        each.get(label, features["train"][label]) != features["train"][label] for each in features.values()
    ):
        raise DataError(f"{folder}: the labels of train and test are numbered in other ways: give both the same names")
    values = {
        key: {split: list(each[names[key]]) for split, each in splits.items() if names[key] in each.features}
        for key in ("label", "client")
    }
    if any(value in (None, "") for each in values["client"].values() for value in each):
        raise DataError(f"{folder}: some images have no client: give all one, or remove them")
    undecoded = datasets.Image(decode=False)  # the library would also fetch addresses, and open any path
    read = {split: each.select_columns([image]).cast_column(image, undecoded) for split, each in splits.items()}
    items = {split: [(each, position) for position in range(len(each))] for split, each in read.items()}

    def image_of(item: tuple[Any, int]) -> Picture:
        rows, position = item
        content, where = (rows[position][image] or {}).get("bytes"), f"{folder}, image {position}"
        if not content:
            raise DataError(f"{where} has no bytes, only a path: save the data set with its images")
        try:
            with Image.open(io.BytesIO(content)) as opened:
                return as_image(opened, where)
        except DataError:
            raise
        except Exception as error:  # decoders raise errors of many unrelated classes
            raise DataError(f"{where} cannot be read ({error}): replace or remove it") from error

    classes = getattr(features["train"].get(label), "names", None)  # None of labels that are plain values
    raw = labelled(items, values["label"], values["client"], image_of, str(folder), classes)
    return replace(raw, notes=(*kept, *raw.notes, *notes))


def _has_labels(rows: Any, column: str) -> bool:
    """Whether any row of a split has a label in this column."""
    return column in rows.features and not all(map(is_missing, rows[column]))
