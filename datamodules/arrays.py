"""Images that other libraries hold: NumPy files, and Hugging Face data sets saved to disk."""

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datamodules import columns
from datamodules.errors import DataError, one_line
from datamodules.pictures import Picture, as_image
from datamodules.raw import Raw, raw
from datamodules.splits import SPLITS, Part, choose, is_missing, split_and_key, split_of

KEYS = ("images", "labels", "clients", "names")
"""Arrays of a split, of which only the images have to be there."""


def of_numpy(path: Path, options: Mapping[str, Any]) -> Raw:
    """A data set of arrays `{train,test}_{images,labels,clients,names}`; only the training images have to be there.

    Images are uint8 or uint16, `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]`; the others are whole numbers or texts
    `[N]`. `splits` has other words, in either order: `val_labels`, `x_train`.

    Args:
        path: an .npz file, or a folder of .npy files. options: `train` and `test`, names of splits.

    Raises DataError: arrays of other names, types or shapes, or none.
    """
    return of_arrays(_stored(path), str(path), options)


def of_arrays(arrays: Mapping[str, np.ndarray], path: str, options: Mapping[str, Any]) -> Raw:
    """The data set of these arrays, as `of_numpy` says. path: where they are from, for messages."""
    known = f"the arrays are {', '.join(f'{split}_{key}' for split in SPLITS for key in KEYS)}"
    found: dict[str, dict[str, str]] = {}  # split as the arrays call it -> key -> name of the array
    for name in arrays:
        split, key = split_and_key(name)
        if split is None or key is None:
            raise DataError(f"{path} has an array {name!r}: {known}")
        if key in found.setdefault(split, {}):
            raise DataError(f"{path}: {found[split][key]} and {name} are both {key} of {split}: keep one")
        found[split][key] = name
    parts = {}
    for split, names in found.items():
        if "images" in names:
            said = [arrays[names[key]].reshape(-1).tolist() if key in names else None for key in KEYS[1:]]
            labels = None if all(map(is_missing, said[0] or ())) else said[0]
            parts[split] = Part(arrays[names["images"]], labels, said[1], names=said[2])
    train = options.get("train") or next((split for split in parts if split_of(split) == "train"), None)
    if train is None:
        raise DataError(f"{path} has no array train_images: {known}")
    chosen, notes = choose(parts, path, options)
    read = {}
    for split, given in chosen.items():
        names, part = found[given], parts[given]
        images = channels_first(part.images, f"{path}, {names['images']}")
        read[split] = part._replace(images=images)
        for key in KEYS[1:]:
            if getattr(part, key) is not None:
                _refuse_other(arrays[names[key]], len(images), f"{path}, {names[key]}")
    alone = [name for split, names in found.items() if split not in parts for name in names.values()]
    return raw(read, path, notes=(*notes, *(f"{name} is left out: its split has no images" for name in alone)))


def _stored(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file or a folder by name."""
    try:
        if path.is_dir():
            return {file.stem: np.load(file, mmap_mode="r") for file in sorted(path.glob("*.npy"))}
        with np.load(path) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as arrays without objects: {one_line(error)}") from error


def _refuse_other(array: np.ndarray, length: int, where: str) -> None:
    """Raises DataError: it is no array of one value an image, `[N]` or `[N, 1]`."""
    if array.shape not in ((length,), (length, 1)) or array.dtype.kind not in "iuU":
        raise DataError(
            f"{where} is {array.dtype} {list(array.shape)}: give {length} whole numbers or texts, one an image"
        )


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


def parquet_files(folder: Path) -> dict[str, list[Path]]:
    """Parquet files of a folder, or of those in it, by split: `train-00000-of-00002.parquet`, `data/test.parquet`.

    Empty where none is called as a split is.
    """
    found: dict[str, list[Path]] = {}
    for file in sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]):
        found.setdefault(re.sub(r"-\d+(-of-\d+)?$", "", file.stem), []).append(file)
    return found if any(map(split_of, found)) else {}


def of_huggingface(folder: Path, options: Mapping[str, Any]) -> Raw:
    """A Hugging Face data set: as `save_to_disk` wrote it, or the parquet files that its owner ships.

    Its splits are of `splits.NAMES`, or it is one without. Parquet files are read into memory.

    options: `image`, `label` and `client`, names of columns, see `datamodules.columns`; `train` and `test`, of splits.
    """
    try:
        import datasets
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise DataError(f"{folder} is a Hugging Face data set: pip install 'fulcrum-ful[datasets]'") from error
    try:
        if shipped := parquet_files(folder):
            stored = datasets.DatasetDict(
                {split: datasets.Dataset(read_table(list(map(str, files)))) for split, files in shipped.items()}
            )
        else:
            stored = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library's errors are of many unrelated classes
        raise DataError(f"{folder} cannot be read as a Hugging Face data set: {one_line(error)}") from error
    splits = dict(stored) if isinstance(stored, datasets.DatasetDict) else {"train": stored}
    parts = {name: Part(each) for name, each in splits.items()}
    features = splits[choose(parts, str(folder), options).names["train"]].features
    (image, label, client), notes = columns.chosen(features, options, str(folder))
    for name, each in splits.items():
        parts[name] = Part(each, *(list(each[key]) if key in each.features else None for key in (label, client)))
    names, kept = choose(parts, str(folder), options)
    parts = {split: parts[name] for split, name in names.items()}
    for part in parts.values():
        if image not in part.images.features:
            raise DataError(f"{folder}: train has a column {image}, test has none: give both the same columns")
        if label in part.images.features and part.images.features[label] != features[label]:
            raise DataError(
                f"{folder}: the labels of train and test are numbered in other ways: give both the same names"
            )
    if any(value in (None, "") for part in parts.values() for value in part.clients or ()):
        raise DataError(f"{folder}: some images have no client: give all one, or remove them")
    undecoded = datasets.Image(decode=False)  # the library would also fetch addresses, and open any path
    for split, part in parts.items():
        rows = part.images.select_columns([image]).cast_column(image, undecoded)
        parts[split] = part._replace(images=[(rows, position) for position in range(len(rows))])

    def image_of(item: tuple[Any, int]) -> Picture:
        rows, position = item
        where = f"{folder}, image {position}"
        return as_image(opened_image(rows[position][image], where), where)

    classes = getattr(features.get(label), "names", None)  # None of labels that are plain values
    return raw(parts, str(folder), image_of, classes, (*kept, *notes))


def opened_image(content: Mapping[str, Any] | None, where: str) -> Image.Image:
    """The image of a cell `{"bytes", "path"}`. Raises DataError: it has no bytes, or they are no image."""
    if not (stored := (content or {}).get("bytes")):
        raise DataError(f"{where} has no bytes, only a path: save the data set with its images")
    try:
        return Image.open(io.BytesIO(stored))
    except Exception as error:  # decoders raise errors of many unrelated classes
        raise DataError(f"{where} cannot be read ({error}): replace or remove it") from error
