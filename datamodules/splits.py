"""Names of splits, in one table: which folder, column value, array or Hugging Face split is train, and which test."""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from datamodules.errors import DataError, first

NAMES = {
    "train": ("train", "training", "trn"),
    "test": ("test", "testing", "tst"),
    "val": ("val", "valid", "validation", "validate", "dev", "devel", "development", "eval", "evaluation"),
}
"""Split -> its names, in any case; numbers at the end and FILLERS count for nothing: `seg_train`, `val2017`."""
FILLERS = frozenset(("set", "data", "dataset", "split", "image", "images", "img", "imgs", "seg", "final", "ilsvrc", ""))
SPLITS = ("train", "test")
OPTIONS = ("splits",)
"""The key of `data.options` that names the data's splits, see `split_names`."""
MISSING = frozenset(("", "-1", "na", "n/a", "nan", "null"))
"""Texts that stand for a label that is not known, in any case; so do None and numbers below 0."""
WORDS = {
    **dict.fromkeys(("images", "image", "imgs", "x", "data"), "images"),
    **dict.fromkeys(("labels", "label", "y", "targets", "target"), "labels"),
    **dict.fromkeys(("clients", "client", "users", "user", "writers", "writer"), "clients"),
}
"""Word in the name of an array -> what it holds."""
_SPLIT_OF = {name: split for split, names in NAMES.items() for name in names}


def is_missing(label: Any) -> bool:
    """Whether this says that an image has no label.

    >>> [is_missing(label) for label in (None, -1, "NaN", "", 0, "none")]
    [True, True, True, True, False, False]
    """
    if isinstance(label, str):
        return label.strip().casefold() in MISSING
    return label is None or (isinstance(label, int | float) and not label >= 0)  # nor not-a-number


class Chosen(NamedTuple):
    """Split -> its name in the data, test only where there is one; a line for each thing a reader has to know."""

    names: dict[str, str]
    notes: tuple[str, ...]


def split_of(name: str) -> str | None:
    """Train, test or val, where this is a name of one of them.

    >>> [split_of(name) for name in ("Training", "test_set", "val2017", "trains", "cat")]
    ['train', 'test', 'val', None, None]
    """
    words = [word.rstrip("0123456789") for word in re.split(r"[\s_.\-]+", name.casefold())]
    named = [word for word in words if word not in FILLERS]
    # `trainset`, `testdata`
    return _SPLIT_OF.get(re.sub("(set|data|images)$", "", named[0])) if len(named) == 1 else None


def split_names(given: Any) -> dict[str, Any]:
    """What `data.options.splits` says that train and test are called; None as the test: there is none.

    Raises DataError: it is no such mapping.
    """
    named = isinstance(given, Mapping) and not given.keys() - set(SPLITS) and given.get("train", "") is not None
    if not named or not all(isinstance(name, str | int | None) for name in given.values()):
        raise DataError(
            f"data.options.splits={given!r}: give what its splits are called, {{train: NAME, test: NAME}}; null for "
            "test holds a fifth out"
        )
    return {split: name if name is None else str(name) for split, name in given.items()}


def split_and_key(name: str) -> tuple[str | None, str | None]:
    """The split and the key, images, labels or clients, that an array's name says: `train_images`, `X_test`."""
    for before, _, after in (name.partition("_"), name.rpartition("_")):
        for split, word in ((before, after), (after, before)):
            if split_of(split) and (key := WORDS.get(word.casefold())):
                return split.casefold(), key
    return None, None


def is_training_images(name: str) -> bool:
    """Whether an array of this name has training images."""
    split, key = split_and_key(name)
    return key == "images" and split_of(split or "") == "train"


def choose(
    sizes: Mapping[str, int],
    where: str,
    *,
    given: Mapping[str, Any] | None = None,
    unlabelled: Collection[str] = (),
    mark: str = "",
) -> Chosen:
    """Which of the data's splits are train and test.

    One called val is left out beside a test, and without one it is the test set; also where the test has no labels and
    it has some.

    Args:
        sizes: number of images by name. where: for messages. mark: what follows a name in messages, `/` of folders.
        given: what `train` and `test` are called, see `split_names`; other keys are not for splits.
        unlabelled: names of splits without labels, where train has some.

    Raises DataError: no train, two names of one split, a given name that is not there, or a test set without labels.
    """
    given = {key: value for key, value in (given or {}).items() if key in SPLITS}
    for key, name in given.items():
        if name not in sizes and not (key == "test" and name is None):
            raise DataError(f"data.options.splits.{key}={name}: {where} has {_listed(sizes, mark)}")
    if given.get("train") is not None and given.get("train") == given.get("test"):
        raise DataError(f"data.options.splits: train and test are both {given['train']}: give two splits of {where}")
    free = [name for name in sizes if name not in given.values()]
    found = {split: [name for name in free if split_of(name) == split] for split in NAMES}
    train = given.get("train") or _only(found["train"], "train", where, mark)
    if train is None:
        raise DataError(
            f"{where} has {_listed(sizes, mark)}, and none of them is called train: name it, "
            "data.options.splits.train=NAME"
        )
    notes = [f"{train}{mark} is the training set"] if train != "train" else []
    test = given.get("test")
    if "test" not in given:
        labelled = {split: [name for name in found[split] if name not in unlabelled] for split in ("test", "val")}
        split = "test" if labelled["test"] or (not labelled["val"] and found["test"]) else "val"
        test = _only(labelled[split] or found[split], "test", where, mark)
    if test in unlabelled:
        raise DataError(
            f"{where}: train has labels, {test}{mark} has none: give both, or neither; data.options.splits.test=null "
            f"leaves {test}{mark} out and holds a fifth of the training images out instead"
        )
    if test not in (None, "test"):
        notes.append(f"{test}{mark} is the test set")
    for name in sizes:
        if name not in (train, test) and (sizes[name] or split_of(name)):
            why = ", which has no labels," if name in unlabelled else ""
            notes.append(f"{name}{mark} ({sizes[name]:,} images){why} is left out")
    return Chosen({"train": train, **({} if test is None else {"test": test})}, tuple(notes))


def _only(names: list[str], split: str, where: str, mark: str) -> str | None:
    """The one name of a split, None where there is none. Raises DataError: there are several."""
    if len(names) > 1:
        raise DataError(
            f"{where}: {_listed(names, mark)} could each be {split}: set data.options.splits.{split} to one of them, "
            "or rename or merge them"
        )
    return names[0] if names else None


def _listed(names: Collection[str], mark: str) -> str:
    """Names in a message."""
    return first([f"{name}{mark}" for name in names], 5) or "no split"
