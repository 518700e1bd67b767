"""Names of splits, in one table: which folder, column value, array or Hugging Face split is train, and which test."""

import numbers
import re
from collections.abc import Collection, Mapping, Sequence
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
"""Texts that stand for a label that is not known, in any case; so do None and numbers that are below 0 or none."""
WORDS = {
    **dict.fromkeys(("images", "image", "imgs", "x", "data"), "images"),
    **dict.fromkeys(("labels", "label", "y", "targets", "target"), "labels"),
    **dict.fromkeys(("clients", "client", "users", "user", "writers", "writer"), "clients"),
    **dict.fromkeys(("names", "name", "filenames", "filename"), "names"),
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
    return label is None or (isinstance(label, numbers.Real) and not float(label) >= 0)  # nor not-a-number


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
    """The split and the key, images, labels, clients or names, that an array's name says: `train_images`, `X_test`."""
    for before, _, after in (name.partition("_"), name.rpartition("_")):
        for split, word in ((before, after), (after, before)):
            if split_of(split) and (key := WORDS.get(word.casefold())):
                return split.casefold(), key
    return None, None


def is_training_images(name: str) -> bool:
    """Whether an array of this name has training images."""
    split, key = split_and_key(name)
    return key == "images" and split_of(split or "") == "train"


class Part(NamedTuple):
    """Images of a split that are not read yet, and the label, client, path and name of each, where the split has them.

    Of files, which have paths within the split, None is no label; of others what `is_missing` says.
    """

    images: Any
    labels: Sequence[Any] | None = None
    clients: Sequence[Any] | None = None
    paths: Sequence[str] | None = None
    names: Sequence[str] | None = None

    @property
    def unlabelled(self) -> list[int]:
        """Positions of the labels that say nothing."""
        is_none = is_missing if self.paths is None else lambda label: label is None
        return [position for position, label in enumerate(self.labels or ()) if is_none(label)]


def choose(found: Mapping[str, Part], where: str, given: Mapping[str, Any] | None = None, mark: str = "") -> Chosen:
    """Which of the data's splits are train and test.

    One called val is left out beside a test, and without one it is the test set; also where the test has no labels and
    it has some.

    Args:
        found: the splits by name. where: for messages. mark: what follows a name in messages, `/` of folders.
        given: what `train` and `test` are called, see `split_names`; other keys are not for splits.

    Raises DataError: no train, two names of one split, a given name that is not there, or a test set without labels.
    """
    given = {key: value for key, value in (given or {}).items() if key in SPLITS}
    for key, name in given.items():
        if name not in found and not (key == "test" and name is None):
            raise DataError(f"data.options.splits.{key}={name}: {where} has {_listed(found, mark)}")
    if given.get("train") is not None and given.get("train") == given.get("test"):
        raise DataError(f"data.options.splits: train and test are both {given['train']}: give two splits of {where}")
    called = {split: [n for n in found if n not in given.values() and split_of(n) == split] for split in NAMES}
    train = given.get("train") or _only(called["train"], "train", where, mark)
    if train is None:
        raise DataError(
            f"{where} has {_listed(found, mark)}, and none of them is called train: name it, "
            "data.options.splits.train=NAME"
        )
    unlabelled = set()
    if found[train].labels is not None:
        unlabelled = {n for n, part in found.items() if len(part.unlabelled) == len(part.labels or ())} - {train}
    test = given.get("test")
    if "test" not in given:
        labelled = {split: [n for n in called[split] if n not in unlabelled] for split in ("test", "val")}
        split = "test" if labelled["test"] or (not labelled["val"] and called["test"]) else "val"
        test = _only(labelled[split] or called[split], "test", where, mark)
    if test in unlabelled:
        raise DataError(
            f"{where}: {train}{mark} has labels, {test}{mark} has none: give both, or neither; "
            f"data.options.splits.test=null leaves {test}{mark} out and holds a fifth of train out instead"
        )
    names = {"train": train} | ({} if test is None else {"test": test})
    roles = {"train": "training", "test": "test"}
    notes = [f"{name}{mark} is the {roles[split]} set" for split, name in names.items() if name != split]
    for name, part in found.items():
        if name not in names.values() and (len(part.images) or split_of(name)):
            why = ", which has no labels," if name in unlabelled else ""
            notes.append(f"{name}{mark} ({len(part.images):,} images){why} is left out")
    return Chosen(names, tuple(notes))


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
