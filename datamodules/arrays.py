"""Images that other libraries hold: NumPy files, and Hugging Face data sets saved to disk."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules import columns
from datamodules.cache import SPLITS, Raw
from datamodules.errors import DataError
from datamodules.pictures import Picture, as_image

KEYS = ("images", "labels", "clients")
"""Arrays of a split, of which labels and clients may be missing."""


def of_numpy(arrays: Mapping[str, Any], where: Path) -> Raw:
    """A data set of arrays `{train,test}_{images,labels,clients}`, of which only the training images are required.

    Images are uint8 or uint16, `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]`; labels are whole numbers or
    texts `[N]`; clients whole numbers or texts `[N]`. where: for messages.
    """
    known = [f"{split}_{key}" for split in SPLITS for key in KEYS]
    if unknown := [name for name in arrays if name not in known]:
        raise DataError(f"{where} has an array {unknown[0]!r}: the arrays are {', '.join(known)}")
    if "train_images" not in arrays:
        raise DataError(f"{where} has no array train_images: the arrays are {', '.join(known)}")
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    images = {split: channels_first(arrays[f"{split}_images"], f"{where}, {split}_images") for split in splits}
    texts: dict[str, dict[str, Sequence[Any]]] = {"labels": {}, "clients": {}}
    for split in splits:
        for key, by_split in texts.items():
            if f"{split}_{key}" in arrays:
                by_split[split] = _column(arrays[f"{split}_{key}"], len(images[split]), f"{where}, {split}_{key}")
    return labelled(images, texts["labels"], texts["clients"], np.asarray, str(where))


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
    """A Hugging Face data set that `save_to_disk` wrote; its splits are `train` and `test`, or it is one without.

    options: `image`, `label` and `client`, names of columns, see `datamodules.columns`; `splits`, see `split_names`.
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
    splits = _chosen_splits(splits, options.get("splits"), folder)
    features = {split: each.features for split, each in splits.items()}
    names, notes = columns.chosen(features["train"], options, str(folder))
    image, label = names["image"], names["label"]
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
    for key, by_split in values.items():
        if any(value in (None, "") for each in by_split.values() for value in each):
            raise DataError(f"{folder}: some images have no {key}: give all one, or remove them")
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
        except OSError as error:
            raise DataError(f"{where} cannot be read ({error}): replace or remove it") from error

    classes = getattr(features["train"].get(label), "names", None)  # None of labels that are plain values
    raw = labelled(items, values["label"], values["client"], image_of, str(folder), classes)
    return replace(raw, notes=(*raw.notes, *notes))


def split_names(given: Any) -> dict[str, Any]:
    """`data.options.splits`: what train and test are called in the data; None: there is no test.

    Raises DataError: it is no such mapping.
    """
    names: dict[str, Any] = dict(zip(SPLITS, SPLITS, strict=True))
    if not isinstance(given, Mapping) or given.keys() - names.keys() or given.get("train", "") is None:
        raise DataError(
            f"data.options.splits={given!r}: give what its splits are called, {{train: NAME, test: NAME}}; null for "
            "test holds a fifth out"
        )
    return names | dict(given)


def _chosen_splits(splits: Mapping[str, Any], given: Any, folder: Path) -> dict[str, Any]:
    """train and test of a data set's splits. given: what they are called, see `split_names`."""
    if given is not None:
        names = {split: name for split, name in split_names(given).items() if name is not None}
        if absent := [name for name in names.values() if name not in splits]:
            raise DataError(
                f"data.options.splits: {folder} has splits {', '.join(splits)}, and none called {absent[0]}"
            )
        return {split: splits[name] for split, name in names.items()}
    if "train" not in splits:
        raise DataError(
            f"{folder} has splits {', '.join(splits)}: one has to be train; test is used where there is one; "
            "data.options.splits={train: NAME, test: NAME} says what they are called"
        )
    return {split: splits[split] for split in SPLITS if split in splits}
