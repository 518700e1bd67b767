"""Images that other libraries hold: NumPy files, Hugging Face data sets saved to disk, torch's `Dataset`."""

import hashlib
import io
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules.cache import SPLITS, Raw
from datamodules.errors import DataError
from datamodules.signatures import signature_of

KEYS = ("images", "labels", "clients")
"""Arrays of a split, of which labels and clients may be missing."""
FINGERPRINT = 32
"""Items of a `Dataset` whose content decides whether its decoded images are still those."""


def of_numpy(arrays: Mapping[str, Any], where: Path) -> Raw:
    """A data set of arrays `{train,test}_{images,labels,clients}`, of which only the training images are required.

    Images are uint8, `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]`; labels are whole numbers or texts `[N]`; clients
    whole numbers or texts `[N]`. where: for messages.
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
    """uint8 images of any usual layout as `[N, C, H, W]`; C is 1 or 3, or what stands in the place of channels."""
    if images.dtype != np.uint8:
        raise DataError(f"{where} is {images.dtype}: give uint8, 0 to 255")
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
    read: Callable[[Any], np.ndarray],
    where: str,
    classes: Sequence[str] | None = None,
) -> Raw:
    """A data set with the names of its classes and clients: labels are positions in `classes`, else names.

    classes: None: the distinct labels of train, in increasing order. where: for messages.
    """
    if "train" not in labels:
        labels = {}
    known = sorted(set(labels.get("train", ())), key=lambda label: (isinstance(label, str), label))
    positions = {label: k for k, label in enumerate(known)} if classes is None else {k: k for k in range(len(classes))}
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

    options: `image`, `label` and `client`, names of columns; by default the first column of images, the first of class
    labels, and none.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{folder} is a Hugging Face data set: pip install -e '.[datasets]'") from error
    stored = datasets.load_from_disk(str(folder))
    splits = dict(stored) if isinstance(stored, datasets.DatasetDict) else {"train": stored}
    if "train" not in splits:
        raise DataError(
            f"{folder} has splits {', '.join(splits)}: one has to be train; test is used where there is one"
        )
    splits = {split: splits[split] for split in SPLITS if split in splits}
    features = splits["train"].features
    image = options.get("image") or _first(features, datasets.Image)
    label = options.get("label") or _first(features, datasets.ClassLabel)
    chosen = {"image": image, "label": label, "client": options.get("client")}
    for key, name in chosen.items():
        if name is not None and name not in features:
            raise DataError(f"data.options.{key}={name!r}: the columns of {folder} are {', '.join(features)}")
    if image is None:
        raise DataError(
            f"{folder} has no column of images: its columns are {', '.join(features)}; set data.options.image"
        )
    columns = {
        key: {split: each[name] for split, each in splits.items() if name in each.features}
        for key, name in chosen.items()
        if name is not None and key != "image"
    }
    columns_of = {split: each.features for split, each in splits.items()}
    if label is not None and any(each.get(label, features[label]) != features[label] for each in columns_of.values()):
        raise DataError(f"{folder}: the labels of train and test are numbered in other ways: give both the same names")
    named = features[label].names if label is not None and isinstance(features[label], datasets.ClassLabel) else None
    undecoded = datasets.Image(decode=False)  # the library would also fetch addresses, and open any path
    read = {split: each.select_columns([image]).cast_column(image, undecoded) for split, each in splits.items()}
    items = {split: [(each, position) for position in range(len(each))] for split, each in read.items()}

    def image_of(item: tuple[Any, int]) -> np.ndarray:
        rows, position = item
        content = (rows[position][image] or {}).get("bytes")
        if not content:
            raise DataError(f"{folder}, image {position} has no bytes, only a path: save the data set with its images")
        try:
            with Image.open(io.BytesIO(content)) as opened:
                opened.load()
                return as_image(opened, f"{folder}, image {position}")
        except DataError:
            raise
        except Exception as error:  # decoders raise errors of many unrelated classes for a broken file
            raise DataError(f"{folder}, image {position} cannot be read ({error}): replace or remove it") from error

    labels = {split: list(values) for split, values in columns.get("label", {}).items()}
    clients = {split: list(values) for split, values in columns.get("client", {}).items()}
    for key, by_split in (("label", labels), ("client", clients)):
        if any(value is None for values in by_split.values() for value in values):
            raise DataError(f"{folder}: some images have no {key}: give all one, or remove them")
    return labelled(items, labels, clients, image_of, str(folder), named)


def _first(features: Mapping[str, Any], kind: type) -> str | None:
    return next((name for name, feature in features.items() if isinstance(feature, kind)), None)


def of_dataset(target: Any, options: Mapping[str, Any], where: str) -> tuple[Callable[[], Raw], str]:
    """A torch `Dataset` of (image, label), or of images alone, to be read when called; and a hash of its content.

    The hash is of some images and of all labels, clients and classes.

    `target` is called with `split="train"` and `split="test"`, or with `train=True` and `train=False`, where it has
    such an argument, else once. Its objects may have `classes` (names by label) and `clients` (a name an item).

    Args:
        options: its other arguments. where: for messages.
    """
    parameters, takes_all = signature_of(target)
    if not takes_all and (unknown := sorted(options.keys() - parameters.keys())):
        raise DataError(f"data.options.{unknown[0]}: {where} has {', '.join(parameters) or 'no arguments'}")
    variants: dict[str, dict[str, Any]] = {"train": {}}
    if "split" in parameters and "split" not in options:
        variants = {split: {"split": split} for split in SPLITS}
    elif "train" in parameters and "train" not in options:
        variants = {split: {"train": split == "train"} for split in SPLITS}
    made = {}
    content = hashlib.sha256(repr((where, sorted(options.items()))).encode())
    for split, arguments in variants.items():
        try:
            made[split] = target(**options, **arguments)
            length = len(made[split])
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            raise DataError(
                f"{where} cannot be made: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        if not length:
            raise DataError(f"{where} has no item in {split}")
        content.update(f"{split} {length}".encode())
        for position in np.linspace(0, length - 1, min(FINGERPRINT, length)).astype(int):
            content.update(_item(made[split], int(position), where).tobytes())
    labels = _labels(made, where)
    described = {
        split: [list(getattr(each, key, ())) for key in ("classes", "clients")] for split, each in made.items()
    }
    content.update(repr((labels, described)).encode())
    return partial(_read_dataset, made, labels, where), content.hexdigest()


def _read_dataset(made: Mapping[str, Any], labels: Mapping[str, list[int]], where: str) -> Raw:
    """What is to be decoded of the datasets of the splits, whose labels are read already."""
    items = {split: [(each, position) for position in range(len(each))] for split, each in made.items()}
    clients = {split: list(each.clients) for split, each in made.items() if hasattr(each, "clients")}
    for split, names in clients.items():
        if len(names) != len(made[split]):
            raise DataError(f"{where}: clients has {len(names)} names for {len(made[split])} items: give one an item")
    named = {split: list(map(str, getattr(each, "classes", ()))) for split, each in made.items()}
    if labels and any(names != named["train"] for names in named.values()):
        raise DataError(f"{where}: train and test have other `classes`: give both the same, in one order")
    return labelled(
        items,
        labels,
        clients,
        lambda item: _item(item[0], item[1], where),
        where,
        (named["train"] or None) if labels else None,
    )


def _item(dataset: Any, position: int, where: str) -> np.ndarray:
    """The image of an item."""
    try:
        content = dataset[position]
    except Exception as error:  # it is a user's own code
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DataError(f"{where}, item {position} cannot be read: {reason}") from error
    return as_image(content[0] if isinstance(content, tuple | list) else content, f"{where}, item {position}")


def _labels(made: Mapping[str, Any], where: str) -> dict[str, list[int]]:
    """Label of each item by split: `targets` or `labels`, else the second value of each item; empty without labels."""
    first = made["train"][0]
    if not isinstance(first, tuple | list) or len(first) < 2:
        return {}
    labels = {}
    for split, dataset in made.items():
        stored = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
        if stored is None or len(stored) != len(dataset):
            stored = [dataset[position][1] for position in range(len(dataset))]
        try:
            labels[split] = [operator.index(label) for label in stored]
        except TypeError as error:
            raise DataError(
                f"{where}: a label is no whole number ({error}): give (image, label), labels from 0"
            ) from error
    return labels


def as_image(content: Any, where: str) -> np.ndarray:
    """An image of Pillow, NumPy or torch as uint8 `[C, H, W]`; floats in [0, 1] are scaled by 255.

    Raises DataError: another type, shape or range.
    """
    if isinstance(content, Image.Image):
        if content.mode in ("I", "F") or content.mode.startswith("I;16"):
            raise DataError(f"{where} has pixels of mode {content.mode}: give 8 bits a channel")
        array = np.asarray(content if content.mode in ("L", "RGB") else content.convert("RGB"))
    else:
        array = np.asarray(content)
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        kind = f"{array.dtype} {list(array.shape)}"
        raise DataError(f"{where} is {kind}: give an image of Pillow, uint8, or floats in [0, 1] before normalisation")
    if array.ndim == 2:
        return array[None]
    if array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        return array
    if array.shape[2] > 4:
        raise DataError(
            f"{where} has shape {list(array.shape)}: give [H, W], [H, W, C] or [C, H, W] with 1 or 3 channels"
        )
    return array.transpose(2, 0, 1)
